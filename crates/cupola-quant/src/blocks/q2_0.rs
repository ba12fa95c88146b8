//! Q2_0: 64 values in 18 bytes.

use super::symmetric::{self, Codes, Whole};
use super::{Block, Encode, half_at, inverse, put_half, search};
use crate::Format;

/// f16 scale `d`, 16 bytes of 2-bit codes, the first in the lowest bits of a byte. Value: `d * (code - 1)`.
///
/// Files exist that store blocks of 128 values under the same number in GGUF; they come from a program that used the
/// number before ggml did.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct Q2_0;

impl Block for Q2_0 {
    const FORMAT: Format = Format::Q2_0;
    const BITS: u32 = 2;
    const GROUP: usize = 64;
    const OFFSET: i32 = 1;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        block[2 + k / 4] >> (k % 4 * 2) & 3
    }

    #[inline]
    fn scale_min(block: &[u8], _k: usize) -> (f32, f32) {
        (half_at(block, 0), 0.0)
    }
}

impl Encode for Q2_0 {
    fn encode(values: &[f32], block: &mut [u8]) {
        // Levels -2 to 1 and the negative scale are the same as levels -1 to 2.
        let levels = Whole { limit: 2.0 };
        let d = search::half_scale(symmetric::best_scale(&values.as_chunks::<64>().0[0], levels));
        let inverse = inverse(d.to_f32());
        put_half(block, 0, -d);
        for (byte, values) in block[2..18].iter_mut().zip(values.chunks_exact(4)) {
            let code = |value: f32| (1.0 - levels.nearest(value * inverse)) as u8;
            *byte = values.iter().rev().fold(0, |codes, &value| codes << 2 | code(value));
        }
    }
}
