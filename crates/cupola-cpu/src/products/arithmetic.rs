//! How fast mode multiplies: with what instruction, on what form of the activations, and in what order it sums.
//!
//! All arithmetics share one shape. A *step* multiplies 4 bytes of every row (four codes, two codes widened to 16 bits, two BF16 numbers, one float) with 4
//! bytes of the activations, which are the same for all rows. The steps of a *group* of inputs are summed in order from
//! zero; then the group's sum is scaled and added to the row's total. As the mat-vec and the tiled product both do just this,
//! a row of activations gives the same bits alone and in any batch.

use crate::simd::Simd;

/// See the module.
pub(crate) trait Arithmetic: 'static {
    /// Inputs of a step.
    const INPUTS: usize;
    /// Inputs of a group: 32, 16 or 8.
    const GROUP: usize;
    /// Whether inputs are integers; their groups have scales (of weights and of activations).
    const SCALED: bool;
    /// Whether groups have minima, to be subtracted.
    const MIN: bool;
    /// The form of the activations.
    const INPUT: Input;
    /// Sums that the mat-vec keeps of a group, of steps `i` with the same `i % CHAINS`, so that none waits for the one before. 1 for
    /// floats, whose order of summation counts.
    const CHAINS: usize = 1;
    /// Whether it uses the BF16 dot product.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const BF16_DOT: bool = false;

    /// The sum of no step. `correction` is that of the activations for the group, see [`Input`].
    fn start<S: Simd>(s: S, correction: u32) -> S::I;
    /// Adds one step.
    fn step<S: Simd>(s: S, sum: S::I, w: S::I, x: S::I) -> S::I;
    /// The sum of a group, from those of its chains: the first begins with [`Arithmetic::start`], the other with zero.
    #[inline(always)]
    fn join<S: Simd>(s: S, chains: [S::I; 2]) -> S::I {
        if Self::CHAINS == 2 { s.add_i(chains[0], chains[1]) } else { chains[0] }
    }
    /// The sum of a group as floats.
    fn total<S: Simd>(s: S, sum: S::I) -> S::F;
}

/// The form in which activations are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// Integers from -127 to 127, with one scale for each 32.
    Int8,
    /// Integers from -32639 to 32639, likewise, in pairs or as two bytes (see [`Simd::PLANES`]).
    Int16,
    /// Rounded to BF16, in pairs.
    Bf16,
    /// As they are.
    F32,
}

/// Codes of up to 8 bits, multiplied as integers. `CENTRED`: their offset is 128.
pub(crate) struct Codes<const GROUP: usize, const MIN: bool, const CENTRED: bool = false>;

impl<const GROUP: usize, const MIN: bool, const CENTRED: bool> Arithmetic for Codes<GROUP, MIN, CENTRED> {
    const INPUTS: usize = 4;
    const GROUP: usize = GROUP;
    const SCALED: bool = true;
    const MIN: bool = MIN;
    const INPUT: Input = Input::Int8;
    const CHAINS: usize = 2;

    #[inline(always)]
    fn start<S: Simd>(s: S, correction: u32) -> S::I {
        // The offset: sum((code - offset) * x) = sum(code * x) - offset * sum(x).
        s.splat_i(if MIN || (CENTRED && S::CENTRED) { 0 } else { correction })
    }
    #[inline(always)]
    fn step<S: Simd>(s: S, sum: S::I, w: S::I, x: S::I) -> S::I {
        if CENTRED && S::CENTRED { s.dot_centred(sum, w, x) } else { s.dot(sum, w, x) }
    }
    #[inline(always)]
    fn total<S: Simd>(s: S, sum: S::I) -> S::F {
        s.to_f(sum)
    }
}

/// Codes of up to 8 bits as 16-bit integers, multiplied with 16-bit integers. The largest sums, 32 * 255 * 32639, take 28 bits.
pub(crate) struct Pairs<const GROUP: usize, const MIN: bool>;

impl<const GROUP: usize, const MIN: bool> Arithmetic for Pairs<GROUP, MIN> {
    const INPUTS: usize = 2;
    const GROUP: usize = GROUP;
    const SCALED: bool = true;
    const MIN: bool = MIN;
    const INPUT: Input = Input::Int16;
    const CHAINS: usize = 2;

    #[inline(always)]
    fn start<S: Simd>(s: S, correction: u32) -> S::I {
        s.splat_i(if MIN { 0 } else { correction })
    }
    #[inline(always)]
    fn step<S: Simd>(s: S, sum: S::I, w: S::I, x: S::I) -> S::I {
        if S::PLANES { s.dot(sum, w, x) } else { s.dot_pairs(sum, w, x) }
    }
    #[inline(always)]
    fn join<S: Simd>(s: S, [low, high]: [S::I; 2]) -> S::I {
        s.add_i(low, if S::PLANES { s.shl(high, 8) } else { high })
    }
    #[inline(always)]
    fn total<S: Simd>(s: S, sum: S::I) -> S::F {
        s.to_f(sum)
    }
}

/// Floats.
pub(crate) struct Float;

impl Arithmetic for Float {
    const INPUTS: usize = 1;
    // Short, so that no sum waits long for the one before.
    const GROUP: usize = 8;
    const SCALED: bool = false;
    const MIN: bool = false;
    const INPUT: Input = Input::F32;

    #[inline(always)]
    fn start<S: Simd>(s: S, _: u32) -> S::I {
        s.splat_i(0)
    }
    #[inline(always)]
    fn step<S: Simd>(s: S, sum: S::I, w: S::I, x: S::I) -> S::I {
        s.as_i(s.fma_fast(s.as_f(w), s.as_f(x), s.as_f(sum)))
    }
    #[inline(always)]
    fn total<S: Simd>(s: S, sum: S::I) -> S::F {
        s.as_f(sum)
    }
}

/// BF16 weights on processors which multiply pairs of them.
pub(crate) struct Bf16Pairs;

impl Arithmetic for Bf16Pairs {
    const INPUTS: usize = 2;
    const GROUP: usize = 32;
    const SCALED: bool = false;
    const MIN: bool = false;
    const INPUT: Input = Input::Bf16;
    const BF16_DOT: bool = true;

    #[inline(always)]
    fn start<S: Simd>(s: S, _: u32) -> S::I {
        s.splat_i(0)
    }
    #[inline(always)]
    fn step<S: Simd>(s: S, sum: S::I, w: S::I, x: S::I) -> S::I {
        s.as_i(s.dot_bf16(s.as_f(sum), w, x))
    }
    #[inline(always)]
    fn total<S: Simd>(s: S, sum: S::I) -> S::F {
        s.as_f(sum)
    }
}
