//! The parts of a block: codes, scales and minima, one file per format.
//!
//! Every block format here has the same meaning: value `k` of a block is
//! `scale * (code - OFFSET) - min`, with one scale and minimum per group of `GROUP` consecutive values.
//! Layouts are those of the GGUF specification; multi-byte numbers are little-endian.

mod affine;
mod legacy;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod search;
mod symmetric;

use half::f16;

use crate::Format;
pub use q2_k::Q2_K;
pub use q3_k::Q3_K;
pub use q4_0::Q4_0;
pub use q4_1::Q4_1;
pub use q4_k::{Q4_K, level_min};
pub use q5_0::Q5_0;
pub use q5_1::Q5_1;
pub use q5_k::Q5_K;
pub use q6_k::Q6_K;
pub use q8_0::Q8_0;

/// One block format, as functions on the bytes of one block.
///
/// All functions panic if `block` is shorter than one block or `k` is not below the number of values of a block:
/// check lengths with [`Format::row_bytes`] first.
pub trait Block {
    /// Which format this is.
    const FORMAT: Format;
    /// Bits of a code.
    const BITS: u32;
    /// Consecutive values that share one scale and one minimum.
    const GROUP: usize;
    /// What is subtracted from a code before scaling.
    const OFFSET: i32 = 0;

    /// The unsigned code of value `k`.
    fn code(block: &[u8], k: usize) -> u8;

    /// Scale and minimum of the group that value `k` is in.
    fn scale_min(block: &[u8], k: usize) -> (f32, f32);

    /// Encodes one block. Values must be finite and at most [`Format::largest`] in magnitude.
    ///
    /// # Panics
    ///
    /// If `values` or `block` is shorter than one block.
    fn encode(values: &[f32], block: &mut [u8]);
}

/// The f16 number stored at byte `at`.
///
/// # Panics
///
/// If fewer than two bytes follow.
#[inline]
pub fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// `1 / scale`, or 0 where that is no finite number: such a scale is far below the smallest f16, so that the block
/// decodes to a constant whatever its codes are.
#[inline]
fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The value of the largest magnitude, the first of equals.
fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0f32, |extreme, &value| if value.abs() > extreme.abs() { value } else { extreme })
}

fn put_half(bytes: &mut [u8], at: usize, value: f16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}
