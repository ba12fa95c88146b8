//! Floats.

use super::super::arithmetic::{Bf16Pairs, Float};
use super::super::bits::put_word;
use super::*;

/// Floats have no stripe, and units of 32 inputs.
macro_rules! float {
    ($name:ident, $lines:literal, $arithmetic:ty, wide $wide:ty, put: $put:expr, step: $step:expr) => {
        pub(crate) struct $name;
        impl Packed for $name {
            type Arithmetic = $arithmetic;
            type Wide = $wide;
            const UNIT: usize = 32;
            const STRIPE: usize = 0;
            const BLOCK: usize = $lines;
            #[inline(always)]
            fn put(source: &[u8], r: usize, unit: &mut [Line]) {
                $put(source, r, unit)
            }
            #[inline(always)]
            fn step<S: Simd>(s: S, unit: &[Line], half: usize, _: usize, i: usize) -> S::I {
                $step(s, unit, half, i)
            }
            #[inline(always)]
            fn scale<S: Simd>(s: S, _: &[Line], _: usize, _: usize) -> S::F {
                s.splat(1.0)
            }
        }
    };
}

/// Line `k` is input `k`.
#[inline(always)]
fn put_words(source: &[u8], r: usize, unit: &mut [Line]) {
    for (word, line) in source.as_chunks::<4>().0.iter().zip(unit) {
        put_word(line, r, u32::from_le_bytes(*word));
    }
}
float!(F32, 32, Float, wide Self, put: put_words, step: f32_step);

#[inline(always)]
fn f32_step<S: Simd>(s: S, unit: &[Line], half: usize, i: usize) -> S::I {
    s.load_i(&unit[i], half)
}

/// Half a line for each input.
#[inline(always)]
fn put_halves(source: &[u8], r: usize, unit: &mut [Line]) {
    let (pairs, rest) = source.as_chunks::<4>();
    for (pair, line) in pairs.iter().zip(&mut *unit) {
        line.0[2 * r..][..2].copy_from_slice(&pair[..2]);
        line.0[32 + 2 * r..][..2].copy_from_slice(&pair[2..]);
    }
    if let [low, high] = rest {
        unit[pairs.len()].0[2 * r..][..2].copy_from_slice(&[*low, *high]);
    }
}
float!(F16, 16, Float, wide Self, put: put_halves, step: f16_step);

#[inline(always)]
fn f16_step<S: Simd>(s: S, unit: &[Line], half: usize, i: usize) -> S::I {
    s.as_i(f16(s, unit, half, 32 * i))
}

/// Line `k` has inputs `2k` and `2k + 1` of each row side by side.
#[inline(always)]
fn put_pairs(source: &[u8], r: usize, unit: &mut [Line]) {
    let (pairs, rest) = source.as_chunks::<4>();
    put_words(pairs.as_flattened(), r, unit);
    if let [low, high] = rest {
        put_word(&mut unit[pairs.len()], r, u32::from_le_bytes([*low, *high, 0, 0]));
    }
}
// Two readings of the same memory.
float!(Bf16, 16, Float, wide Self, put: put_pairs, step: bf16_step);
float!(Bf16Dot, 16, Bf16Pairs, wide Bf16, put: put_pairs, step: f32_step);

#[inline(always)]
fn bf16_step<S: Simd>(s: S, unit: &[Line], half: usize, i: usize) -> S::I {
    let pair = s.load_i(&unit[i / 2], half);
    if i.is_multiple_of(2) { s.shl(pair, 16) } else { s.and(pair, s.splat_i(0xffff_0000)) }
}
