//! The packed form of every weight format: a few lines each.
//!
//! A *panel* is 16 consecutive rows of a matrix, a *unit* `UNIT` consecutive inputs of a panel. A unit is its *stripe*, the
//! scales of the 16 rows, and then the codes of one *block* of 32 inputs after the other; a panel is its units, a matrix
//! its panels. So a product reads memory from one end to the other, and everything starts on a cache line.
//!
//! The value of a code is `scale * (code - OFFSET)`, or with a minimum `scale * code - min`; scale and minimum belong to
//! `GROUP` inputs. Both `scale * code` and `scale * (code - OFFSET)` are exact in f32 for every format of GGUF (a scale is at most
//! an 11-bit number times a 7-bit one), so the one rounding at the subtraction is also that of the published decoders.

use super::arithmetic::Arithmetic;
use crate::memory::Line;
use crate::simd::Simd;
use std::marker::PhantomData;

/// A format as packed. `unit` is always the whole unit, `half` the half of the panel that a vector covers.
pub(crate) trait Packed: 'static {
    /// How its products are computed.
    type Arithmetic: Arithmetic;
    /// The same memory, multiplied with activations of 16 bits or more.
    type Wide: Packed;
    /// Inputs of a unit, a multiple of 32.
    const UNIT: usize;
    /// Lines of the stripe.
    const STRIPE: usize;
    /// Lines of the codes of 32 inputs.
    const BLOCK: usize;
    /// See [`Bits::JUMPS`](super::bits::Bits::JUMPS).
    const JUMPS: bool = false;
    /// Lines of a unit.
    const LINES: usize = Self::STRIPE + Self::UNIT / 32 * Self::BLOCK;
    /// What is subtracted from a code.
    const OFFSET: u8 = 0;

    /// Writes row `r` of a unit. `source` is that row's data in the original format, short at the end of a row.
    fn put(source: &[u8], r: usize, unit: &mut [Line]);
    /// Step `i` of block `b`: [`Arithmetic::INPUTS`] consecutive inputs of every row.
    fn step<S: Simd>(s: S, unit: &[Line], half: usize, b: usize, i: usize) -> S::I;
    /// Scales of group `g` of the unit.
    fn scale<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F;
    /// Minima of group `g` of the unit, to be subtracted.
    fn min<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
        let _ = (unit, half, g);
        s.splat(0.0)
    }
}

/// Codes of a format, read as pairs of 16-bit integers; if [`Simd::PLANES`] as they are, the even steps of a quad being for the low
/// and the odd ones for the high bytes of the activations.
pub(crate) struct Wide<C, A>(PhantomData<(C, A)>);

impl<C: Packed, A: Arithmetic> Packed for Wide<C, A> {
    type Arithmetic = A;
    type Wide = Self;
    const UNIT: usize = C::UNIT;
    const STRIPE: usize = C::STRIPE;
    const BLOCK: usize = C::BLOCK;
    const JUMPS: bool = C::JUMPS;
    const OFFSET: u8 = C::OFFSET;

    fn put(source: &[u8], r: usize, unit: &mut [Line]) {
        C::put(source, r, unit);
    }
    #[inline(always)]
    fn step<S: Simd>(s: S, unit: &[Line], half: usize, b: usize, i: usize) -> S::I {
        let quad = C::step(s, unit, half, b, i / 2);
        if S::PLANES {
            quad
        } else if i.is_multiple_of(2) {
            s.even_bytes(quad)
        } else {
            s.odd_bytes(quad)
        }
    }
    #[inline(always)]
    fn scale<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
        C::scale(s, unit, half, g)
    }
    #[inline(always)]
    fn min<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
        C::min(s, unit, half, g)
    }
}

// Stripe entries: 16 numbers, at a constant byte offset that is a multiple of their total size.

#[inline(always)]
fn entry<const N: usize>(unit: &[Line], at: usize) -> &[u8; N] {
    let line: &[u8; 64] = &unit[at / 64].0;
    match line[at % 64..].first_chunk() {
        Some(entry) => entry,
        None => unreachable!("entries do not cross lines"),
    }
}
#[inline(always)]
fn f16<S: Simd>(s: S, unit: &[Line], half: usize, at: usize) -> S::F {
    s.f16(entry(unit, at), half)
}
#[inline(always)]
fn u8<S: Simd>(s: S, unit: &[Line], half: usize, at: usize) -> S::I {
    s.u8(entry(unit, at), half)
}
#[inline(always)]
fn i8<S: Simd>(s: S, unit: &[Line], half: usize, at: usize) -> S::I {
    s.i8(entry(unit, at), half)
}
#[inline(always)]
fn put_u8(unit: &mut [Line], at: usize, r: usize, v: u8) {
    unit[at / 64].0[at % 64 + r] = v;
}
#[inline(always)]
fn put_u16(unit: &mut [Line], at: usize, r: usize, v: u16) {
    unit[at / 64].0[at % 64 + 2 * r..][..2].copy_from_slice(&v.to_le_bytes());
}

#[inline(always)]
fn half_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}
#[inline(always)]
fn word_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Formats with blocks of 32: a half-precision scale, maybe a minimum to add, codes. Two blocks make a unit.
macro_rules! block32 {
    ($name:ident, $bytes:literal, $bits:ty, $arithmetic:ty, offset $offset:literal, $quads:expr) => {
        pub(crate) struct $name;
        impl Packed for $name {
            type Arithmetic = $arithmetic;
            type Wide = Wide<Self, Pairs<{ <$arithmetic>::GROUP }, { <$arithmetic>::MIN }>>;
            const UNIT: usize = 64;
            const STRIPE: usize = if <$arithmetic>::MIN { 2 } else { 1 };
            const BLOCK: usize = <$bits>::LINES;
            const JUMPS: bool = <$bits>::JUMPS;
            const OFFSET: u8 = $offset;

            #[inline(always)]
            fn put(source: &[u8], r: usize, unit: &mut [Line]) {
                for (b, block) in source.as_chunks::<$bytes>().0.iter().enumerate() {
                    put_u16(unit, 32 * b, r, half_at(block, 0));
                    if <$arithmetic>::MIN {
                        // Stored negated: our minima are subtracted.
                        put_u16(unit, 64 + 32 * b, r, half_at(block, 2) ^ 0x8000);
                    }
                    let quads: [u32; 8] = $quads(block);
                    <$bits>::put(&quads, r, &mut unit[Self::STRIPE + b * Self::BLOCK..][..Self::BLOCK]);
                }
            }
            #[inline(always)]
            fn step<S: Simd>(s: S, unit: &[Line], half: usize, b: usize, i: usize) -> S::I {
                <$bits>::quad(s, &unit[Self::STRIPE + b * Self::BLOCK..][..Self::BLOCK], half, i)
            }
            #[inline(always)]
            fn scale<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
                f16(s, unit, half, 32 * g)
            }
            #[inline(always)]
            fn min<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
                if <$arithmetic>::MIN { f16(s, unit, half, 64 + 32 * g) } else { s.splat(0.0) }
            }
        }
    };
}

/// All others: `$count` blocks make a unit. `put` writes the stripe's entries of block `i`; `quads` are those of 32 inputs of a
/// block.
macro_rules! blocks {
    ($name:ident, $count:literal of $bytes:literal bytes in $unit:literal, stripe $stripe:expr,
     $bits:ty, $arithmetic:ty, offset $offset:expr,
     put: $put:expr, quads: $quads:expr, scale: $scale:expr, min: $min:expr) => {
        pub(crate) struct $name;
        impl Packed for $name {
            type Arithmetic = $arithmetic;
            type Wide = Wide<Self, Pairs<{ <$arithmetic>::GROUP }, { <$arithmetic>::MIN }>>;
            const UNIT: usize = $unit;
            const STRIPE: usize = $stripe;
            const BLOCK: usize = <$bits>::LINES;
            const JUMPS: bool = <$bits>::JUMPS;
            const OFFSET: u8 = $offset;

            #[inline(always)]
            fn put(source: &[u8], r: usize, unit: &mut [Line]) {
                const BLOCKS: usize = $unit / $count / 32;
                for (i, block) in source.as_chunks::<$bytes>().0.iter().enumerate() {
                    $put(block, i, r, &mut *unit);
                    for b in 0..BLOCKS {
                        let quads: [u32; 8] = $quads(block, b);
                        let at = Self::STRIPE + (i * BLOCKS + b) * Self::BLOCK;
                        <$bits>::put(&quads, r, &mut unit[at..][..Self::BLOCK]);
                    }
                }
            }
            #[inline(always)]
            fn step<S: Simd>(s: S, unit: &[Line], half: usize, b: usize, i: usize) -> S::I {
                <$bits>::quad(s, &unit[Self::STRIPE + b * Self::BLOCK..][..Self::BLOCK], half, i)
            }
            #[inline(always)]
            fn scale<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
                $scale(s, unit, half, g)
            }
            #[inline(always)]
            fn min<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
                $min(s, unit, half, g)
            }
        }
    };
}

#[inline(always)]
fn no_min<S: Simd>(s: S, _: &[Line], _: usize, _: usize) -> S::F {
    s.splat(0.0)
}

mod blocks;
mod floats;
mod tables;

pub(crate) use blocks::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
pub(crate) use floats::{Bf16, Bf16Dot, F16, F32};
pub(crate) use tables::{
    Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs, Mxfp4, Nvfp4, Q1_0, Q2_0, Tq1_0, Tq2_0,
};

/// Runs an expression with `$f` as the packed form of a `cupola_quant::Format`, in which BF16 is read as floats.
macro_rules! with_format {
    ($format:expr, $f:ident => $body:expr) => {{
        use crate::products::formats as packed;
        use cupola_quant::Format;
        macro_rules! run {
            ($name:ident) => {{
                type $f = packed::$name;
                $body
            }};
        }
        match $format {
            Format::F32 => run!(F32),
            Format::F16 => run!(F16),
            Format::BF16 => run!(Bf16),
            Format::Q4_0 => run!(Q4_0),
            Format::Q4_1 => run!(Q4_1),
            Format::Q5_0 => run!(Q5_0),
            Format::Q5_1 => run!(Q5_1),
            Format::Q8_0 => run!(Q8_0),
            Format::Q2_K => run!(Q2K),
            Format::Q3_K => run!(Q3K),
            Format::Q4_K => run!(Q4K),
            Format::Q5_K => run!(Q5K),
            Format::Q6_K => run!(Q6K),
            Format::IQ1_S => run!(Iq1S),
            Format::IQ1_M => run!(Iq1M),
            Format::IQ2_XXS => run!(Iq2Xxs),
            Format::IQ2_XS => run!(Iq2Xs),
            Format::IQ2_S => run!(Iq2S),
            Format::IQ3_XXS => run!(Iq3Xxs),
            Format::IQ3_S => run!(Iq3S),
            Format::IQ4_NL => run!(Iq4Nl),
            Format::IQ4_XS => run!(Iq4Xs),
            Format::TQ1_0 => run!(Tq1_0),
            Format::TQ2_0 => run!(Tq2_0),
            Format::MXFP4 => run!(Mxfp4),
            Format::NVFP4 => run!(Nvfp4),
            Format::Q1_0 => run!(Q1_0),
            Format::Q2_0 => run!(Q2_0),
        }
    }};
}
pub(crate) use with_format;
