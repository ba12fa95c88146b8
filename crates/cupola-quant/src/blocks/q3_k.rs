//! Q3_K: 256 values in 110 bytes.

use super::q2_k::two_bits;
use super::{Block, Encode, half_at, put_half, symmetric};
use crate::Format;

/// 32 bytes of third bits, 64 bytes of low bits as in `Q2_K`, 12 bytes of 6-bit scales, f16 `d`.
/// Value: `d * (scale - 32) * (code - 4)`, one scale per group of 16.
///
/// The third bit of value `k` is bit `k / 32` of byte `k % 32`. The low four bits of scale `i` are in nibble `i / 8` of
/// scale byte `i % 8`, its upper two in bits `i / 4 * 2` and up of scale byte `8 + i % 4`.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct Q3_K;

impl Block for Q3_K {
    const FORMAT: Format = Format::Q3_K;
    const BITS: u32 = 3;
    const GROUP: usize = 16;
    const OFFSET: i32 = 4;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        let (byte, shift) = two_bits(k);
        block[32 + byte] >> shift & 3 | (block[k % 32] >> (k / 32) & 1) << 2
    }

    #[inline]
    fn scale_min(block: &[u8], k: usize) -> (f32, f32) {
        let (i, levels) = (k / 16, &block[96..108]);
        let level = levels[i % 8] >> (i / 8 * 4) & 15 | (levels[8 + i % 4] >> (i / 4 * 2) & 3) << 4;
        (half_at(block, 108) * (f32::from(level) - 32.0), 0.0)
    }
}

impl Encode for Q3_K {
    fn encode(values: &[f32], block: &mut [u8]) {
        let fit = symmetric::fit::<16>(values, symmetric::Whole { limit: 4.0 }, 32.0);
        block[..108].fill(0);
        for (k, code) in fit.codes.into_iter().enumerate() {
            let code = (code + 4).cast_unsigned();
            let (byte, shift) = two_bits(k);
            block[k % 32] |= code >> 2 << (k / 32);
            block[32 + byte] |= (code & 3) << shift;
        }
        for (i, scale) in fit.scales.into_iter().enumerate() {
            let level = (scale + 32).cast_unsigned();
            block[96 + i % 8] |= (level & 15) << (i / 8 * 4);
            block[104 + i % 4] |= level >> 4 << (i / 4 * 2);
        }
        put_half(block, 108, fit.d);
    }
}
