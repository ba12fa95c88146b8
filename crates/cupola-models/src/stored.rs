//! How the matrices of a model lie in the tensors of a checkpoint.

use cupola_formats::Tensor;
use std::ops::Range;

/// A matrix of a tensor, or of two.
#[derive(Debug)]
pub(crate) struct Matrix<'c> {
    pub tensor: Tensor<'c>,
    pub n_out: usize,
    pub rows: Rows<'c>,
}

/// How the rows of a matrix lie in its tensor. All of them are within it.
#[derive(Clone, Debug)]
pub(crate) enum Rows<'c> {
    /// In runs of `run` rows, each row in one piece of `row_bytes`: the first run at byte `start`, the others `stride` bytes
    /// apart.
    Runs { start: usize, run: usize, stride: usize, row_bytes: usize },
    /// As columns of a stored matrix `[n_in, ..]` with rows of `row_bytes`: element `k` of the first row is the `size` bytes at
    /// `start + k * row_bytes`, those of the others are `step` bytes apart.
    Columns { start: usize, step: usize, row_bytes: usize, size: usize },
    /// MXFP4 as gpt-oss has it: 16 bytes for each 32 columns, two consecutive columns to a byte, the first in the low half,
    /// and the exponents in a tensor of their own. Row `o` is stored row `first + o * step`.
    Mxfp4 { exponents: Tensor<'c>, first: usize, step: usize, blocks: usize },
}

impl Rows<'static> {
    /// Rows one after the other, the first at byte `start`.
    pub fn together(start: usize, row_bytes: usize) -> Rows<'static> {
        Rows::Runs { start, run: 1, stride: row_bytes, row_bytes }
    }
}

impl Matrix<'_> {
    /// Where these rows lie in the tensor, if that is one piece.
    pub fn locate(&self, rows: &Range<usize>) -> Option<Range<usize>> {
        match self.rows {
            Rows::Runs { start, run, stride, row_bytes } if stride == run * row_bytes => {
                Some(start + rows.start * row_bytes..start + rows.end * row_bytes)
            }
            _ => None,
        }
    }

    /// The bytes of these rows, put together.
    pub fn gather(&self, rows: &Range<usize>) -> Option<Vec<u8>> {
        let bytes = self.tensor.bytes;
        let mut out = vec![];
        match &self.rows {
            Rows::Runs { start, run, stride, row_bytes } => {
                for row in rows.clone() {
                    let at = start + row / run * stride + row % run * row_bytes;
                    out.extend_from_slice(bytes.get(at..)?.get(..*row_bytes)?);
                }
            }
            Rows::Columns { start, step, row_bytes, size } => {
                let (stored, n_in) = (bytes.get(*start..)?, self.tensor.shape.iter().rev().nth(1)?);
                out.resize(rows.len() * n_in * size, 0);
                for k in 0..*n_in {
                    for (at, row) in rows.clone().enumerate() {
                        let element = stored.get(k * row_bytes + row * step..)?.get(..*size)?;
                        out[(at * n_in + k) * size..][..*size].copy_from_slice(element);
                    }
                }
            }
            Rows::Mxfp4 { exponents, first, step, blocks } => {
                for row in rows.clone() {
                    let at = (first + row * step) * blocks;
                    let exponents = exponents.bytes.get(at..)?.get(..*blocks)?;
                    let codes = bytes.get(16 * at..)?.get(..16 * blocks)?.as_chunks::<16>().0;
                    for (exponent, codes) in exponents.iter().zip(codes) {
                        out.push(*exponent);
                        out.extend(halves_apart(codes));
                    }
                }
            }
        }
        Some(out)
    }
}

/// Codes of neighbours in each byte, as ggml has them: byte `i` holds columns `i` and `i + 16`.
fn halves_apart(codes: &[u8; 16]) -> [u8; 16] {
    let code = |k: usize| codes[k / 2] >> (4 * (k % 2)) & 15;
    std::array::from_fn(|i| code(i) | code(i + 16) << 4)
}
