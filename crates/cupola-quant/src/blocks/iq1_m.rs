//! IQ1_M: 256 values in 56 bytes.

use half::f16;

use super::codebook::{self, nibble, odd};
use super::iq1_s::shifted_code;
use super::{Block, u16_at};
use crate::{Format, grids};

/// 32 bytes of entry numbers (one per eight values), 16 bytes with a nibble per eight values, four 16-bit numbers.
/// Values as in `IQ1_S`, with a `step` per group of 16.
///
/// A nibble is three upper bits of the entry number and, on top, the sign of the shift. A 16-bit number is the `step` of
/// four groups and, in the top four bits, a quarter of the f16 `d`, lowest quarter first.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct IQ1_M;

impl Block for IQ1_M {
    const FORMAT: Format = Format::IQ1_M;
    const BITS: u32 = 8;
    const GROUP: usize = 16;
    const OFFSET: i32 = codebook::OFFSET;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        let high = u16::from(nibble(&block[32..48], k / 8));
        let entry = usize::from(block[k / 8]) | usize::from(high & 7) << 8;
        shifted_code(grids::IQ1[entry][k % 8], high & 8)
    }

    #[inline]
    fn scale_min(block: &[u8], k: usize) -> (f32, f32) {
        let number = |i: usize| u16_at(block, 48 + 2 * i);
        let d = (0..4).fold(0, |d, i| d | number(i) >> 12 << (4 * i));
        let step = (number(k / 64) >> (k % 64 / 16 * 3)) as u8 & 7;
        (f16::from_bits(d).to_f32() * odd(step) * 0.125, 0.0)
    }
}
