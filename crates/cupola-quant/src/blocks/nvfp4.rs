//! NVFP4: 64 values in 36 bytes.

use super::{Block, Encode};
use crate::{Format, fp4, fp8};

/// Values per group.
const GROUP: usize = 16;

/// 4 scale bytes, one per group of 16, then 8 bytes of E2M1 codes per group. Value: `scale * E2M1[code]`.
///
/// Byte `i` of a group holds value `i` below and value `i + 8` above. A scale is E4M3 without a sign: as in ggml, the top
/// bit is ignored, and a byte of 0x7f, a NaN elsewhere, is a scale of 0. (0xff is 480.) Levels are doubled to be whole
/// numbers, and the scale is halved. There is no scale for the whole tensor in a block: where a checkpoint has one, GGUF
/// stores it as a tensor of its own.
#[derive(Clone, Copy, Debug)]
pub struct NVFP4;

impl Block for NVFP4 {
    const FORMAT: Format = Format::NVFP4;
    const BITS: u32 = 4;
    const GROUP: usize = GROUP;
    const TABLE: Option<&'static [i8]> = Some(&fp4::E2M1_DOUBLED);

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        block[4 + k / 16 * 8 + k % 8] >> (k % 16 / 8 * 4) & 15
    }

    #[inline]
    fn scale_min(block: &[u8], k: usize) -> (f32, f32) {
        let scale = match block[k / 16] {
            0x7f => 0.0,
            byte => fp8::e4m3_magnitude(byte) * 0.5,
        };
        (scale, 0.0)
    }
}

impl Encode for NVFP4 {
    fn encode(values: &[f32], block: &mut [u8]) {
        let (scales, codes) = block.split_at_mut(4);
        let groups = values.as_chunks::<GROUP>().0;
        for ((values, scale), codes) in groups.iter().zip(scales).zip(codes.chunks_exact_mut(8)) {
            *scale = best_scale(values);
            let inverse = inverse(*scale);
            for (i, byte) in codes.iter_mut().enumerate() {
                *byte = fp4::encode_e2m1(values[i] * inverse) | fp4::encode_e2m1(values[i + 8] * inverse) << 4;
            }
        }
    }
}

/// The reciprocal of a scale, 0 of 0.
fn inverse(scale: u8) -> f32 {
    if scale == 0 { 0.0 } else { 1.0 / fp8::decode_e4m3(scale) }
}

/// The scale with the least squared error among those at which the largest value is from about 3 to 8.5. There are eight
/// scales to a factor of two, consecutive in their codes.
fn best_scale(values: &[f32; GROUP]) -> u8 {
    let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    let middle = fp8::encode_e4m3(largest / 6.0);
    let (mut best, mut least) = (0, values.iter().map(|value| value * value).sum());
    for scale in middle.saturating_sub(4).max(1)..=(middle + 8).min(fp8::E4M3_LARGEST) {
        let (factor, inverse) = (fp8::decode_e4m3(scale), inverse(scale));
        let error: f32 = values.iter().map(|value| (value - fp4::nearest_e2m1(value * inverse) * factor).powi(2)).sum();
        if error < least {
            (best, least) = (scale, error);
        }
    }
    best
}
