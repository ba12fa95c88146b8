//! Weight matrices, packed for the products.

use super::exact::value;
use super::formats::{Packed, with_format};
use crate::memory::{Buffer, Line, MappedLines, OutOfMemory};
use crate::pool::Pool;
use crate::simd::{Kernel, Simd};
use crate::tier::Tier;
use cupola_quant::Format;

/// Rows of a panel.
pub(crate) const PANEL: usize = 16;

/// Why a matrix could not be packed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum MatrixError {
    #[error("a matrix of {n_out} x {n_in} is empty; both sizes must be at least 1")]
    Empty { n_out: usize, n_in: usize },
    #[error("rows of {n_in} values are not whole blocks: {format} has blocks of {block} values")]
    PartialBlock { format: Format, n_in: usize, block: usize },
    #[error("a {format} matrix of {n_out} x {n_in} is larger than the address space")]
    TooLarge { format: Format, n_out: usize, n_in: usize },
    #[error("{count} rows of {n_in} {format} values take {expected} bytes, but there are {got}")]
    WrongSize { format: Format, n_in: usize, count: usize, expected: usize, got: usize },
    #[error("{got} bytes are not whole rows: a row of {n_in} {format} values takes {row_bytes}")]
    PartialRow { format: Format, n_in: usize, row_bytes: usize, got: usize },
    #[error(
        "rows {first}..{end} do not fit a matrix of {n_out} rows that is packed 16 rows at a time: \
         start at a multiple of 16, and end at one or at the last row"
    )]
    Rows { first: usize, end: usize, n_out: usize },
    #[error("a matrix that is mapped from a file cannot be packed again")]
    Mapped,
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
}

/// A weight matrix `[n_out, n_in]`, row-major as in a checkpoint, packed in panels of 16 rows (see `formats`). The packed form
/// is the same for every [`Tier`], and takes as much memory as the original, up to 5.9 % more (MXFP4), plus padding to
/// whole panels and units. Codebooks do not stay as small: `TQ1_0` takes 1.3 times, `IQ3_*` up to 1.4, `IQ2_*` up to 1.6, `IQ1_*`
/// up to 2.2 times as much.
pub struct Matrix {
    format: Format,
    n_out: usize,
    n_in: usize,
    row_bytes: usize,
    panel_lines: usize,
    lines: Lines,
}

/// Where the packed form lies.
enum Lines {
    Owned(Buffer),
    Mapped(MappedLines),
}

/// Sizes of a packed matrix.
struct Sizes {
    row_bytes: usize,
    panel_lines: usize,
    lines: usize,
}

impl Sizes {
    fn of(format: Format, n_out: usize, n_in: usize) -> Result<Sizes, MatrixError> {
        if n_out == 0 || n_in == 0 {
            return Err(MatrixError::Empty { n_out, n_in });
        }
        let block = format.layout().block;
        if !n_in.is_multiple_of(block) {
            return Err(MatrixError::PartialBlock { format, n_in, block });
        }
        let (unit, unit_lines) = with_format!(format, C => (C::UNIT, C::LINES));
        let size = || {
            let row_bytes = format.row_bytes(n_in)?;
            row_bytes.checked_mul(n_out)?;
            let panel_lines = n_in.div_ceil(unit).checked_mul(unit_lines)?;
            // Room to round sizes up anywhere without a check.
            n_in.checked_next_multiple_of(1 << 12)?;
            Some((row_bytes, panel_lines, n_out.div_ceil(PANEL).checked_mul(panel_lines)?))
        };
        let (row_bytes, panel_lines, lines) = size().ok_or(MatrixError::TooLarge { format, n_out, n_in })?;
        Ok(Sizes { row_bytes, panel_lines, lines })
    }
}

impl Matrix {
    /// A matrix of zeros, to be filled by [`Matrix::pack_rows`]. Memory is not touched yet.
    pub fn new(format: Format, n_out: usize, n_in: usize) -> Result<Self, MatrixError> {
        let Sizes { row_bytes, panel_lines, lines } = Sizes::of(format, n_out, n_in)?;
        Ok(Matrix { format, n_out, n_in, row_bytes, panel_lines, lines: Lines::Owned(Buffer::new(lines)?) })
    }

    /// A matrix that was packed before and whose lines are in a file.
    pub(crate) fn mapped(format: Format, n_out: usize, n_in: usize, mapped: MappedLines) -> Result<Self, MatrixError> {
        let Sizes { row_bytes, panel_lines, lines } = Sizes::of(format, n_out, n_in)?;
        let (expected, got) = (lines * size_of::<Line>(), size_of_val(&*mapped));
        if expected != got {
            return Err(MatrixError::WrongSize { format, n_in, count: n_out, expected, got });
        }
        Ok(Matrix { format, n_out, n_in, row_bytes, panel_lines, lines: Lines::Mapped(mapped) })
    }

    /// Lines that a packed matrix takes.
    pub(crate) fn lines_of(format: Format, n_out: usize, n_in: usize) -> Result<usize, MatrixError> {
        Ok(Sizes::of(format, n_out, n_in)?.lines)
    }

    /// The packed form.
    #[inline(always)]
    pub(crate) fn lines(&self) -> &[Line] {
        match &self.lines {
            Lines::Owned(buffer) => buffer,
            Lines::Mapped(mapped) => mapped,
        }
    }

    /// Packs a whole matrix. `rows` is `n_out` rows of `n_in` values in the given format.
    pub fn pack(format: Format, n_out: usize, n_in: usize, rows: &[u8], pool: &Pool) -> Result<Self, MatrixError> {
        // Sizes first: a wrong length must not cost an allocation.
        if let Some(expected) = format.row_bytes(n_in).and_then(|b| b.checked_mul(n_out))
            && expected != rows.len()
        {
            return Err(MatrixError::WrongSize { format, n_in, count: n_out, expected, got: rows.len() });
        }
        let mut matrix = Matrix::new(format, n_out, n_in)?;
        matrix.pack_rows(0, rows, pool)?;
        Ok(matrix)
    }

    /// Packs some rows, so that the caller can read a matrix piece by piece and let go of what is packed. `first` is a
    /// multiple of 16; `rows` is whole rows, a multiple of 16 of them unless they end the matrix.
    pub fn pack_rows(&mut self, first: usize, rows: &[u8], pool: &Pool) -> Result<(), MatrixError> {
        let (format, n_in, n_out, row_bytes) = (self.format, self.n_in, self.n_out, self.row_bytes);
        if !rows.len().is_multiple_of(row_bytes) {
            return Err(MatrixError::PartialRow { format, n_in, row_bytes, got: rows.len() });
        }
        let end = first.saturating_add(rows.len() / row_bytes);
        if !first.is_multiple_of(PANEL) || end > n_out || (!end.is_multiple_of(PANEL) && end != n_out) {
            return Err(MatrixError::Rows { first, end, n_out });
        }
        let panels = first / PANEL * self.panel_lines..end.div_ceil(PANEL) * self.panel_lines;
        let Lines::Owned(lines) = &mut self.lines else { return Err(MatrixError::Mapped) };
        with_format!(format, C => pool.run_slices(&mut lines[panels], self.panel_lines, |p, panel| {
            let start = p * PANEL * row_bytes;
            let rows = &rows[start..rows.len().min(start + PANEL * row_bytes)];
            pack_panel::<C>(rows, row_bytes, format, panel);
        }));
        Ok(())
    }

    /// The format that was packed.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Rows: outputs of the product.
    pub fn n_out(&self) -> usize {
        self.n_out
    }

    /// Columns: inputs of the product.
    pub fn n_in(&self) -> usize {
        self.n_in
    }

    /// Memory that the packed matrix takes, and what a product with one row of activations reads.
    pub fn packed_bytes(&self) -> usize {
        size_of_val(self.lines())
    }

    /// Writes row `row` as floats, with the bits of `cupola_quant::decode`.
    ///
    /// # Panics
    /// If there is no such row, or `out` is not `n_in` long.
    pub fn decode_row(&self, tier: Tier, row: usize, out: &mut [f32]) {
        assert!(row < self.n_out, "row {row} of a matrix of {} rows", self.n_out);
        assert_eq!(out.len(), self.n_in, "a row has {} values", self.n_in);
        with_format!(self.format, C => tier.run(DecodeRow::<C> {
            panel: self.panel(row / PANEL),
            row: row % PANEL,
            out,
            format: std::marker::PhantomData,
        }));
    }

    /// Number of panels.
    pub(crate) fn panels(&self) -> usize {
        self.n_out.div_ceil(PANEL)
    }

    /// Lines of a panel.
    pub(crate) fn panel_lines(&self) -> usize {
        self.panel_lines
    }

    /// One panel.
    #[inline(always)]
    pub(crate) fn panel(&self, p: usize) -> &[Line] {
        &self.lines()[p * self.panel_lines..][..self.panel_lines]
    }
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix({} x {} {})", self.n_out, self.n_in, self.format)
    }
}

fn pack_panel<C: Packed>(rows: &[u8], row_bytes: usize, format: Format, panel: &mut [Line]) {
    let layout = format.layout();
    let unit_bytes = C::UNIT / layout.block * layout.bytes;
    for (u, unit) in panel.chunks_exact_mut(C::LINES).enumerate() {
        // Counting to a constant lets the compiler see that no row lies outside a line.
        for r in 0..PANEL {
            let Some(row) = rows.get(r * row_bytes..(r + 1) * row_bytes) else { break };
            C::put(&row[u * unit_bytes..row_bytes.min((u + 1) * unit_bytes)], r, unit);
        }
    }
}

struct DecodeRow<'a, C> {
    panel: &'a [Line],
    row: usize,
    out: &'a mut [f32],
    format: std::marker::PhantomData<C>,
}

impl<C: Packed> Kernel for DecodeRow<'_, C> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let half = self.row / S::ROWS;
        for (unit, out) in self.panel.chunks_exact(C::LINES).zip(self.out.chunks_mut(C::UNIT)) {
            for (b, out) in out.chunks_mut(32).enumerate() {
                for (l, out) in out.iter_mut().enumerate() {
                    let mut line = Line::ZERO;
                    s.store(value::<S, C>(s, unit, half, b, l), &mut line, half);
                    *out = line.floats()[self.row];
                }
            }
        }
    }
}
