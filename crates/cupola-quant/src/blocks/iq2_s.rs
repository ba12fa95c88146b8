//! IQ2_S: 256 values in 82 bytes.

use super::codebook::{self, nibble, odd, signed_code};
use super::{Block, half_at};
use crate::{Format, grids};

/// f16 `d`, 32 bytes of entry numbers (one per eight values), 32 bytes of signs, 8 bytes with two upper bits of the
/// entry numbers, 8 bytes with a 4-bit `step` per group of 16. Value: `d * (2 * step + 1) / 8 * level`.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct IQ2_S;

impl Block for IQ2_S {
    const FORMAT: Format = Format::IQ2_S;
    const BITS: u32 = 8;
    const GROUP: usize = 16;
    const OFFSET: i32 = codebook::OFFSET;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        let run = k / 8;
        let upper = block[66 + run / 4] >> (run % 4 * 2) & 3;
        let entry = usize::from(block[2 + run]) | usize::from(upper) << 8;
        signed_code(grids::IQ2_S[entry][k % 8], block[34 + run] >> (k % 8))
    }

    #[inline]
    fn scale_min(block: &[u8], k: usize) -> (f32, f32) {
        (half_at(block, 0) * odd(nibble(&block[74..], k / 16)) * 0.125, 0.0)
    }
}
