//! IQ3_XXS: 256 values in 98 bytes.

use super::codebook::{self, even_signs, odd, signed_code};
use super::{Block, half_at, u32_at};
use crate::{Format, grids};

/// f16 `d`, 64 bytes of entry numbers (one per four values), then a 32-bit number per group of 32 with four times seven
/// signs and, in the top four bits, `step`. Value: `d * (2 * step + 1) / 4 * level`.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct IQ3_XXS;

impl Block for IQ3_XXS {
    const FORMAT: Format = Format::IQ3_XXS;
    const BITS: u32 = 8;
    const GROUP: usize = 32;
    const OFFSET: i32 = codebook::OFFSET;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        let signs = even_signs((u32_at(block, 66 + k / 32 * 4) >> (k % 32 / 8 * 7)) as u8 & 127);
        signed_code(grids::IQ3_XXS[usize::from(block[2 + k / 4])][k % 4], signs >> (k % 8))
    }

    #[inline]
    fn scale_min(block: &[u8], k: usize) -> (f32, f32) {
        let step = block[66 + k / 32 * 4 + 3] >> 4;
        (half_at(block, 0) * odd(step) * 0.25, 0.0)
    }
}
