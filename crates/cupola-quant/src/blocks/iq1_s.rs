//! IQ1_S: 256 values in 50 bytes.

use super::codebook::{self, odd};
use super::{Block, half_at, u16_at};
use crate::{Format, grids};

/// f16 `d`, 32 bytes of entry numbers (one per eight values), and a 16-bit number per group of 32: four times three
/// upper bits of the entry numbers, a 3-bit `step`, the sign of a shift. Value: `d * (2 * step + 1) * (entry ± 1/8)`,
/// which is `d * (2 * step + 1) / 8 * level` with the whole number `level = 8 * entry ± 1`.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct IQ1_S;

/// The code of an entry's value, -1 to 1, shifted up or, if `down` is not 0, down.
#[inline]
pub(super) fn shifted_code(entry: i8, down: u16) -> u8 {
    codebook::code(8 * entry + if down == 0 { 1 } else { -1 })
}

impl Block for IQ1_S {
    const FORMAT: Format = Format::IQ1_S;
    const BITS: u32 = 8;
    const GROUP: usize = 32;
    const OFFSET: i32 = codebook::OFFSET;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        let group = u16_at(block, 34 + k / 32 * 2);
        let upper = group >> (k % 32 / 8 * 3) & 7;
        let entry = usize::from(block[2 + k / 8]) | usize::from(upper) << 8;
        shifted_code(grids::IQ1[entry][k % 8], group & 0x8000)
    }

    #[inline]
    fn scale_min(block: &[u8], k: usize) -> (f32, f32) {
        let step = block[34 + k / 32 * 2 + 1] >> 4 & 7;
        (half_at(block, 0) * odd(step) * 0.125, 0.0)
    }
}
