//! IQ2_XS: 256 values in 74 bytes.

use super::codebook::{self, even_signs, nibble, odd, signed_code};
use super::{Block, half_at, u16_at};
use crate::{Format, grids};

/// f16 `d`, 32 16-bit numbers, 8 bytes with a 4-bit `step` per group of 16. Value: `d * (2 * step + 1) / 8 * level`.
///
/// A 16-bit number stands for eight values: an entry number in the low nine bits, seven signs above.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct IQ2_XS;

impl Block for IQ2_XS {
    const FORMAT: Format = Format::IQ2_XS;
    const BITS: u32 = 8;
    const GROUP: usize = 16;
    const OFFSET: i32 = codebook::OFFSET;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        let run = u16_at(block, 2 + k / 8 * 2);
        let signs = even_signs((run >> 9) as u8);
        signed_code(grids::IQ2_XS[usize::from(run & 511)][k % 8], signs >> (k % 8))
    }

    #[inline]
    fn scale_min(block: &[u8], k: usize) -> (f32, f32) {
        (half_at(block, 0) * odd(nibble(&block[66..], k / 16)) * 0.125, 0.0)
    }
}
