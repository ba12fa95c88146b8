//! Q6_K: 256 values in 210 bytes.

use super::{Block, Encode, half_at, put_half, symmetric};
use crate::Format;

/// 128 bytes of low four bits, 64 bytes of upper two bits as in `Q2_K`, 16 signed bytes of scales, f16 `d`.
/// Value: `d * scale * (code - 32)`, one scale per group of 16.
///
/// Low byte `64 * h + i` holds value `128 * h + i` below and value `128 * h + 64 + i` above.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct Q6_K;

/// Byte and shift of the low four bits of value `k`.
#[inline]
fn four_bits(k: usize) -> (usize, usize) {
    (k / 128 * 64 + k % 64, k % 128 / 64 * 4)
}

impl Block for Q6_K {
    const FORMAT: Format = Format::Q6_K;
    const BITS: u32 = 6;
    const GROUP: usize = 16;
    const OFFSET: i32 = 32;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        let (low, low_shift) = four_bits(k);
        let (high, high_shift) = super::q2_k::two_bits(k);
        block[low] >> low_shift & 15 | (block[128 + high] >> high_shift & 3) << 4
    }

    #[inline]
    fn scale_min(block: &[u8], k: usize) -> (f32, f32) {
        (half_at(block, 208) * f32::from(block[192 + k / 16].cast_signed()), 0.0)
    }
}

impl Encode for Q6_K {
    fn encode(values: &[f32], block: &mut [u8]) {
        let fit = symmetric::fit::<16>(values, symmetric::Whole { limit: 32.0 }, 128.0);
        block[..192].fill(0);
        for (k, code) in fit.codes.into_iter().enumerate() {
            let code = (code + 32).cast_unsigned();
            let (low, low_shift) = four_bits(k);
            let (high, high_shift) = super::q2_k::two_bits(k);
            block[low] |= (code & 15) << low_shift;
            block[128 + high] |= code >> 4 << high_shift;
        }
        for (byte, scale) in block[192..208].iter_mut().zip(fit.scales) {
            *byte = scale.cast_unsigned();
        }
        put_half(block, 208, fit.d);
    }
}
