//! Vectors of 32 floats, for everything that is not a matrix product.
//!
//! Exact mode sums in 32 lanes, so 32 is the width of a vector here whatever the registers of a tier are: two of
//! AVX-512, four of AVX2. A kernel is written once over [`Lanes`] and gives the same bits on every tier.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use half::{bf16, f16};
use std::cell::Cell;
use std::ops::{Add, Div, Mul, Sub};

/// Lanes of a vector.
pub(crate) const LANES: usize = 32;

/// Makes vectors. A value of the implementing type is the proof that the instructions exist.
pub(crate) trait Lanes: Copy {
    /// 32 floats.
    type V: Vector;

    /// Rows that the tile of [`crate::attention`] keeps in registers.
    const ATTENTION_ROWS: usize;

    /// `x` in every lane.
    fn all(self, x: f32) -> Self::V;
    /// 32 floats from memory.
    fn read(self, x: &[f32; LANES]) -> Self::V;
    /// 32 half-precision numbers from memory, converted.
    fn read_f16(self, x: &[f16; LANES]) -> Self::V;
    /// 32 brain floats from memory, converted.
    fn read_bf16(self, x: &[bf16; LANES]) -> Self::V;
    /// 32 small integers from memory, converted.
    #[inline(always)]
    fn read_i8(self, x: &[i8; LANES]) -> Self::V {
        let mut floats = [0.0; LANES];
        for (f, x) in floats.iter_mut().zip(x) {
            *f = f32::from(*x);
        }
        self.read(&floats)
    }
    /// 32 floats to memory.
    fn write(self, v: Self::V, out: &mut [f32; LANES]);
    /// 32 floats to memory, rounded to half precision, ties to even.
    fn write_f16(self, v: Self::V, out: &mut [f16; LANES]);
    /// 32 floats to memory, rounded to brain floats, ties to even.
    fn write_bf16(self, v: Self::V, out: &mut [bf16; LANES]);

    /// The elements from `at` on, zeros after the end of the row.
    #[inline(always)]
    fn get(self, row: &[Cell<f32>], at: usize) -> Self::V {
        match row[at..].first_chunk::<LANES>() {
            // SAFETY: a Cell is laid out as its content, and nothing writes while this reference lives.
            Some(chunk) => self.read(unsafe { &*std::ptr::from_ref(chunk).cast() }),
            None => {
                let mut part = [0.0; LANES];
                part.iter_mut().zip(&row[at..]).for_each(|(p, x)| *p = x.get());
                self.read(&part)
            }
        }
    }

    /// The elements from `at` on, zeros after the end of the row.
    #[inline(always)]
    fn load_slice(self, row: &[f32], at: usize) -> Self::V {
        match row[at..].first_chunk::<LANES>() {
            Some(chunk) => self.read(chunk),
            None => {
                let mut part = [0.0; LANES];
                part[..row.len() - at].copy_from_slice(&row[at..]);
                self.read(&part)
            }
        }
    }

    /// Stores lanes from `at` on, up to the end of the row.
    #[inline(always)]
    fn put(self, v: Self::V, row: &[Cell<f32>], at: usize) {
        match row[at..].first_chunk::<LANES>() {
            Some(chunk) => {
                let floats: *mut [f32; LANES] = chunk.as_ptr().cast_mut().cast();
                // SAFETY: a Cell is laid out as its content, its content may be written through a shared reference, and
                // nothing else touches the row while this reference lives.
                self.write(v, unsafe { &mut *floats });
            }
            None => {
                let mut all = [0.0; LANES];
                self.write(v, &mut all);
                row[at..].iter().zip(all).for_each(|(x, v)| x.set(v));
            }
        }
    }
}

/// 32 floats. Every operation works lane by lane and rounds once.
pub(crate) trait Vector:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// `self * b + c` with one rounding.
    fn fma(self, b: Self, c: Self) -> Self;
    /// `self > b ? self : b`: the second operand if either is a NaN.
    fn max(self, b: Self) -> Self;
    /// `self < b ? self : b`: the second operand if either is a NaN.
    fn min(self, b: Self) -> Self;
    /// `self > b ? yes : no`.
    fn if_above(self, b: Self, yes: Self, no: Self) -> Self;
    /// With the other sign.
    fn negate(self) -> Self;
    /// Without its sign.
    fn abs(self) -> Self;
    /// `self`, which has no sign, with the sign of `b`.
    fn with_sign(self, b: Self) -> Self;
    /// `self * 2^i`, see [`crate::math::scale`].
    fn scale(self, i: Self) -> Self;
    /// All lanes added in the order of exact mode: lane `i` takes `i + 16`, then `i + 8`, and so on.
    fn sum(self) -> f32;
    /// The largest lane.
    fn largest(self) -> f32;
}

/// Adds up 32 lanes in the order of exact mode.
#[inline(always)]
pub(crate) fn fold(mut lanes: [f32; LANES]) -> f32 {
    for half in [16, 8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// Defines a function over vectors: `kernel! { pub fn name(s, a: A, b: &'a B) -> C { body } }` is a function
/// `name(tier, a, b)`, whose body runs with the instructions of the tier, `s` making its vectors. References have the
/// lifetime `'a`.
macro_rules! kernel {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($s:ident $(, $arg:ident: $ty:ty)* $(,)?) $(-> $out:ty)? $body:block) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name<'a>(tier: $crate::Tier $(, $arg: $ty)*) $(-> $out)? {
            struct Call<'a> { $($arg: $ty,)* lifetime: std::marker::PhantomData<&'a ()> }
            impl<'a> $crate::simd::Kernel for Call<'a> {
                type Output = $crate::lanes::kernel!(@output $($out)?);
                #[inline(always)]
                fn run<S: $crate::simd::Simd>(self, $s: S) -> Self::Output {
                    let Call { $($arg,)* lifetime: _ } = self;
                    $body
                }
            }
            tier.run(Call { $($arg,)* lifetime: std::marker::PhantomData })
        }
    };
    (@output) => { () };
    (@output $out:ty) => { $out };
}
pub(crate) use kernel;
