//! IQ2_XXS: 256 values in 66 bytes.

use super::codebook::{self, even_signs, odd, signed_code};
use super::{Block, half_at, u32_at};
use crate::{Format, grids};

/// f16 `d`, then per group of 32 four bytes of entry numbers and a 32-bit number with four times seven signs and, in the
/// top four bits, `step`. Value: `d * (2 * step + 1) / 8 * level`.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct IQ2_XXS;

impl Block for IQ2_XXS {
    const FORMAT: Format = Format::IQ2_XXS;
    const BITS: u32 = 8;
    const GROUP: usize = 32;
    const OFFSET: i32 = codebook::OFFSET;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        let (group, run) = (&block[2 + k / 32 * 8..], k % 32 / 8);
        let signs = even_signs((u32_at(group, 4) >> (7 * run)) as u8 & 127);
        signed_code(grids::IQ2_XXS[usize::from(group[run])][k % 8], signs >> (k % 8))
    }

    #[inline]
    fn scale_min(block: &[u8], k: usize) -> (f32, f32) {
        let step = block[2 + k / 32 * 8 + 7] >> 4;
        (half_at(block, 0) * odd(step) * 0.125, 0.0)
    }
}
