//! Q4_0: 32 values in 18 bytes.

use half::f16;

use super::{Block, Encode, half_at, legacy, put_half};
use crate::Format;

/// f16 scale `d`, 16 bytes of 4-bit codes. Value: `d * (code - 8)`.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct Q4_0;

impl Block for Q4_0 {
    const FORMAT: Format = Format::Q4_0;
    const BITS: u32 = 4;
    const GROUP: usize = 32;
    const OFFSET: i32 = 8;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        legacy::nibble(&block[2..], k)
    }

    #[inline]
    fn scale_min(block: &[u8], _k: usize) -> (f32, f32) {
        (half_at(block, 0), 0.0)
    }
}

impl Encode for Q4_0 {
    fn encode(values: &[f32], block: &mut [u8]) {
        let (scale, codes) = legacy::extreme_codes(values, 8);
        put_half(block, 0, f16::from_f32(scale));
        legacy::put_nibbles(&codes, &mut block[2..18]);
    }
}
