//! IQ3_S: 256 values in 110 bytes.

use super::codebook::{self, nibble, odd, signed_code};
use super::{Block, half_at};
use crate::{Format, grids};

/// f16 `d`, 64 bytes of entry numbers (one per four values), 8 bytes with an upper bit of each, 32 bytes of signs,
/// 4 bytes with a 4-bit `step` per group of 32. Value: `d * (2 * step + 1) * level`.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct IQ3_S;

impl Block for IQ3_S {
    const FORMAT: Format = Format::IQ3_S;
    const BITS: u32 = 8;
    const GROUP: usize = 32;
    const OFFSET: i32 = codebook::OFFSET;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        let run = k / 4;
        let upper = block[66 + run / 8] >> (run % 8) & 1;
        let entry = usize::from(block[2 + run]) | usize::from(upper) << 8;
        signed_code(grids::IQ3_S[entry][k % 4], block[74 + k / 8] >> (k % 8))
    }

    #[inline]
    fn scale_min(block: &[u8], k: usize) -> (f32, f32) {
        (half_at(block, 0) * odd(nibble(&block[106..], k / 32)), 0.0)
    }
}
