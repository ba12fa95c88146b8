//! What the formats with one scale per 32 values share: the nibble order and the plain encoding rules.

use super::{extreme, inverse};

/// Values per block.
pub const LEN: usize = 32;

/// Low four bits of code `k`: byte `i` of `nibbles` holds value `i` below and value `i + 16` above.
#[inline]
pub fn nibble(nibbles: &[u8], k: usize) -> u8 {
    nibbles[k % 16] >> (4 * (k / 16)) & 15
}

/// Bit 4 of code `k`: bit `k` of the 32-bit number `high`.
#[inline]
pub fn fifth_bit(high: &[u8], k: usize) -> u8 {
    (high[k / 8] >> (k % 8) & 1) << 4
}

pub fn put_nibbles(codes: &[u8; LEN], nibbles: &mut [u8]) {
    for (i, byte) in nibbles.iter_mut().enumerate() {
        *byte = codes[i] & 15 | codes[i + 16] << 4;
    }
}

pub fn put_fifth_bits(codes: &[u8; LEN], high: &mut [u8]) {
    high.fill(0);
    for (k, code) in codes.iter().enumerate() {
        high[k / 8] |= code >> 4 << (k % 8);
    }
}

/// Scale and codes of formats without a minimum: the value of the largest magnitude (the first of equals) gets the
/// code 0, which stands for `-half`, and code `half` stands for zero.
pub fn extreme_codes(values: &[f32], half: u8) -> (f32, [u8; LEN]) {
    let scale = extreme(values) / -f32::from(half);
    let inverse = inverse(scale);
    let mut codes = [0; LEN];
    for (code, value) in codes.iter_mut().zip(values) {
        *code = ((value * inverse + (f32::from(half) + 0.5)) as u8).min(2 * half - 1);
    }
    (scale, codes)
}

/// Scale, smallest value and codes of formats with a minimum: codes 0 to `top` span the range of the values.
pub fn range_codes(values: &[f32], top: u8) -> (f32, f32, [u8; LEN]) {
    let low = values.iter().fold(f32::MAX, |low, &value| if value < low { value } else { low });
    let high = values.iter().fold(f32::MIN, |high, &value| if value > high { value } else { high });
    let scale = (high - low) / f32::from(top);
    let inverse = inverse(scale);
    let mut codes = [0; LEN];
    for (code, value) in codes.iter_mut().zip(values) {
        *code = (((value - low) * inverse + 0.5) as u8).min(top);
    }
    (scale, low, codes)
}
