//! IQ4_NL: 32 values in 18 bytes.

use super::symmetric::{self, Codes};
use super::{Block, Encode, half_at, inverse, legacy, put_half, search};
use crate::Format;

/// f16 scale `d`, 16 bytes of 4-bit codes in the order of `Q4_0`. Value: `d * LEVELS[code]`.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct IQ4_NL;

/// What the codes of `IQ4_NL` and `IQ4_XS` stand for.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl Block for IQ4_NL {
    const FORMAT: Format = Format::IQ4_NL;
    const BITS: u32 = 4;
    const GROUP: usize = 32;
    const TABLE: Option<&'static [i8]> = Some(&LEVELS);

    #[inline]
    fn code(block: &[u8], k: usize) -> u8 {
        legacy::nibble(&block[2..], k)
    }

    #[inline]
    fn scale_min(block: &[u8], _k: usize) -> (f32, f32) {
        (half_at(block, 0), 0.0)
    }
}

impl Encode for IQ4_NL {
    fn encode(values: &[f32], block: &mut [u8]) {
        let d = search::half_scale(symmetric::best_scale(&values.as_chunks::<32>().0[0], Uneven));
        let mut codes = [0; 32];
        let inverse = inverse(d.to_f32());
        for (code, value) in codes.iter_mut().zip(values) {
            *code = nearest_code(value * inverse);
        }
        put_half(block, 0, d);
        legacy::put_nibbles(&codes, &mut block[2..18]);
    }
}

/// Half steps from the lowest level below zero, -128, to the highest above, 128: no two levels are nearest to numbers
/// within the same half step, as levels are whole and the middle of two is a multiple of a half.
const HALF_STEPS: usize = 512;

/// The code whose level is nearest to the numbers in each half step.
const NEAREST: [u8; HALF_STEPS] = {
    let mut nearest = [0; HALF_STEPS];
    let mut code = 0;
    let mut i = 0;
    while i < HALF_STEPS {
        // Twice the middle of this level and the next.
        while code < 15 && i as i32 - 256 >= LEVELS[code] as i32 + LEVELS[code + 1] as i32 {
            code += 1;
        }
        nearest[i] = code as u8;
        i += 1;
    }
    nearest
};

/// The code whose level is nearest to `value`, the upper one at ties.
#[inline]
pub(super) fn nearest_code(value: f32) -> u8 {
    let above = if value < -128.0 { -128.0 } else { value };
    let limited = if above > 127.0 { 127.0 } else { above };
    NEAREST[(limited * 2.0 + 256.0) as usize % HALF_STEPS]
}

/// The levels of `IQ4_NL` and `IQ4_XS`, for the least-squares search.
#[derive(Clone, Copy)]
pub(super) struct Uneven;

impl Codes for Uneven {
    #[inline]
    fn nearest(self, value: f32) -> f32 {
        const LEVELS_F32: [f32; 16] = {
            let mut levels = [0.0; 16];
            let mut i = 0;
            while i < 16 {
                levels[i] = LEVELS[i] as f32;
                i += 1;
            }
            levels
        };
        LEVELS_F32[usize::from(nearest_code(value) & 15)]
    }

    fn lowest(self) -> f32 {
        -127.0
    }

    /// From far inside the range to as far outside as a number can be and still be near an end.
    fn starts(self) -> [f32; 16] {
        const LOW: [f32; 8] = [-139.0, -133.0, -127.0, -121.0, -115.0, -108.0, -100.0, -90.0];
        const HIGH: [f32; 8] = [125.0, 119.0, 113.0, 107.0, 101.0, 95.0, 87.0, 79.0];
        std::array::from_fn(|i| if i % 2 == 0 { LOW[i / 2] } else { HIGH[i / 2] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the definition: no level is nearer than the one chosen.
    #[test]
    fn codes_are_nearest() {
        for i in -2000..=2000 {
            let value = i as f32 / 12.0;
            let distance = |level: i8| (f32::from(level) - value).abs();
            let chosen = distance(LEVELS[usize::from(nearest_code(value))]);
            let least = LEVELS.into_iter().map(distance).fold(f32::INFINITY, f32::min);
            assert_eq!(chosen, least, "{value}");
        }
        assert_eq!([f32::MIN, f32::MAX, -127.5, -115.5, -115.51].map(nearest_code), [0, 15, 0, 1, 0]);
    }
}
