//! 32 floats in two registers of AVX-512.

// SAFETY of every block below: a vector exists only where the instructions do, since only a value of the tier's type makes
// one, and loads and stores get references to as many floats as they touch.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::avx2::{largest8, sum8};
use super::{LANES, Lanes, Vector};
use crate::math;
use crate::simd::Avx512;
use half::{bf16, f16};
use std::arch::x86_64::*;
use std::ops::{Add, Div, Mul, Sub};

/// The same expression for every register. Not a closure: that would be a function without these instructions.
macro_rules! each {
    ($i:ident => $e:block) => {
        unsafe {
            Two([
                {
                    let $i = 0;
                    $e
                },
                {
                    let $i = 1;
                    $e
                },
            ])
        }
    };
}

#[derive(Clone, Copy)]
pub(crate) struct Two([__m512; 2]);

impl<const BF16: bool> Lanes for Avx512<BF16> {
    type V = Two;
    const ATTENTION_ROWS: usize = 8;

    #[inline(always)]
    fn all(self, x: f32) -> Two {
        Two([unsafe { _mm512_set1_ps(x) }; 2])
    }
    #[inline(always)]
    fn read(self, x: &[f32; LANES]) -> Two {
        each!(i => { _mm512_loadu_ps(x[16 * i..][..16].as_ptr()) })
    }
    #[inline(always)]
    fn read_f16(self, x: &[f16; LANES]) -> Two {
        each!(i => { _mm512_cvtph_ps(_mm256_loadu_si256(x[16 * i..][..16].as_ptr().cast())) })
    }
    #[inline(always)]
    fn read_bf16(self, x: &[bf16; LANES]) -> Two {
        each!(i => {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
                x[16 * i..][..16].as_ptr().cast(),
            ))))
        })
    }
    #[inline(always)]
    fn write(self, v: Two, out: &mut [f32; LANES]) {
        for i in 0..2 {
            unsafe { _mm512_storeu_ps(out[16 * i..][..16].as_mut_ptr(), v.0[i]) }
        }
    }
    #[inline(always)]
    fn write_f16(self, v: Two, out: &mut [f16; LANES]) {
        for i in 0..2 {
            let half = unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.0[i]) };
            unsafe { _mm256_storeu_si256(out[16 * i..][..16].as_mut_ptr().cast(), half) }
        }
    }
    #[inline(always)]
    fn write_bf16(self, v: Two, out: &mut [bf16; LANES]) {
        for i in 0..2 {
            unsafe {
                let bits = _mm512_castps_si512(v.0[i]);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
                let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v.0[i], v.0[i]);
                let high = _mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, up, quiet));
                _mm256_storeu_si256(out[16 * i..][..16].as_mut_ptr().cast(), _mm512_cvtepi32_epi16(high));
            }
        }
    }
}

macro_rules! operator {
    ($($trait:ident $method:ident $instruction:ident),*) => {$(
        impl $trait for Two {
            type Output = Two;
            #[inline(always)]
            fn $method(self, b: Two) -> Two {
                each!(i => { $instruction(self.0[i], b.0[i]) })
            }
        }
    )*};
}
operator!(Add add _mm512_add_ps, Sub sub _mm512_sub_ps, Mul mul _mm512_mul_ps, Div div _mm512_div_ps);

impl Vector for Two {
    #[inline(always)]
    fn fma(self, b: Two, c: Two) -> Two {
        each!(i => { _mm512_fmadd_ps(self.0[i], b.0[i], c.0[i]) })
    }
    #[inline(always)]
    fn max(self, b: Two) -> Two {
        each!(i => { _mm512_max_ps(self.0[i], b.0[i]) })
    }
    #[inline(always)]
    fn min(self, b: Two) -> Two {
        each!(i => { _mm512_min_ps(self.0[i], b.0[i]) })
    }
    #[inline(always)]
    fn if_above(self, b: Two, yes: Two, no: Two) -> Two {
        each!(i => {
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0[i], b.0[i]), no.0[i], yes.0[i])
        })
    }
    #[inline(always)]
    fn negate(self) -> Two {
        each!(i => { _mm512_xor_ps(self.0[i], _mm512_set1_ps(-0.0)) })
    }
    #[inline(always)]
    fn abs(self) -> Two {
        each!(i => { _mm512_andnot_ps(_mm512_set1_ps(-0.0), self.0[i]) })
    }
    #[inline(always)]
    fn with_sign(self, b: Two) -> Two {
        each!(i => { _mm512_or_ps(self.0[i], _mm512_and_ps(_mm512_set1_ps(-0.0), b.0[i])) })
    }
    #[inline(always)]
    fn scale(self, i: Two) -> Two {
        each!(k => {
            let i = _mm512_castps_si512(i.0[k]);
            let i = _mm512_sub_epi32(i, _mm512_set1_epi32(math::ROUND.to_bits() as i32));
            let half = _mm512_srai_epi32::<1>(i);
            _mm512_mul_ps(_mm512_mul_ps(self.0[k], power(half)), power(_mm512_sub_epi32(i, half)))
        })
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        unsafe {
            let v = _mm512_add_ps(self.0[0], self.0[1]);
            sum8(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)))
        }
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        unsafe {
            let v = _mm512_max_ps(self.0[0], self.0[1]);
            largest8(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)))
        }
    }
}

/// `2^i` in each lane.
#[inline(always)]
unsafe fn power(i: __m512i) -> __m512 {
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(i, _mm512_set1_epi32(127)))) }
}
