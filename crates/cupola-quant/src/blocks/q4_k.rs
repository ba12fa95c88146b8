//! Q4_K: 256 values in 144 bytes.

use super::{Block, Encode, affine, half_at, put_half};
use crate::Format;

/// f16 `d`, f16 `dmin`, 12 bytes of 6-bit scales and minima, 128 bytes of 4-bit codes.
/// Value: `d * scale * code - dmin * min`, one scale and minimum per group of 32.
///
/// Code byte `32 * h + i` holds value `64 * h + i` below and value `64 * h + 32 + i` above.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct Q4_K;

/// The 6-bit scale and minimum of group `group` (0 to 7) from the 12 bytes that `Q4_K` and `Q5_K` store.
///
/// Groups 0 to 3 have their scale in the low six bits of byte `group` and their minimum in those of byte `group + 4`.
/// Groups 4 to 7 have the low four bits of both in byte `group + 4`, and the upper two in the top bits of the bytes of
/// group `group - 4`.
///
/// # Panics
///
/// If `levels` is shorter than 12 bytes or `group` is above 7.
#[inline]
pub fn level_min(levels: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        return (levels[group] & 63, levels[group + 4] & 63);
    }
    let low = levels[group + 4];
    (low & 15 | levels[group - 4] >> 6 << 4, low >> 4 | levels[group] >> 6 << 4)
}

/// Stores what [`level_min`] reads: 8 scales and 8 minima below 64.
pub(super) fn put_level_min(scales: &[u8], mins: &[u8], levels: &mut [u8]) {
    for group in 0..4 {
        levels[group] = scales[group] | scales[group + 4] >> 4 << 6;
        levels[group + 4] = mins[group] | mins[group + 4] >> 4 << 6;
        levels[group + 8] = scales[group + 4] & 15 | mins[group + 4] << 4;
    }
}

/// The low four bits of code `k`.
#[inline]
pub(super) fn nibble(nibbles: &[u8], k: usize) -> u8 {
    nibbles[k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15
}

pub(super) fn put_nibbles(codes: &[u8; 256], nibbles: &mut [u8]) {
    for (bytes, codes) in nibbles.chunks_exact_mut(32).zip(codes.chunks_exact(64)) {
        let (below, above) = codes.split_at(32);
        for (byte, (below, above)) in bytes.iter_mut().zip(below.iter().zip(above)) {
            *byte = below & 15 | above << 4;
        }
    }
}

impl Block for Q4_K {
    const FORMAT: Format = Format::Q4_K;
    const BITS: u32 = 4;
    const GROUP: usize = 32;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        nibble(&block[16..], k)
    }

    #[inline]
    fn scale_min(block: &[u8], k: usize) -> (f32, f32) {
        let (scale, min) = level_min(&block[4..16], k / 32);
        (half_at(block, 0) * f32::from(scale), half_at(block, 2) * f32::from(min))
    }
}

impl Encode for Q4_K {
    fn encode(values: &[f32], block: &mut [u8]) {
        let fit = affine::fit::<32>(values, affine::Limits { code: 15.0, level: 63.0 });
        put_half(block, 0, fit.d);
        put_half(block, 2, fit.dmin);
        put_level_min(&fit.scales, &fit.mins, &mut block[4..16]);
        put_nibbles(&fit.codes, &mut block[16..144]);
    }
}
