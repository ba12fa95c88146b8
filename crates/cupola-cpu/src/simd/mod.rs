//! One vocabulary for the vector instructions of all tiers, so that a kernel is written once.
//!
//! Weights are packed in panels of 16 rows (see `products`): a [`Line`] holds one 4-byte item for each of the 16 rows. A
//! *column* is as many rows as a vector has lanes, 16 or 8; a line then has one or two halves. No operation crosses lanes,
//! so that a row's result never depends on the width of the vectors.
//!
//! A value of a tier's type ([`Avx2`], ...) is the proof that its instructions exist, which makes the operations safe to
//! call. They must end up inlined in [`Simd::run`]: kernels and their helpers are `#[inline(always)]` and use no closures.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod quantise;
mod scalar;

use crate::memory::Line;
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) use avx2::Vnni512;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::{Avx2, IntegerDot, Madd, Vnni};
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use quantise::Quantised;
pub(crate) use scalar::Scalar;

/// Something to run with the instructions of a tier.
pub(crate) trait Kernel {
    type Output;
    /// Whether it uses [`Simd::dot`] or [`Simd::dot_pairs`]. Tiers that only have better instructions for these run other
    /// kernels as the tier below does, so that those are not compiled twice.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const INTEGER_DOT: bool = false;
    /// Whether it uses [`Simd::dot_bf16`]; likewise.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const BF16_DOT: bool = false;
    /// Must be `#[inline(always)]`.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Vectors of [`Simd::ROWS`] lanes. `half` is 0, or 0 and 1 where a line takes two vectors.
pub(crate) trait Simd: crate::lanes::Lanes + Send + Sync + 'static {
    /// Lanes of a vector.
    const ROWS: usize;
    /// Vectors to a line.
    const HALVES: usize = 16 / Self::ROWS;
    /// Columns of weights that a tile of the int8 and float products keeps in registers, at most [`MAX_COLUMNS`].
    const COLUMNS: usize;
    /// Tokens of such a tile, at most [`MAX_TILE`].
    const TILE: usize;
    /// Tokens of a tile of the exact product, at most [`MAX_TILE`].
    const EXACT_TILE: usize;
    /// Lanes of the exact sum, of 16, which the exact mat-vec keeps in registers (twice: l and l + 16). A multiple of 4.
    const EXACT_LANES: usize;
    /// The instruction behind [`Simd::dot`] cannot take the upper half of the unsigned bytes: [`Simd::dot_centred`] takes
    /// codes of offset 128 as signed bytes then, and needs no correction for the offset.
    const CENTRED: bool;
    /// 16-bit activations are multiplied as 256 times a high and a low byte, by [`Simd::dot`] with the same codes, which
    /// then need not be taken apart. Else in pairs, by [`Simd::dot_pairs`].
    const PLANES: bool = false;

    /// `f32` lanes.
    type F: Copy;
    /// 32-bit lanes, or four bytes each.
    type I: Copy;

    /// Runs a kernel in a function that may use these instructions; never inlined, so that register allocation is the
    /// kernel's own.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;

    fn splat(self, v: f32) -> Self::F;
    fn load(self, line: &Line, half: usize) -> Self::F;
    fn store(self, v: Self::F, line: &mut Line, half: usize);
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c` with one rounding.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c - a * b` with one rounding.
    fn fnma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a * b - c` with one rounding.
    fn fms(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a * b + c` in fast mode: rounded once where that is one instruction, else twice.
    #[inline(always)]
    fn fma_fast(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        self.fma(a, b, c)
    }
    /// `c - a * b`, likewise.
    #[inline(always)]
    fn fnma_fast(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        self.fnma(a, b, c)
    }

    fn splat_i(self, v: u32) -> Self::I;
    fn load_i(self, line: &Line, half: usize) -> Self::I;
    fn store_i(self, v: Self::I, line: &mut Line, half: usize);
    /// 32-bit lanes, wrapping.
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Byte by byte, wrapping.
    fn sub_bytes(self, a: Self::I, b: Self::I) -> Self::I;
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    /// The entries of a table that bytes from 0 to 15 name.
    fn lookup(self, table: &[u8; 16], v: Self::I) -> Self::I;
    /// Bytes 0 and 2 of each lane, as a pair of 16-bit integers.
    #[inline(always)]
    fn even_bytes(self, v: Self::I) -> Self::I {
        self.and(v, self.splat_i(0x00ff_00ff))
    }
    /// Bytes 1 and 3 of each lane, as a pair of 16-bit integers.
    fn odd_bytes(self, v: Self::I) -> Self::I;
    /// Shifts each 32-bit lane; `by` is a constant after inlining.
    fn shl(self, v: Self::I, by: u32) -> Self::I;
    /// Shifts zeros into each 32-bit lane.
    fn shr(self, v: Self::I, by: u32) -> Self::I;
    /// Shifts copies of the sign into each 32-bit lane.
    fn sar(self, v: Self::I, by: u32) -> Self::I;
    /// The integers as floats.
    fn to_f(self, v: Self::I) -> Self::F;
    /// The same bits as floats.
    fn as_f(self, v: Self::I) -> Self::F;
    /// The same bits as integers.
    fn as_i(self, v: Self::F) -> Self::I;

    /// 16 half-precision numbers, converted.
    fn f16(self, rows: &[u8; 32], half: usize) -> Self::F;
    /// 16 bytes, zero-extended.
    fn u8(self, rows: &[u8; 16], half: usize) -> Self::I;
    /// 16 bytes, sign-extended.
    fn i8(self, rows: &[u8; 16], half: usize) -> Self::I;

    /// Adds to each lane the sum of the products of its four unsigned bytes of `codes` (at most 127 each if
    /// [`Simd::CENTRED`]) with the four signed bytes of `x` (-127 to 127 if
    /// [`Simd::CENTRED`]).
    fn dot(self, acc: Self::I, codes: Self::I, x: Self::I) -> Self::I;
    /// The same with `codes - 128` as signed bytes; only called if [`Simd::CENTRED`].
    fn dot_centred(self, acc: Self::I, codes: Self::I, x: Self::I) -> Self::I;
    /// Adds to each lane the sum of the products of its two signed 16-bit integers.
    fn dot_pairs(self, acc: Self::I, w: Self::I, x: Self::I) -> Self::I;
    /// Adds to each lane the sum of the products of its two BF16 numbers; only called on tiers that have such an instruction.
    fn dot_bf16(self, acc: Self::F, w: Self::I, x: Self::I) -> Self::F;

    /// Rounds activations to 8-bit integers. Written out for the tiers: the compiler's own vector code takes four times as long.
    #[inline(always)]
    fn quantise8(self, x: &[f32; 32]) -> Quantised<8> {
        quantise::quantise8(x)
    }
    /// Rounds activations to 16-bit integers.
    #[inline(always)]
    fn quantise16(self, x: &[f32; 32]) -> Quantised<16> {
        quantise::quantise16(x)
    }

    /// Asks for the line `lines` after the given one, whether or not there is one, in the first cache.
    fn prefetch(self, line: &Line, lines: usize);
    /// The same in the second cache.
    fn prefetch_far(self, line: &Line, lines: usize);
}

/// The most columns of a tile.
pub(crate) const MAX_COLUMNS: usize = 2;
/// The most tokens of a tile.
pub(crate) const MAX_TILE: usize = 6;
