//! IQ4_XS: 256 values in 136 bytes.

use super::iq4_nl::{IQ4_NL, Uneven, nearest_code};
use super::{Block, Encode, codebook, half_at, legacy, put_half, symmetric, u16_at};
use crate::Format;

/// f16 `d`, a 16-bit number with the upper two bits of 6-bit scales, 4 bytes with their low four bits, 128 bytes of 4-bit
/// codes. Value: `d * (scale - 32) * level`, one scale per group of 32, levels as in `IQ4_NL`.
///
/// The codes of a group are 16 bytes in the order of `IQ4_NL`.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct IQ4_XS;

impl Block for IQ4_XS {
    const FORMAT: Format = Format::IQ4_XS;
    const BITS: u32 = 4;
    const GROUP: usize = 32;
    const TABLE: Option<&'static [i8]> = IQ4_NL::TABLE;

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        legacy::nibble(&block[8 + k / 32 * 16..], k % 32)
    }

    #[inline]
    fn scale_min(block: &[u8], k: usize) -> (f32, f32) {
        let group = k / 32;
        let upper = (u16_at(block, 2) >> (2 * group)) as u8 & 3;
        let scale = codebook::nibble(&block[4..8], group) | upper << 4;
        (half_at(block, 0) * (f32::from(scale) - 32.0), 0.0)
    }
}

impl Encode for IQ4_XS {
    fn encode(values: &[f32], block: &mut [u8]) {
        let fit = symmetric::fit::<32>(values, Uneven, 32.0);
        put_half(block, 0, fit.d);
        block[2..8].fill(0);
        for (group, &scale) in fit.scales[..8].iter().enumerate() {
            let scale = (scale + 32).cast_unsigned();
            block[2 + group / 4] |= scale >> 4 << (group % 4 * 2);
            block[4 + group / 2] |= (scale & 15) << (group % 2 * 4);
        }
        for (levels, nibbles) in fit.codes.as_chunks::<32>().0.iter().zip(block[8..136].chunks_exact_mut(16)) {
            legacy::put_nibbles(&levels.map(|level| nearest_code(f32::from(level))), nibbles);
        }
    }
}
