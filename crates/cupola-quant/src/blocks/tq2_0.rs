//! TQ2_0: 256 values in 66 bytes.

use half::f16;

use super::q2_k::two_bits;
use super::{Block, Encode, half_at, put_half, tq1_0};
use crate::Format;

/// 64 bytes of 2-bit codes in the order of `Q2_K`, f16 scale `d`. Value: `d * (code - 1)`. Meant for weights that are
/// `-d`, 0 or `d`; code 3 does not occur in them.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct TQ2_0;

impl Block for TQ2_0 {
    const FORMAT: Format = Format::TQ2_0;
    const BITS: u32 = 2;
    const GROUP: usize = 256;
    const OFFSET: i32 = 1;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        let (byte, shift) = two_bits(k);
        block[byte] >> shift & 3
    }

    #[inline]
    fn scale_min(block: &[u8], _k: usize) -> (f32, f32) {
        (half_at(block, 64), 0.0)
    }
}

impl Encode for TQ2_0 {
    fn encode(values: &[f32], block: &mut [u8]) {
        let (scale, codes) = tq1_0::ternary_codes(values);
        block[..64].fill(0);
        for (k, code) in codes.into_iter().enumerate() {
            let (byte, shift) = two_bits(k);
            block[byte] |= code << shift;
        }
        put_half(block, 64, f16::from_f32(scale));
    }
}
