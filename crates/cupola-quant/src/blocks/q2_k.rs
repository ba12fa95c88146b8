//! Q2_K: 256 values in 84 bytes.

use super::{Block, Encode, affine, half_at, put_half};
use crate::Format;

/// 16 bytes with a 4-bit scale (low) and a 4-bit minimum (high) per group of 16, 64 bytes of 2-bit codes, f16 `d`,
/// f16 `dmin`. Value: `d * scale * code - dmin * min`.
///
/// Code byte `32 * h + i` holds the values `128 * h + i + 32 * j` in bits `2 * j` and up, `j` from 0 to 3.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct Q2_K;

/// Byte and shift of the two bits of value `k`.
#[inline]
pub(super) fn two_bits(k: usize) -> (usize, usize) {
    (k / 128 * 32 + k % 32, k % 128 / 32 * 2)
}

impl Block for Q2_K {
    const FORMAT: Format = Format::Q2_K;
    const BITS: u32 = 2;
    const GROUP: usize = 16;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        let (byte, shift) = two_bits(k);
        block[16 + byte] >> shift & 3
    }

    #[inline]
    fn scale_min(block: &[u8], k: usize) -> (f32, f32) {
        let levels = block[k / 16];
        (half_at(block, 80) * f32::from(levels & 15), half_at(block, 82) * f32::from(levels >> 4))
    }
}

impl Encode for Q2_K {
    fn encode(values: &[f32], block: &mut [u8]) {
        let fit = affine::fit::<16>(values, affine::Limits { code: 3.0, level: 15.0 });
        block[..80].fill(0);
        for (byte, (scale, min)) in block.iter_mut().zip(fit.scales.iter().zip(fit.mins)) {
            *byte = scale | min << 4;
        }
        for (k, code) in fit.codes.into_iter().enumerate() {
            let (byte, shift) = two_bits(k);
            block[16 + byte] |= code << shift;
        }
        put_half(block, 80, fit.d);
        put_half(block, 82, fit.dmin);
    }
}
