//! Eight-bit floating-point numbers: E4M3, E5M2 and the exponents E8M0.
//!
//! OCP 8-bit Floating Point specification 1.0 (E4M3 has no infinities, and a NaN of either sign; E5M2 is the upper half
//! of an f16) and OCP Microscaling Formats specification 1.0 (E8M0). GGUF's block formats deviate from these in the
//! codes for NaNs: see [`blocks::MXFP4`](crate::blocks::MXFP4) and [`blocks::NVFP4`](crate::blocks::NVFP4).

use half::f16;

/// The code of the largest E4M3 number, 448.
pub const E4M3_LARGEST: u8 = 0x7e;

/// The number that an E4M3 code stands for (bias 7). 0x7f and 0xff are NaNs.
#[inline]
pub fn decode_e4m3(code: u8) -> f32 {
    let magnitude = if code & 0x7f == 0x7f { f32::NAN } else { e4m3_magnitude(code) };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The magnitude of an E4M3 number, as if there were no NaNs.
#[inline]
pub(crate) fn e4m3_magnitude(code: u8) -> f32 {
    /// 2^120, the ratio of the units of E4M3 and f32: exponents of f32 are biased by 127 instead of 7.
    const UNIT: f32 = f32::from_bits((127 + 120) << 23);
    f32::from_bits(u32::from(code & 0x7f) << 20) * UNIT
}

/// The code of the E4M3 number nearest to `value`, the even code at ties. Numbers beyond 448 and infinities give ±448,
/// NaNs a NaN.
#[inline]
pub fn encode_e4m3(value: f32) -> u8 {
    /// The smallest normal number.
    const NORMAL: f32 = 1.0 / 64.0;
    let size = value.abs();
    let code = if value.is_nan() {
        0x7f
    } else if size < NORMAL {
        // Multiples of 2^-9; 8 is the code of the smallest normal number.
        (size * 512.0).round_ties_even() as u8
    } else if size >= 448.0 {
        E4M3_LARGEST
    } else {
        let bits = size.to_bits();
        let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
        ((rounded >> 20) - (120 << 3)) as u8
    };
    code | (value.to_bits() >> 31 << 7) as u8
}

/// The number that an E5M2 code stands for (bias 15), infinities and NaNs included.
#[inline]
pub fn decode_e5m2(code: u8) -> f32 {
    f16::from_bits(u16::from(code) << 8).to_f32()
}

/// The power of two that an E8M0 code stands for, `2^(code - 127)`; 255 is a NaN.
#[inline]
pub fn decode_e8m0(code: u8) -> f32 {
    match code {
        // 2^-127 is below the normal numbers of f32.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}
