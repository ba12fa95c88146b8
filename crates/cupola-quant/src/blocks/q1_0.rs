//! Q1_0: 128 values in 18 bytes.

use half::f16;

use super::{Block, Encode, half_at, put_half};
use crate::Format;

/// f16 scale `d`, 16 bytes of 1-bit codes, the first in the lowest bit of a byte. Value: `d` where the bit is set, `-d`
/// where it is not.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct Q1_0;

impl Block for Q1_0 {
    const FORMAT: Format = Format::Q1_0;
    const BITS: u32 = 1;
    const GROUP: usize = 128;
    const TABLE: Option<&'static [i8]> = Some(&[-1, 1]);

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        block[2 + k / 8] >> (k % 8) & 1
    }

    #[inline]
    fn scale_min(block: &[u8], _k: usize) -> (f32, f32) {
        (half_at(block, 0), 0.0)
    }
}

impl Encode for Q1_0 {
    /// The scale with the least squared error is the mean magnitude.
    fn encode(values: &[f32], block: &mut [u8]) {
        let total: f32 = values.iter().map(|value| value.abs()).sum();
        put_half(block, 0, f16::from_f32(total / 128.0));
        for (byte, values) in block[2..18].iter_mut().zip(values.chunks_exact(8)) {
            *byte = values.iter().rev().fold(0, |bits, &value| bits << 1 | u8::from(value >= 0.0));
        }
    }
}
