//! Q8_0: 32 values in 34 bytes.

use half::f16;

use super::{Block, Encode, half_at, inverse, put_half};
use crate::Format;

/// f16 scale `d`, 32 signed bytes `q`. Value: `d * q`. The unsigned code is `q + 128`.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct Q8_0;

impl Block for Q8_0 {
    const FORMAT: Format = Format::Q8_0;
    const BITS: u32 = 8;
    const GROUP: usize = 32;
    const OFFSET: i32 = 128;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        block[2 + k] ^ 0x80
    }

    #[inline]
    fn scale_min(block: &[u8], _k: usize) -> (f32, f32) {
        (half_at(block, 0), 0.0)
    }
}

impl Encode for Q8_0 {
    fn encode(values: &[f32], block: &mut [u8]) {
        let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        let scale = largest / 127.0;
        let inverse = inverse(scale);
        put_half(block, 0, f16::from_f32(scale));
        for (byte, value) in block[2..34].iter_mut().zip(values) {
            // Ties away from zero, as the format's first encoder did.
            *byte = ((value * inverse).round() as i8).cast_unsigned();
        }
    }
}
