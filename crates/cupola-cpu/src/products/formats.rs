//! The packed form of every weight format: a few lines each.
//!
//! A *panel* is 16 consecutive rows of a matrix, a *unit* `UNIT` consecutive inputs of a panel. A unit is its *stripe*, the
//! scales of the 16 rows, and then the codes of one *block* of 32 inputs after the other; a panel is its units, a matrix
//! its panels. So a product reads memory from one end to the other, and everything starts on a cache line.
//!
//! The value of a code is `scale * (code - OFFSET)`, or with a minimum `scale * code - min`; scale and minimum belong to
//! `GROUP` inputs. Both `scale * code` and `scale * (code - OFFSET)` are exact in f32 for every format of GGUF (a scale is at most
//! an 11-bit number times a 7-bit one), so the one rounding at the subtraction is also that of the published decoders.

use super::arithmetic::{Arithmetic, Bf16Pairs, Codes, Float, Pairs};
use super::bits::{Bits, Bits2, Bits3, Bits4, Bits5, Bits6, Bits8, put_word};
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

/// Codes of a format, read as pairs of 16-bit integers.
pub(crate) struct Wide<C, A>(PhantomData<(C, A)>);

impl<C: Packed, A: Arithmetic> Packed for Wide<C, A> {
    type Arithmetic = A;
    type Wide = Self;
    const UNIT: usize = C::UNIT;
    const STRIPE: usize = C::STRIPE;
    const BLOCK: usize = C::BLOCK;
    const OFFSET: u8 = C::OFFSET;

    fn put(source: &[u8], r: usize, unit: &mut [Line]) {
        C::put(source, r, unit);
    }
    #[inline(always)]
    fn step<S: Simd>(s: S, unit: &[Line], half: usize, b: usize, i: usize) -> S::I {
        let quad = C::step(s, unit, half, b, i / 2);
        if i.is_multiple_of(2) { s.even_bytes(quad) } else { s.odd_bytes(quad) }
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

/// GGUF's 32-value blocks keep input `j` in the low and `j + 16` in the high half of byte `j`.
#[inline(always)]
fn nibble_quads(codes: &[u8]) -> [u32; 8] {
    let mut q = [0; 8];
    for i in 0..4 {
        let word = word_at(codes, 4 * i);
        q[i] = word & 0x0f0f_0f0f;
        q[i + 4] = word >> 4 & 0x0f0f_0f0f;
    }
    q
}

/// Adds a fifth bit, from the bit of `bits` with the input's number.
#[inline(always)]
fn with_fifth_bit(mut q: [u32; 8], bits: u32) -> [u32; 8] {
    for (i, q) in q.iter_mut().enumerate() {
        // The multiplication copies bit j to bit 8j.
        *q |= ((bits >> (4 * i) & 15).wrapping_mul(0x0020_4081) & 0x0101_0101) << 4;
    }
    q
}

/// Formats with blocks of 32: a half-precision scale, maybe a minimum to add, codes. Two blocks make a unit.
macro_rules! block32 {
    ($name:ident, $bytes:literal, $bits:ident, $arithmetic:ty, offset $offset:literal, $quads:expr) => {
        pub(crate) struct $name;
        impl Packed for $name {
            type Arithmetic = $arithmetic;
            type Wide = Wide<Self, Pairs<{ <$arithmetic>::GROUP }, { <$arithmetic>::MIN }>>;
            const UNIT: usize = 64;
            const STRIPE: usize = if <$arithmetic>::MIN { 2 } else { 1 };
            const BLOCK: usize = $bits::LINES;
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
                    $bits::put(&quads, r, &mut unit[Self::STRIPE + b * Self::BLOCK..][..Self::BLOCK]);
                }
            }
            #[inline(always)]
            fn step<S: Simd>(s: S, unit: &[Line], half: usize, b: usize, i: usize) -> S::I {
                $bits::quad(s, &unit[Self::STRIPE + b * Self::BLOCK..][..Self::BLOCK], half, i)
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

block32!(Q4_0, 18, Bits4, Codes<32, false>, offset 8, |b: &[u8; 18]| nibble_quads(&b[2..]));
block32!(Q4_1, 20, Bits4, Codes<32, true>, offset 0, |b: &[u8; 20]| nibble_quads(&b[4..]));
block32!(Q5_0, 22, Bits5, Codes<32, false>, offset 16, |b: &[u8; 22]| with_fifth_bit(
    nibble_quads(&b[6..]),
    word_at(b, 2)
));
block32!(Q5_1, 24, Bits5, Codes<32, true>, offset 0, |b: &[u8; 24]| with_fifth_bit(
    nibble_quads(&b[8..]),
    word_at(b, 4)
));
block32!(Q8_0, 34, Bits8, Codes<32, false, true>, offset 128, |b: &[u8; 34]| {
    let mut q = [0; 8];
    for (i, q) in q.iter_mut().enumerate() {
        *q = word_at(b, 2 + 4 * i) ^ 0x8080_8080; // signed, plus 128
    }
    q
});

/// Formats with blocks of 256: a half-precision scale, maybe one for minima, times small integers for each group.
macro_rules! block256 {
    ($name:ident, $bytes:literal, $bits:ident, $arithmetic:ty, offset $offset:literal,
     put: $put:expr, quads: $quads:expr, scale: $scale:expr, min: $min:expr) => {
        pub(crate) struct $name;
        impl Packed for $name {
            type Arithmetic = $arithmetic;
            type Wide = Wide<Self, Pairs<{ <$arithmetic>::GROUP }, { <$arithmetic>::MIN }>>;
            const UNIT: usize = 256;
            const STRIPE: usize = 5;
            const BLOCK: usize = $bits::LINES;
            const OFFSET: u8 = $offset;

            #[inline(always)]
            fn put(source: &[u8], r: usize, unit: &mut [Line]) {
                let Some(block) = source.first_chunk::<$bytes>() else { return };
                $put(block, r, &mut *unit);
                for b in 0..8 {
                    let quads: [u32; 8] = $quads(block, b);
                    $bits::put(&quads, r, &mut unit[Self::STRIPE + b * Self::BLOCK..][..Self::BLOCK]);
                }
            }
            #[inline(always)]
            fn step<S: Simd>(s: S, unit: &[Line], half: usize, b: usize, i: usize) -> S::I {
                $bits::quad(s, &unit[Self::STRIPE + b * Self::BLOCK..][..Self::BLOCK], half, i)
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

/// Q4_K and Q5_K: d and dmin at 0 and 32, 8 scales at 64, 8 minima at 192.
#[inline(always)]
fn put_k_stripe(block: &[u8], r: usize, unit: &mut [Line]) {
    put_u16(unit, 0, r, half_at(block, 0));
    put_u16(unit, 32, r, half_at(block, 2));
    let b = &block[4..16];
    for i in 0..8 {
        // Six bits each: the first four in the low bits of bytes 0.. and 4.., the others split over two bytes.
        let (scale, min) = if i < 4 {
            (b[i] & 63, b[i + 4] & 63)
        } else {
            (b[i + 4] & 15 | b[i - 4] >> 6 << 4, b[i + 4] >> 4 | b[i] >> 6 << 4)
        };
        put_u8(unit, 64 + 16 * i, r, scale);
        put_u8(unit, 192 + 16 * i, r, min);
    }
}
#[inline(always)]
fn k_scale<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
    s.mul(f16(s, unit, half, 0), s.to_f(u8(s, unit, half, 64 + 16 * g)))
}
#[inline(always)]
fn k_min<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
    s.mul(f16(s, unit, half, 32), s.to_f(u8(s, unit, half, 192 + 16 * g)))
}
/// 64 inputs share 32 bytes: the first half has the low nibbles.
#[inline(always)]
fn k_nibble_quads(codes: &[u8], b: usize) -> [u32; 8] {
    let mut q = [0; 8];
    for (i, q) in q.iter_mut().enumerate() {
        *q = word_at(codes, b / 2 * 32 + 4 * i) >> (4 * (b % 2)) & 0x0f0f_0f0f;
    }
    q
}

block256!(Q4K, 144, Bits4, Codes<32, true>, offset 0,
    put: |block: &[u8; 144], r, unit: &mut [Line]| put_k_stripe(block, r, unit),
    quads: |block: &[u8; 144], b| k_nibble_quads(&block[16..], b),
    scale: k_scale, min: k_min);

block256!(Q5K, 176, Bits5, Codes<32, true>, offset 0,
    put: |block: &[u8; 176], r, unit: &mut [Line]| put_k_stripe(block, r, unit),
    quads: |block: &[u8; 176], b: usize| {
        let mut q = k_nibble_quads(&block[48..], b);
        for (i, q) in q.iter_mut().enumerate() {
            *q |= (word_at(block, 16 + 4 * i) >> b & 0x0101_0101) << 4;
        }
        q
    },
    scale: k_scale, min: k_min);

/// Q3_K and Q6_K: d at 0, 16 signed scales at 32.
#[inline(always)]
fn signed_scale<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
    s.mul(f16(s, unit, half, 0), s.to_f(i8(s, unit, half, 32 + 16 * g)))
}

block256!(Q6K, 210, Bits6, Codes<16, false>, offset 32,
    put: |block: &[u8; 210], r, unit: &mut [Line]| {
        put_u16(unit, 0, r, half_at(block, 208));
        for i in 0..16 {
            put_u8(unit, 32 + 16 * i, r, block[192 + i]);
        }
    },
    quads: |block: &[u8; 210], b: usize| {
        // 128 inputs share 64 bytes of low nibbles and 32 bytes of high pairs.
        let (n, part) = (b / 4, b % 4);
        let mut q = [0; 8];
        for (i, q) in q.iter_mut().enumerate() {
            let low = word_at(block, 64 * n + 32 * (part % 2) + 4 * i) >> (4 * (part / 2)) & 0x0f0f_0f0f;
            let high = word_at(block, 128 + 32 * n + 4 * i) >> (2 * part) & 0x0303_0303;
            *q = low | high << 4;
        }
        q
    },
    scale: signed_scale, min: no_min);

/// 128 inputs share 32 bytes, two bits each.
#[inline(always)]
fn k_pair_quads(codes: &[u8], b: usize) -> [u32; 8] {
    let mut q = [0; 8];
    for (i, q) in q.iter_mut().enumerate() {
        *q = word_at(codes, b / 4 * 32 + 4 * i) >> (2 * (b % 4)) & 0x0303_0303;
    }
    q
}

block256!(Q2K, 84, Bits2, Codes<16, true>, offset 0,
    put: |block: &[u8; 84], r, unit: &mut [Line]| {
        put_u16(unit, 0, r, half_at(block, 80));
        put_u16(unit, 32, r, half_at(block, 82));
        for i in 0..16 {
            put_u8(unit, 64 + 16 * i, r, block[i]); // scale in the low, minimum in the high half
        }
    },
    quads: |block: &[u8; 84], b| k_pair_quads(&block[16..], b),
    scale: q2k_scale, min: q2k_min);

#[inline(always)]
fn q2k_scale<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
    s.mul(f16(s, unit, half, 0), s.to_f(s.and(u8(s, unit, half, 64 + 16 * g), s.splat_i(15))))
}
#[inline(always)]
fn q2k_min<S: Simd>(s: S, unit: &[Line], half: usize, g: usize) -> S::F {
    s.mul(f16(s, unit, half, 32), s.to_f(s.shr(u8(s, unit, half, 64 + 16 * g), 4)))
}

block256!(Q3K, 110, Bits3, Codes<16, false>, offset 4,
    put: |block: &[u8; 110], r, unit: &mut [Line]| {
        put_u16(unit, 0, r, half_at(block, 108));
        let b = &block[96..108];
        for i in 0..16 {
            // Six bits each: four in bytes 0..8, low halves first, and two in bytes 8..12; 32 too large.
            let code = b[i % 8] >> (4 * (i / 8)) & 15 | (b[8 + i % 4] >> (2 * (i / 4)) & 3) << 4;
            put_u8(unit, 32 + 16 * i, r, code.wrapping_sub(32));
        }
    },
    quads: |block: &[u8; 110], b: usize| {
        let mut q = k_pair_quads(&block[32..], b);
        for (i, q) in q.iter_mut().enumerate() {
            *q |= (word_at(block, 4 * i) >> b & 0x0101_0101) << 2;
        }
        q
    },
    scale: signed_scale, min: no_min);

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
        }
    }};
}
pub(crate) use with_format;
