//! MXFP4: 32 values in 17 bytes.

use super::{Block, Encode, legacy};
use crate::{Format, fp4};

/// Exponent byte `e`, 16 bytes of E2M1 codes in the order of `Q4_0`. Value: `2^(e - 127) * E2M1[code]`.
///
/// Levels are doubled to be whole numbers, so that the scale is `2^(e - 128)`. All 256 exponents count, as in ggml; in
/// the OCP specification of MX formats 255 is a NaN. Code 8, -0 elsewhere, decodes to the same as code 0.
#[derive(Clone, Copy, Debug)]
pub struct MXFP4;

/// The power of two with exponent `exponent`, which must be from -126 to 127.
fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

impl Block for MXFP4 {
    const FORMAT: Format = Format::MXFP4;
    const BITS: u32 = 4;
    const GROUP: usize = 32;
    const TABLE: Option<&'static [i8]> = Some(&fp4::E2M1_DOUBLED);

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        legacy::nibble(&block[1..], k)
    }

    #[inline]
    fn scale_min(block: &[u8], _k: usize) -> (f32, f32) {
        // 2^-128 and 2^-127 are below the normal numbers of f32.
        let bits = match block[0] {
            0 => 1 << 21,
            1 => 1 << 22,
            exponent => u32::from(exponent - 1) << 23,
        };
        (f32::from_bits(bits), 0.0)
    }
}

impl Encode for MXFP4 {
    /// Tries three exponents: that at which the largest value is from 4 to 8, where values above 6 are cut off, and
    /// both neighbours.
    fn encode(values: &[f32], block: &mut [u8]) {
        let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        let exponent = ((largest.to_bits() >> 23) as i32 - 127 - 2).max(-127);
        // Errors are compared in this unit, in which neither they nor their squares can overflow or vanish.
        let unit = power(-exponent);
        let (mut best, mut least) = (0, f32::INFINITY);
        for step in [0, 1, -1] {
            let error: f32 = (values.iter())
                .map(|value| {
                    let value = value * unit;
                    (value - fp4::nearest_e2m1(value * power(-step)) * power(step)).powi(2)
                })
                .sum();
            if error < least && exponent + step >= -127 {
                (best, least) = (step, error);
            }
        }
        let exponent = if largest == 0.0 { -127 } else { exponent + best };
        let mut codes = [0; 32];
        for (code, value) in codes.iter_mut().zip(values) {
            *code = fp4::encode_e2m1(value * unit * power(-best));
        }
        block[0] = (exponent + 127) as u8;
        legacy::put_nibbles(&codes, &mut block[1..17]);
    }
}
