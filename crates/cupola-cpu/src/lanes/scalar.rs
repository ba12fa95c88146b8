//! 32 floats in an array: the meaning of every operation.

use super::{LANES, Lanes, Vector, fold};
use crate::math;
use crate::simd::Scalar;
use half::{bf16, f16};
use std::array::from_fn;
use std::ops::{Add, Div, Mul, Sub};

#[derive(Clone, Copy)]
pub(crate) struct Array([f32; LANES]);

impl Lanes for Scalar {
    type V = Array;
    const ATTENTION_ROWS: usize = 2;

    #[inline(always)]
    fn all(self, x: f32) -> Array {
        Array([x; LANES])
    }
    #[inline(always)]
    fn read(self, x: &[f32; LANES]) -> Array {
        Array(*x)
    }
    #[inline(always)]
    fn read_f16(self, x: &[f16; LANES]) -> Array {
        Array(x.map(f16::to_f32))
    }
    #[inline(always)]
    fn read_bf16(self, x: &[bf16; LANES]) -> Array {
        Array(x.map(bf16::to_f32))
    }
    #[inline(always)]
    fn write(self, v: Array, out: &mut [f32; LANES]) {
        *out = v.0;
    }
    #[inline(always)]
    fn write_f16(self, v: Array, out: &mut [f16; LANES]) {
        *out = v.0.map(f16::from_f32);
    }
    #[inline(always)]
    fn write_bf16(self, v: Array, out: &mut [bf16; LANES]) {
        *out = v.0.map(bf16::from_f32);
    }
}

macro_rules! operator {
    ($($trait:ident $method:ident $op:tt),*) => {$(
        impl $trait for Array {
            type Output = Array;
            #[inline(always)]
            fn $method(self, b: Array) -> Array {
                Array(from_fn(|i| self.0[i] $op b.0[i]))
            }
        }
    )*};
}
operator!(Add add +, Sub sub -, Mul mul *, Div div /);

impl Vector for Array {
    #[inline(always)]
    fn fma(self, b: Array, c: Array) -> Array {
        Array(from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }
    #[inline(always)]
    fn max(self, b: Array) -> Array {
        Array(from_fn(|i| math::max(self.0[i], b.0[i])))
    }
    #[inline(always)]
    fn min(self, b: Array) -> Array {
        Array(from_fn(|i| math::min(self.0[i], b.0[i])))
    }
    #[inline(always)]
    fn if_above(self, b: Array, yes: Array, no: Array) -> Array {
        Array(from_fn(|i| if self.0[i] > b.0[i] { yes.0[i] } else { no.0[i] }))
    }
    #[inline(always)]
    fn negate(self) -> Array {
        Array(self.0.map(|x| -x))
    }
    #[inline(always)]
    fn abs(self) -> Array {
        Array(self.0.map(f32::abs))
    }
    #[inline(always)]
    fn with_sign(self, b: Array) -> Array {
        Array(from_fn(|i| self.0[i].copysign(b.0[i])))
    }
    #[inline(always)]
    fn scale(self, i: Array) -> Array {
        Array(from_fn(|lane| math::scale(self.0[lane], i.0[lane])))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        fold(self.0)
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, |m, x| math::max(x, m))
    }
}
