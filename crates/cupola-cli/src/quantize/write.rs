//! Converts tensors on all cores and writes them in order.

use super::names::interleaved_row;
use crate::failure::{Failure, Result, Within};
use crate::interrupt;
use cupola_formats::Tensor;
use cupola_formats::gguf::{GgmlType, GgufTensors, GgufWriter};
use cupola_quant::Format;
use indicatif::ProgressBar;
use std::num::NonZeroUsize;
use std::ops::Range;

/// A tensor of the file to be written.
pub struct Part<'a> {
    /// Its name there.
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// How it is stored there.
    pub kind: GgmlType,
    /// Where its values come from.
    pub source: Source<'a>,
}

/// Where values come from.
pub enum Source<'a> {
    /// The bytes of a tensor as they are.
    Copy(Tensor<'a>),
    /// The values of a tensor.
    Convert {
        /// The tensor.
        tensor: Tensor<'a>,
        /// How it is stored.
        from: Format,
        /// How it is to be stored.
        to: Format,
        /// The head size, if the rows of each head change from halves to neighbouring pairs.
        interleave: Option<usize>,
        /// What is added to each value.
        add: f32,
    },
    /// Values of F32 that are no tensor of the checkpoint.
    Values(Vec<f32>),
}

impl Part<'_> {
    /// Bytes that have to be read for it.
    pub fn bytes(&self) -> u64 {
        match &self.source {
            Source::Copy(tensor) | Source::Convert { tensor, .. } => tensor.bytes.len() as u64,
            Source::Values(values) => 4 * values.len() as u64,
        }
    }
}

/// Declares every part.
pub fn declare(parts: &[Part], writer: &mut GgufWriter) -> Result<()> {
    Ok(parts.iter().try_for_each(|p| writer.declare(&p.name, &p.shape, p.kind))?)
}

/// Writes every part, in order.
pub fn write(parts: &[Part], out: &mut GgufTensors, threads: NonZeroUsize, progress: &ProgressBar) -> Result<()> {
    for part in parts {
        interrupt::check()?;
        match &part.source {
            Source::Copy(tensor) => {
                for piece in tensor.bytes.chunks(PIECE) {
                    interrupt::check()?;
                    out.write(&part.name, piece)?;
                    progress.inc(piece.len() as u64);
                }
                tensor.release();
            }
            Source::Values(values) => {
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                out.write(&part.name, &bytes)?;
            }
            Source::Convert { tensor, from, to, interleave, add } => {
                let rows = Rows { tensor, from: *from, to: *to, interleave: *interleave, add: *add };
                rows.write(&part.name, out, threads, progress).within(|| format!("tensor `{}`", tensor.name))?;
                tensor.release();
            }
        }
    }
    Ok(())
}

/// Bytes copied at a time.
const PIECE: usize = 16 << 20;
/// Values that a thread converts at a time.
const CHUNK: usize = 1 << 20;

/// The rows of a tensor, converted.
struct Rows<'a> {
    tensor: &'a Tensor<'a>,
    from: Format,
    to: Format,
    interleave: Option<usize>,
    add: f32,
}

impl Rows<'_> {
    fn write(&self, name: &str, out: &mut GgufTensors, threads: NonZeroUsize, progress: &ProgressBar) -> Result<()> {
        let elements = self.tensor.elements();
        let n_in = match self.tensor.shape {
            // Of a vector whose elements change places, each is a row.
            [_] if self.interleave.is_some() => 1,
            shape => shape.last().copied().unwrap_or(1),
        };
        let rows = elements.checked_div(n_in).unwrap_or(0);
        let chunk = (CHUNK / n_in.max(1)).max(1);
        let mut next = 0;
        while next < rows {
            interrupt::check()?;
            let starts = (next..rows).step_by(chunk).take(threads.get());
            let ranges: Vec<_> = starts.map(|start| start..(start + chunk).min(rows)).collect();
            let converted = match ranges.as_slice() {
                [only] => vec![self.convert(only.clone(), n_in)],
                several => std::thread::scope(|scope| {
                    let convert = |range: &Range<usize>| {
                        let range = range.clone();
                        scope.spawn(move || self.convert(range, n_in))
                    };
                    let workers: Vec<_> = several.iter().map(convert).collect();
                    let lost = || Err(Failure::new("a thread of the conversion has died"));
                    workers.into_iter().map(|w| w.join().unwrap_or_else(|_| lost())).collect()
                }),
            };
            for (range, bytes) in ranges.iter().zip(converted) {
                out.write(name, &bytes?)?;
                progress.inc((range.len() * self.row_bytes(n_in)?) as u64);
                next = range.end;
            }
        }
        Ok(())
    }

    fn row_bytes(&self, n_in: usize) -> Result<usize> {
        self.from
            .row_bytes(n_in)
            .ok_or_else(|| Failure::new(format!("rows of {n_in} values are no {} blocks", self.from)))
    }

    fn convert(&self, rows: Range<usize>, n_in: usize) -> Result<Vec<u8>> {
        let row_bytes = self.row_bytes(n_in)?;
        let mut values = vec![0.0; rows.len() * n_in];
        for (row, out) in rows.zip(values.chunks_exact_mut(n_in.max(1))) {
            let from = self.interleave.map_or(row, |head_dim| interleaved_row(row, head_dim));
            let bytes = self.tensor.bytes.get(from * row_bytes..(from + 1) * row_bytes);
            let bytes = bytes.ok_or_else(|| Failure::new(format!("row {from} is not there")))?;
            cupola_quant::decode(self.from, bytes, out)?;
            // Adding 0 would turn -0 into +0.
            if self.add != 0.0 {
                out.iter_mut().for_each(|v| *v += self.add);
            }
        }
        let bytes = self.to.row_bytes(values.len());
        let mut encoded =
            vec![0; bytes.ok_or_else(|| Failure::new(format!("{} values are no {} blocks", values.len(), self.to)))?];
        cupola_quant::encode(self.to, &values, &mut encoded)?;
        Ok(encoded)
    }
}
