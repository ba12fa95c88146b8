//! 32 floats in eight registers of NEON.

// SAFETY of every block below: a vector exists only where the instructions do, since only a value of the tier's type makes
// one, and loads and stores get references to as many floats as they touch.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::{LANES, Lanes, Vector};
use crate::math;
use crate::simd::Neon;
use half::{bf16, f16};
use std::arch::aarch64::*;
use std::ops::{Add, Div, Mul, Sub};

/// The same expression for every register. Not a closure: that would be a function without these instructions.
macro_rules! each {
    (@ $n:literal $i:ident $e:block) => {{
        let $i = $n;
        $e
    }};
    ($i:ident => $e:block) => {
        unsafe {
            Eight([
                each!(@ 0 $i $e),
                each!(@ 1 $i $e),
                each!(@ 2 $i $e),
                each!(@ 3 $i $e),
                each!(@ 4 $i $e),
                each!(@ 5 $i $e),
                each!(@ 6 $i $e),
                each!(@ 7 $i $e),
            ])
        }
    };
}

#[derive(Clone, Copy)]
pub(crate) struct Eight([float32x4_t; 8]);

impl<const DOT: bool> Lanes for Neon<DOT> {
    type V = Eight;
    // Two rows take 16 of the 32 registers, what they are multiplied with 8.
    const ATTENTION_ROWS: usize = 2;

    #[inline(always)]
    fn all(self, x: f32) -> Eight {
        Eight([unsafe { vdupq_n_f32(x) }; 8])
    }
    #[inline(always)]
    fn read(self, x: &[f32; LANES]) -> Eight {
        each!(i => { vld1q_f32(x[4 * i..][..4].as_ptr()) })
    }
    #[inline(always)]
    fn read_f16(self, x: &[f16; LANES]) -> Eight {
        each!(i => { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x[4 * i..][..4].as_ptr().cast()))) })
    }
    #[inline(always)]
    fn read_bf16(self, x: &[bf16; LANES]) -> Eight {
        each!(i => { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(x[4 * i..][..4].as_ptr().cast()))) })
    }
    #[inline(always)]
    fn write(self, v: Eight, out: &mut [f32; LANES]) {
        for i in 0..8 {
            unsafe { vst1q_f32(out[4 * i..][..4].as_mut_ptr(), v.0[i]) }
        }
    }
    #[inline(always)]
    fn write_f16(self, v: Eight, out: &mut [f16; LANES]) {
        for i in 0..8 {
            // Rounds ties to even, which is how every thread starts.
            unsafe { vst1_u16(out[4 * i..][..4].as_mut_ptr().cast(), vreinterpret_u16_f16(vcvt_f16_f32(v.0[i]))) }
        }
    }
    #[inline(always)]
    fn write_bf16(self, v: Eight, out: &mut [bf16; LANES]) {
        for i in 0..8 {
            unsafe {
                let bits = vreinterpretq_u32_f32(v.0[i]);
                let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
                let up = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
                let quiet = vorrq_u32(bits, vdupq_n_u32(0x40_0000));
                let number = vceqq_f32(v.0[i], v.0[i]);
                vst1_u16(out[4 * i..][..4].as_mut_ptr().cast(), vshrn_n_u32::<16>(vbslq_u32(number, up, quiet)));
            }
        }
    }
}

macro_rules! operator {
    ($($trait:ident $method:ident $instruction:ident),*) => {$(
        impl $trait for Eight {
            type Output = Eight;
            #[inline(always)]
            fn $method(self, b: Eight) -> Eight {
                each!(i => { $instruction(self.0[i], b.0[i]) })
            }
        }
    )*};
}
operator!(Add add vaddq_f32, Sub sub vsubq_f32, Mul mul vmulq_f32, Div div vdivq_f32);

impl Vector for Eight {
    #[inline(always)]
    fn fma(self, b: Eight, c: Eight) -> Eight {
        each!(i => { vfmaq_f32(c.0[i], self.0[i], b.0[i]) })
    }
    // The instructions for maximum and minimum would give a NaN if either operand is one.
    #[inline(always)]
    fn max(self, b: Eight) -> Eight {
        each!(i => { vbslq_f32(vcgtq_f32(self.0[i], b.0[i]), self.0[i], b.0[i]) })
    }
    #[inline(always)]
    fn min(self, b: Eight) -> Eight {
        each!(i => { vbslq_f32(vcltq_f32(self.0[i], b.0[i]), self.0[i], b.0[i]) })
    }
    #[inline(always)]
    fn if_above(self, b: Eight, yes: Eight, no: Eight) -> Eight {
        each!(i => { vbslq_f32(vcgtq_f32(self.0[i], b.0[i]), yes.0[i], no.0[i]) })
    }
    #[inline(always)]
    fn negate(self) -> Eight {
        each!(i => { vnegq_f32(self.0[i]) })
    }
    #[inline(always)]
    fn abs(self) -> Eight {
        each!(i => { vabsq_f32(self.0[i]) })
    }
    #[inline(always)]
    fn with_sign(self, b: Eight) -> Eight {
        each!(i => { vbslq_f32(vdupq_n_u32(1 << 31), b.0[i], self.0[i]) })
    }
    #[inline(always)]
    fn scale(self, i: Eight) -> Eight {
        each!(k => {
            let i = vsubq_s32(vreinterpretq_s32_f32(i.0[k]), vdupq_n_s32(math::ROUND.to_bits() as i32));
            let half = vshrq_n_s32::<1>(i);
            vmulq_f32(vmulq_f32(self.0[k], power(half)), power(vsubq_s32(i, half)))
        })
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        unsafe {
            let v = self.0;
            let (a, b) = (vaddq_f32(v[0], v[4]), vaddq_f32(v[2], v[6]));
            let (c, d) = (vaddq_f32(v[1], v[5]), vaddq_f32(v[3], v[7]));
            let four = vaddq_f32(vaddq_f32(a, b), vaddq_f32(c, d));
            vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
        }
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        unsafe {
            let v = self.0;
            let (a, b) = (vmaxnmq_f32(v[0], v[4]), vmaxnmq_f32(v[2], v[6]));
            let (c, d) = (vmaxnmq_f32(v[1], v[5]), vmaxnmq_f32(v[3], v[7]));
            vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(a, b), vmaxnmq_f32(c, d)))
        }
    }
}

/// `2^i` in each lane.
#[inline(always)]
unsafe fn power(i: int32x4_t) -> float32x4_t {
    unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(i, vdupq_n_s32(127)))) }
}
