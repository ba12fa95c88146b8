//! Formats whose levels come from tables and codebooks, and those of one or two bits.
//!
//! Codes of a table stay as they are. A codebook names several values with one number, which a product cannot take: they are
//! packed one by one, as numbers of their levels. Their packed size by that of the original: `IQ1_S` 2.16, `IQ1_M` 2.07, `IQ2_XXS`
//! 1.64, `IQ2_XS` 1.57, `IQ2_S` 1.41, `IQ3_XXS` 1.43, `IQ3_S` 1.27.

use super::super::arithmetic::{Codes, Pairs};
use super::super::bits::{Bits, Bits2, Bits3, Bits4, Signs};
use super::super::levels::{self, E2M1, Iq1, Iq2, Iq4, Levels, Table};
use super::blocks::{k_pair_quads, nibble_quads, signed_scale, spread_bits};
use super::*;
use cupola_quant::blocks::{self as quant, Block};

block32!(Iq4Nl, 18, Levels<Bits4, Iq4>, Codes<32, false, true>, offset 128, |b: &[u8; 18]| nibble_quads(&b[2..]));

blocks!(Iq4Xs, 1 of 136 bytes in 256, stripe 3, Levels<Bits4, Iq4>, Codes<32, false, true>, offset 128,
    put: |block: &[u8; 136], _, r, unit: &mut [Line]| {
        put_u16(unit, 0, r, half_at(block, 0));
        for i in 0..8 {
            let upper = (half_at(block, 2) >> (2 * i)) as u8 & 3;
            let scale = nibble(block, 4, i) | upper << 4;
            put_u8(unit, 32 + 16 * i, r, scale.wrapping_sub(32));
        }
    },
    quads: |block: &[u8; 136], b: usize| nibble_quads(&block[8 + 16 * b..]),
    scale: signed_scale, min: no_min);

// Powers of two from 2^-128: their f32 bits, of which only the upper 16 are set, in two planes of bytes.
blocks!(Mxfp4, 2 of 17 bytes in 64, stripe 1, Levels<Bits4, E2M1>, Codes<32, false>, offset 12,
    put: |block: &[u8; 17], i, r, unit: &mut [Line]| {
        let bits = match block[0] {
            0 => 0x0020, // subnormal
            1 => 0x0040,
            exponent => u16::from(exponent - 1) << 7,
        };
        put_u8(unit, 32 * i, r, bits as u8);
        put_u8(unit, 32 * i + 16, r, (bits >> 8) as u8);
    },
    quads: |block: &[u8; 17], _| nibble_quads(&block[1..]),
    scale: power_scale, min: no_min);

#[inline(always)]
fn power_scale<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
    let (low, high) = (u8(s, unit, half, 32 * g), u8(s, unit, half, 32 * g + 16));
    s.as_f(s.or(s.shl(low, 16), s.shl(high, 24)))
}

blocks!(Nvfp4, 1 of 36 bytes in 64, stripe 1, Levels<Bits4, E2M1>, Codes<16, false>, offset 12,
    put: |block: &[u8; 36], _, r, unit: &mut [Line]| {
        for i in 0..4 {
            // The sign is ignored, and what would be NaN is 0.
            put_u8(unit, 16 * i, r, if block[i] == 0x7f { 0 } else { block[i] & 0x7f });
        }
    },
    quads: |block: &[u8; 36], b: usize| {
        let mut q = [0; 8];
        for (i, q) in q.iter_mut().enumerate() {
            // Eight bytes for each group of 16, the first eight inputs in the low halves.
            *q = word_at(block, 4 + 16 * b + i / 4 * 8 + i % 2 * 4) >> (i / 2 % 2 * 4) & 0x0f0f_0f0f;
        }
        q
    },
    scale: e4m3_scale, min: no_min);

/// Half of an E4M3 number: moved to the place of an f32's bits it is 2^120 times too small, exactly so below its normal numbers too.
#[inline(always)]
fn e4m3_scale<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
    let number = s.as_f(s.shl(u8(s, unit, half, 16 * g), 20));
    s.mul(number, s.splat(f32::from_bits((127 + 119) << 23)))
}

/// Four codes of two bits each, a byte each.
#[inline(always)]
fn spread_pairs(codes: u8) -> u32 {
    let v = u32::from(codes);
    (v | v << 6 | v << 12 | v << 18) & 0x0303_0303
}

blocks!(Q1_0, 2 of 18 bytes in 256, stripe 1, Signs, Codes<32, false>, offset 1,
    put: |block: &[u8; 18], i, r, unit: &mut [Line]| put_u16(unit, 32 * i, r, half_at(block, 0)),
    quads: |block: &[u8; 18], b: usize| std::array::from_fn(|i| spread_bits(word_at(block, 2 + 4 * b) >> (4 * i))),
    scale: q1_scale, min: no_min);

#[inline(always)]
fn q1_scale<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
    f16(s, unit, half, 32 * (g / 4))
}

blocks!(Q2_0, 2 of 18 bytes in 128, stripe 1, Bits2, Codes<32, false>, offset 1,
    put: |block: &[u8; 18], i, r, unit: &mut [Line]| put_u16(unit, 32 * i, r, half_at(block, 0)),
    quads: |block: &[u8; 18], b: usize| std::array::from_fn(|i| spread_pairs(block[2 + 8 * b + i])),
    scale: q2_scale, min: no_min);

#[inline(always)]
fn q2_scale<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
    f16(s, unit, half, 32 * (g / 2))
}

// Base-3 digits become two bits: 1.26 times as large.
blocks!(Tq1_0, 1 of 54 bytes in 256, stripe 1, Bits2, Codes<32, false>, offset 1,
    put: |block: &[u8; 54], _, r, unit: &mut [Line]| put_u16(unit, 0, r, half_at(block, 52)),
    quads: |block: &[u8; 54], b: usize| {
        let code = |k| quant::TQ1_0::code(block, k);
        std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|j| code(32 * b + 4 * i + j))))
    },
    scale: only_scale, min: no_min);

blocks!(Tq2_0, 1 of 66 bytes in 256, stripe 1, Bits2, Codes<32, false>, offset 1,
    put: |block: &[u8; 66], _, r, unit: &mut [Line]| put_u16(unit, 0, r, half_at(block, 64)),
    quads: |block: &[u8; 66], b: usize| k_pair_quads(block, b),
    scale: only_scale, min: no_min);

#[inline(always)]
fn only_scale<S: Simd>(s: S, unit: &[Line], half: usize, _: usize) -> S::F {
    f16(s, unit, half, 0)
}

/// Formats with codebooks: values are looked up, and packed as the numbers of their levels, of which there are at most 8 or 16. The scale of
/// a group is `d * (2 * step + 1)` over `$over`; d at 0, the odd numbers from 32 on.
macro_rules! codebook {
    ($name:ident, $block:ident of $bytes:literal bytes, group $group:literal, $bits:ty, $levels:ty, over $over:literal,
     d: $d:expr, step: $step:expr) => {
        blocks!($name, 1 of $bytes bytes in 256, stripe (32 + 16 * (256 / $group)) / 64usize + 1,
            Levels<$bits, $levels>, Codes<$group, false>, offset <$levels>::OFFSET,
            put: |block: &[u8; $bytes], _, r, unit: &mut [Line]| {
                put_u16(unit, 0, r, $d(block));
                for i in 0..256 / $group {
                    let step: u8 = $step(block, i);
                    put_u8(unit, 32 + 16 * i, r, 2 * step + 1);
                }
            },
            quads: |block: &[u8; $bytes], b: usize| {
                let code = |k| <$levels>::CODES[usize::from(quant::$block::code(block, k))];
                std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|j| code(32 * b + 4 * i + j))))
            },
            scale: odd_scale::<$over, _>, min: no_min);
    };
}

#[inline(always)]
fn odd_scale<const OVER: u8, S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
    let d = s.mul(f16(s, unit, half, 0), s.splat(1.0 / f32::from(OVER)));
    s.mul(d, s.to_f(u8(s, unit, half, 32 + 16 * g)))
}

/// Four bits of the low or high half of a byte: entry `i` of the numbers from `at` on.
#[inline(always)]
fn nibble(block: &[u8], at: usize, i: usize) -> u8 {
    block[at + i / 2] >> (4 * (i % 2)) & 15
}

codebook!(Iq1S, IQ1_S of 50 bytes, group 32, Bits3, Iq1, over 8,
    d: |block: &[u8; 50]| half_at(block, 0),
    step: |block: &[u8; 50], i: usize| block[34 + 2 * i + 1] >> 4 & 7);
codebook!(Iq1M, IQ1_M of 56 bytes, group 16, Bits3, Iq1, over 8,
    d: |block: &[u8; 56]| (0..4).fold(0, |d, i| d | half_at(block, 48 + 2 * i) >> 12 << (4 * i)),
    step: |block: &[u8; 56], i: usize| (half_at(block, 48 + 2 * (i / 4)) >> (3 * (i % 4)) & 7) as u8);
codebook!(Iq2Xxs, IQ2_XXS of 66 bytes, group 32, Bits3, Iq2, over 8,
    d: |block: &[u8; 66]| half_at(block, 0),
    step: |block: &[u8; 66], i: usize| block[2 + 8 * i + 7] >> 4);
codebook!(Iq2Xs, IQ2_XS of 74 bytes, group 16, Bits3, Iq2, over 8,
    d: |block: &[u8; 74]| half_at(block, 0),
    step: |block: &[u8; 74], i| nibble(block, 66, i));
codebook!(Iq2S, IQ2_S of 82 bytes, group 16, Bits3, Iq2, over 8,
    d: |block: &[u8; 82]| half_at(block, 0),
    step: |block: &[u8; 82], i| nibble(block, 74, i));
codebook!(Iq3Xxs, IQ3_XXS of 98 bytes, group 32, Bits4, levels::Iq3Xxs, over 4,
    d: |block: &[u8; 98]| half_at(block, 0),
    step: |block: &[u8; 98], i: usize| block[66 + 4 * i + 3] >> 4);
codebook!(Iq3S, IQ3_S of 110 bytes, group 32, Bits4, levels::Iq3S, over 1,
    d: |block: &[u8; 110]| half_at(block, 0),
    step: |block: &[u8; 110], i| nibble(block, 106, i));
