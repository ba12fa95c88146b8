//! TQ1_0: 256 values in 54 bytes.

use half::f16;

use super::{Block, Encode, half_at, inverse, put_half};
use crate::Format;

/// 52 bytes of base-3 digits, f16 scale `d`. Value: `d * (digit - 1)`.
///
/// A byte holds five digits (the last four bytes: four) as a fraction of 256: multiplied by 3 it is the first digit times
/// 256 plus the rest. Digits of consecutive values are in consecutive bytes: bytes 0 to 31 hold the values 0 to 159,
/// digit by digit, bytes 32 to 47 the values 160 to 239, bytes 48 to 51 the values 240 to 255.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct TQ1_0;

const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// Byte of value `k`, and how many digits stand before its own.
#[inline]
fn place(k: usize) -> (usize, usize) {
    match k {
        0..160 => (k % 32, k / 32),
        160..240 => (32 + k % 16, (k - 160) / 16),
        _ => (48 + k % 4, (k - 240) / 4),
    }
}

/// The largest magnitude, and codes 0, 1, 2 for values nearest to minus that, to zero, and to that. Ties go away from
/// zero, as in the formats' first encoder.
pub(super) fn ternary_codes(values: &[f32]) -> (f32, [u8; 256]) {
    let scale = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    let inverse = inverse(scale);
    let mut codes = [0; 256];
    for (code, value) in codes.iter_mut().zip(values) {
        *code = ((value * inverse).round() + 1.0) as u8;
    }
    (scale, codes)
}

impl Block for TQ1_0 {
    const FORMAT: Format = Format::TQ1_0;
    const BITS: u32 = 2;
    const GROUP: usize = 256;
    const OFFSET: i32 = 1;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        let (byte, digit) = place(k);
        let rest = block[byte].wrapping_mul(POWERS[digit]);
        ((u16::from(rest) * 3) >> 8) as u8
    }

    #[inline]
    fn scale_min(block: &[u8], _k: usize) -> (f32, f32) {
        (half_at(block, 52), 0.0)
    }
}

impl Encode for TQ1_0 {
    fn encode(values: &[f32], block: &mut [u8]) {
        let (scale, codes) = ternary_codes(values);
        let mut numbers = [0u16; 52];
        for (k, code) in codes.into_iter().enumerate() {
            let (byte, digit) = place(k);
            numbers[byte] += u16::from(code) * u16::from(POWERS[4 - digit]);
        }
        for (byte, number) in block.iter_mut().zip(numbers) {
            // The smallest fraction of 256 that has these digits: rounded up.
            *byte = (number * 256).div_ceil(243) as u8;
        }
        put_half(block, 52, f16::from_f32(scale));
    }
}
