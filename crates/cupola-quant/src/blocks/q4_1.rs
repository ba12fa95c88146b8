//! Q4_1: 32 values in 20 bytes.

use half::f16;

use super::{Block, Encode, half_at, legacy, put_half};
use crate::Format;

/// f16 scale `d`, f16 smallest value `m`, 16 bytes of 4-bit codes. Value: `d * code + m`.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct Q4_1;

impl Block for Q4_1 {
    const FORMAT: Format = Format::Q4_1;
    const BITS: u32 = 4;
    const GROUP: usize = 32;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        legacy::nibble(&block[4..], k)
    }

    #[inline]
    fn scale_min(block: &[u8], _k: usize) -> (f32, f32) {
        (half_at(block, 0), -half_at(block, 2))
    }
}

impl Encode for Q4_1 {
    fn encode(values: &[f32], block: &mut [u8]) {
        let (scale, low, codes) = legacy::range_codes(values, 15);
        put_half(block, 0, f16::from_f32(scale));
        put_half(block, 2, f16::from_f32(low));
        legacy::put_nibbles(&codes, &mut block[4..20]);
    }
}
