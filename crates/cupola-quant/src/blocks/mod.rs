//! The parts of a block: codes, scales and minima, one file per format.
//!
//! Every block format has the same meaning. Value `k` of a block is `scale * level - min`, where `level` is a whole
//! number of at most 8 bits, and one scale and minimum hold for a group of `GROUP` consecutive values. Layouts are those
//! of the GGUF specification and of ggml's block structures; multi-byte numbers are little-endian.
//!
//! How a code gives a level:
//!
//! - Most formats: `level = code - OFFSET`.
//! - Formats with a `TABLE`: `level = TABLE[code]`.
//! - Codebook formats (`IQ1_*`, `IQ2_*`, `IQ3_*`) have no code for a single value. [`Block::code`] looks the value up
//!   and gives its level as an 8-bit code with an `OFFSET` of 128, so that such a block can be repacked like `Q8_0`.
//!
//! `scale * level` is exact in f32 for every format, barring overflow: a scale is an f16 or 8-bit float times a small
//! whole number, and there are at most 24 significant bits in the product. Repacking levels and scales loses nothing
//! where scales are kept as f32.
//!
//! | format | group | levels | scale of a group | min |
//! |---|---|---|---|---|
//! | `Q1_0` | 128 | -1, 1 (table) | `d` | |
//! | `Q2_0` | 64 | -1 to 2 | `d` | |
//! | `Q4_0` | 32 | -8 to 7 | `d` | |
//! | `Q4_1` | 32 | 0 to 15 | `d` | `-m` |
//! | `Q5_0` | 32 | -16 to 15 | `d` | |
//! | `Q5_1` | 32 | 0 to 31 | `d` | `-m` |
//! | `Q8_0` | 32 | -128 to 127 | `d` | |
//! | `Q2_K` | 16 | 0 to 3 | `d * (0 to 15)` | `dmin * (0 to 15)` |
//! | `Q3_K` | 16 | -4 to 3 | `d * (-32 to 31)` | |
//! | `Q4_K` | 32 | 0 to 15 | `d * (0 to 63)` | `dmin * (0 to 63)` |
//! | `Q5_K` | 32 | 0 to 31 | `d * (0 to 63)` | `dmin * (0 to 63)` |
//! | `Q6_K` | 16 | -32 to 31 | `d * (-128 to 127)` | |
//! | `IQ1_S` | 32 | ±1, ±7, ±9 | `d / 8 * (1, 3, ... 15)` | |
//! | `IQ1_M` | 16 | ±1, ±7, ±9 | `d / 8 * (1, 3, ... 15)` | |
//! | `IQ2_XXS` | 32 | ±8, ±25, ±43 | `d / 8 * (1, 3, ... 31)` | |
//! | `IQ2_XS`, `IQ2_S` | 16 | ±8, ±25, ±43 | `d / 8 * (1, 3, ... 31)` | |
//! | `IQ3_XXS` | 32 | ±4, ±12, ... ±52, ±62 | `d / 4 * (1, 3, ... 31)` | |
//! | `IQ3_S` | 32 | ±1, ±3, ... ±15 | `d * (1, 3, ... 31)` | |
//! | `IQ4_NL` | 32 | 16 from -127 to 113 (table) | `d` | |
//! | `IQ4_XS` | 32 | 16 from -127 to 113 (table) | `d * (-32 to 31)` | |
//! | `TQ1_0` | 256 | -1 to 1 | `d` | |
//! | `TQ2_0` | 256 | -1 to 2 | `d` | |
//! | `MXFP4` | 32 | 0, ±1, ±2, ±3, ±4, ±6, ±8, ±12 (table) | power of two, 2⁻¹²⁸ to 2¹²⁷ | |
//! | `NVFP4` | 16 | as `MXFP4` | half of an unsigned E4M3 | |

mod affine;
mod codebook;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod legacy;
mod mxfp4;
mod nvfp4;
mod q1_0;
mod q2_0;
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
mod tq1_0;
mod tq2_0;

use half::f16;

use crate::Format;
pub use iq1_m::IQ1_M;
pub use iq1_s::IQ1_S;
pub use iq2_s::IQ2_S;
pub use iq2_xs::IQ2_XS;
pub use iq2_xxs::IQ2_XXS;
pub use iq3_s::IQ3_S;
pub use iq3_xxs::IQ3_XXS;
pub use iq4_nl::IQ4_NL;
pub use iq4_xs::IQ4_XS;
pub use mxfp4::MXFP4;
pub use nvfp4::NVFP4;
pub use q1_0::Q1_0;
pub use q2_0::Q2_0;
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
pub use tq1_0::TQ1_0;
pub use tq2_0::TQ2_0;

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
    /// What is subtracted from a code to get a level, in formats without a table.
    const OFFSET: i32 = 0;
    /// The level of each of the `2^BITS` codes, in formats where levels are not evenly spaced.
    const TABLE: Option<&'static [i8]> = None;

    /// The unsigned code of value `k`.
    fn code(block: &[u8], k: usize) -> u8;

    /// The whole number that the scale of value `k` is multiplied by.
    #[inline]
    fn level(block: &[u8], k: usize) -> i8 {
        let code = Self::code(block, k);
        match Self::TABLE {
            Some(table) => table[usize::from(code)],
            None => (i32::from(code) - Self::OFFSET) as i8,
        }
    }

    /// Scale and minimum of the group that value `k` is in.
    fn scale_min(block: &[u8], k: usize) -> (f32, f32);
}

/// A block format that values can be encoded in.
pub trait Encode: Block {
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
    f16::from_bits(u16_at(bytes, at)).to_f32()
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
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
