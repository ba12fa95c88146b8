//! Q5_K: 256 values in 176 bytes.

use super::q4_k::{level_min, nibble, put_level_min, put_nibbles};
use super::{Block, Encode, affine, half_at, put_half};
use crate::Format;

/// As `Q4_K`, with 32 bytes of fifth bits between scales and codes: bit `k / 32` of byte `k % 32` is that of value `k`.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct Q5_K;

impl Block for Q5_K {
    const FORMAT: Format = Format::Q5_K;
    const BITS: u32 = 5;
    const GROUP: usize = 32;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        nibble(&block[48..], k) | (block[16 + k % 32] >> (k / 32) & 1) << 4
    }

    #[inline]
    fn scale_min(block: &[u8], k: usize) -> (f32, f32) {
        let (scale, min) = level_min(&block[4..16], k / 32);
        (half_at(block, 0) * f32::from(scale), half_at(block, 2) * f32::from(min))
    }
}

impl Encode for Q5_K {
    fn encode(values: &[f32], block: &mut [u8]) {
        let fit = affine::fit::<32>(values, affine::Limits { code: 31.0, level: 63.0 });
        put_half(block, 0, fit.d);
        put_half(block, 2, fit.dmin);
        put_level_min(&fit.scales, &fit.mins, &mut block[4..16]);
        block[16..48].fill(0);
        for (k, code) in fit.codes.iter().enumerate() {
            block[16 + k % 32] |= code >> 4 << (k / 32);
        }
        put_nibbles(&fit.codes, &mut block[48..176]);
    }
}
