//! 32 floats in four registers of AVX2, with FMA and F16C.

// SAFETY of every block below: a vector exists only where the instructions do, since only a value of the tier's type makes
// one, and loads and stores get references to as many floats as they touch.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::{LANES, Lanes, Vector};
use crate::math;
use crate::simd::{Avx2, IntegerDot};
use half::{bf16, f16};
use std::arch::x86_64::*;
use std::ops::{Add, Div, Mul, Sub};

/// The same expression for every register. Not a closure: that would be a function without these instructions.
macro_rules! each {
    ($i:ident => $e:block) => {
        unsafe {
            Four([
                {
                    let $i = 0;
                    $e
                },
                {
                    let $i = 1;
                    $e
                },
                {
                    let $i = 2;
                    $e
                },
                {
                    let $i = 3;
                    $e
                },
            ])
        }
    };
}

#[derive(Clone, Copy)]
pub(crate) struct Four([__m256; 4]);

impl<D: IntegerDot> Lanes for Avx2<D> {
    type V = Four;
    const ATTENTION_ROWS: usize = 2;

    #[inline(always)]
    fn all(self, x: f32) -> Four {
        Four([unsafe { _mm256_set1_ps(x) }; 4])
    }
    #[inline(always)]
    fn read(self, x: &[f32; LANES]) -> Four {
        each!(i => { _mm256_loadu_ps(x[8 * i..][..8].as_ptr()) })
    }
    #[inline(always)]
    fn read_f16(self, x: &[f16; LANES]) -> Four {
        each!(i => { _mm256_cvtph_ps(_mm_loadu_si128(x[8 * i..][..8].as_ptr().cast())) })
    }
    #[inline(always)]
    fn read_bf16(self, x: &[bf16; LANES]) -> Four {
        each!(i => {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(
                x[8 * i..][..8].as_ptr().cast(),
            ))))
        })
    }
    #[inline(always)]
    fn write(self, v: Four, out: &mut [f32; LANES]) {
        for i in 0..4 {
            unsafe { _mm256_storeu_ps(out[8 * i..][..8].as_mut_ptr(), v.0[i]) }
        }
    }
    #[inline(always)]
    fn write_f16(self, v: Four, out: &mut [f16; LANES]) {
        for i in 0..4 {
            let half = unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.0[i]) };
            unsafe { _mm_storeu_si128(out[8 * i..][..8].as_mut_ptr().cast(), half) }
        }
    }
    #[inline(always)]
    fn write_bf16(self, v: Four, out: &mut [bf16; LANES]) {
        for i in 0..4 {
            unsafe {
                let bits = _mm256_castps_si256(v.0[i]);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
                let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
                let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v.0[i], v.0[i]));
                let high = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(up, quiet, nan));
                let halves = (_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high));
                _mm_storeu_si128(out[8 * i..][..8].as_mut_ptr().cast(), _mm_packus_epi32(halves.0, halves.1));
            }
        }
    }
}

macro_rules! operator {
    ($($trait:ident $method:ident $instruction:ident),*) => {$(
        impl $trait for Four {
            type Output = Four;
            #[inline(always)]
            fn $method(self, b: Four) -> Four {
                each!(i => { $instruction(self.0[i], b.0[i]) })
            }
        }
    )*};
}
operator!(Add add _mm256_add_ps, Sub sub _mm256_sub_ps, Mul mul _mm256_mul_ps, Div div _mm256_div_ps);

impl Vector for Four {
    #[inline(always)]
    fn fma(self, b: Four, c: Four) -> Four {
        each!(i => { _mm256_fmadd_ps(self.0[i], b.0[i], c.0[i]) })
    }
    #[inline(always)]
    fn max(self, b: Four) -> Four {
        each!(i => { _mm256_max_ps(self.0[i], b.0[i]) })
    }
    #[inline(always)]
    fn min(self, b: Four) -> Four {
        each!(i => { _mm256_min_ps(self.0[i], b.0[i]) })
    }
    #[inline(always)]
    fn if_above(self, b: Four, yes: Four, no: Four) -> Four {
        each!(i => {
            _mm256_blendv_ps(no.0[i], yes.0[i], _mm256_cmp_ps::<_CMP_GT_OQ>(self.0[i], b.0[i]))
        })
    }
    #[inline(always)]
    fn negate(self) -> Four {
        each!(i => { _mm256_xor_ps(self.0[i], _mm256_set1_ps(-0.0)) })
    }
    #[inline(always)]
    fn abs(self) -> Four {
        each!(i => { _mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0[i]) })
    }
    #[inline(always)]
    fn with_sign(self, b: Four) -> Four {
        each!(i => { _mm256_or_ps(self.0[i], _mm256_and_ps(_mm256_set1_ps(-0.0), b.0[i])) })
    }
    #[inline(always)]
    fn scale(self, i: Four) -> Four {
        each!(k => {
            let i = _mm256_castps_si256(i.0[k]);
            let i = _mm256_sub_epi32(i, _mm256_set1_epi32(math::ROUND.to_bits() as i32));
            let half = _mm256_srai_epi32::<1>(i);
            _mm256_mul_ps(_mm256_mul_ps(self.0[k], power(half)), power(_mm256_sub_epi32(i, half)))
        })
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        unsafe {
            let [a, b, c, d] = self.0;
            let eight = _mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d));
            sum8(eight)
        }
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        unsafe {
            let [a, b, c, d] = self.0;
            largest8(_mm256_max_ps(_mm256_max_ps(a, c), _mm256_max_ps(b, d)))
        }
    }
}

/// The sum of 8 lanes in the order of exact mode.
#[inline(always)]
pub(super) unsafe fn sum8(v: __m256) -> f32 {
    unsafe {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
    }
}

/// The largest of 8 lanes.
#[inline(always)]
pub(super) unsafe fn largest8(v: __m256) -> f32 {
    unsafe {
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
    }
}

/// `2^i` in each lane.
#[inline(always)]
unsafe fn power(i: __m256i) -> __m256 {
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(i, _mm256_set1_epi32(127)))) }
}
