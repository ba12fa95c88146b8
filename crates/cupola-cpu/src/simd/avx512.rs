//! AVX-512 (F, BW, VL, DQ) with VNNI; with `BF16`, also the dot product of BF16 pairs.

use super::quantise::{MAX8, MAX16, Quantised, scale_and_inverse};
use super::{Kernel, Simd};
use crate::memory::Line;
use std::arch::x86_64::*;
use std::mem::transmute;

#[derive(Clone, Copy)]
pub(crate) struct Avx512<const BF16: bool>(());

impl<const BF16: bool> Avx512<BF16> {
    /// # Safety
    /// The processor has AVX-512 F, BW, VL, DQ and VNNI, and if `BF16` that too.
    pub(crate) unsafe fn new() -> Self {
        Avx512(())
    }
}

#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn run<K: Kernel>(s: Avx512<false>, kernel: K) -> K::Output {
    kernel.run(s)
}

#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
fn run_bf16<K: Kernel>(s: Avx512<true>, kernel: K) -> K::Output {
    kernel.run(s)
}

/// 32 activations as integers of at most `largest`, and their scale.
///
/// # Safety
/// The processor has AVX-512 F and DQ.
#[inline(always)]
unsafe fn round(x: &[f32; 32], largest: f32) -> ([__m512i; 2], f32) {
    // SAFETY: as above; the loads are of 16 floats each.
    unsafe {
        let (a, b) = (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x[16..].as_ptr()));
        let top = _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(a)), _mm512_castps_si512(_mm512_abs_ps(b)));
        let top = _mm256_max_epi32(_mm512_castsi512_si256(top), _mm512_extracti64x4_epi64::<1>(top));
        let top = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256::<1>(top));
        let top = _mm_max_epi32(top, _mm_shuffle_epi32::<0b01_00_11_10>(top));
        let top = _mm_max_epi32(top, _mm_shuffle_epi32::<0b10_11_00_01>(top));
        let (scale, inverse) = scale_and_inverse(_mm_cvtsi128_si32(top) as u32, largest);
        let inverse = _mm512_set1_ps(inverse);
        // The conversion rounds to nearest, ties to even; NaN gives i32::MIN, whose low half is 0.
        ([_mm512_cvtps_epi32(_mm512_mul_ps(a, inverse)), _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse))], scale)
    }
}

// SAFETY of every block below: the value `self` exists only if the instructions do, and loads and stores get references
// to as many bytes as they touch.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const BF16: bool> Simd for Avx512<BF16> {
    const ROWS: usize = 16;
    // 12 integer sums, 12 float sums and 2 weights fill 26 of the 32 registers.
    const COLUMNS: usize = 2;
    const TILE: usize = 6;
    const EXACT_TILE: usize = 6;
    const EXACT_LANES: usize = 8;
    const CENTRED: bool = false;
    const PLANES: bool = true;
    type F = __m512;
    type I = __m512i;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        unsafe { if BF16 { run_bf16(Avx512(()), kernel) } else { run(Avx512(()), kernel) } }
    }

    #[inline(always)]
    fn splat(self, v: f32) -> __m512 {
        unsafe { _mm512_set1_ps(v) }
    }
    #[inline(always)]
    fn load(self, line: &Line, _: usize) -> __m512 {
        unsafe { _mm512_load_ps(line.0.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store(self, v: __m512, line: &mut Line, _: usize) {
        unsafe { _mm512_store_ps(line.0.as_mut_ptr().cast(), v) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn fnma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn fms(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmsub_ps(a, b, c) }
    }

    #[inline(always)]
    fn splat_i(self, v: u32) -> __m512i {
        unsafe { _mm512_set1_epi32(v as i32) }
    }
    #[inline(always)]
    fn load_i(self, line: &Line, _: usize) -> __m512i {
        unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store_i(self, v: __m512i, line: &mut Line, _: usize) {
        unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), v) }
    }
    #[inline(always)]
    fn add_i(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    fn sub_bytes(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi8(a, b) }
    }
    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], v: __m512i) -> __m512i {
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), v) }
    }
    #[inline(always)]
    fn odd_bytes(self, v: __m512i) -> __m512i {
        unsafe { _mm512_srli_epi16::<8>(v) }
    }
    #[inline(always)]
    fn shl(self, v: __m512i, by: u32) -> __m512i {
        unsafe { _mm512_sll_epi32(v, _mm_cvtsi32_si128(by as i32)) }
    }
    #[inline(always)]
    fn shr(self, v: __m512i, by: u32) -> __m512i {
        unsafe { _mm512_srl_epi32(v, _mm_cvtsi32_si128(by as i32)) }
    }
    #[inline(always)]
    fn sar(self, v: __m512i, by: u32) -> __m512i {
        unsafe { _mm512_sra_epi32(v, _mm_cvtsi32_si128(by as i32)) }
    }
    #[inline(always)]
    fn to_f(self, v: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(v) }
    }
    #[inline(always)]
    fn as_f(self, v: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(v) }
    }
    #[inline(always)]
    fn as_i(self, v: __m512) -> __m512i {
        unsafe { _mm512_castps_si512(v) }
    }

    #[inline(always)]
    fn f16(self, rows: &[u8; 32], _: usize) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(rows.as_ptr().cast())) }
    }
    #[inline(always)]
    fn u8(self, rows: &[u8; 16], _: usize) -> __m512i {
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(rows.as_ptr().cast())) }
    }
    #[inline(always)]
    fn i8(self, rows: &[u8; 16], _: usize) -> __m512i {
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(rows.as_ptr().cast())) }
    }

    #[inline(always)]
    fn dot(self, acc: __m512i, codes: __m512i, x: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, codes, x) }
    }
    fn dot_centred(self, _: __m512i, _: __m512i, _: __m512i) -> __m512i {
        unreachable!("not a centred tier")
    }
    #[inline(always)]
    fn dot_pairs(self, acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        unsafe { _mm512_dpwssd_epi32(acc, w, x) }
    }
    #[inline(always)]
    fn dot_bf16(self, acc: __m512, w: __m512i, x: __m512i) -> __m512 {
        if !BF16 {
            unreachable!("no BF16 instruction");
        }
        // The casts keep the bits: 32 BF16 numbers have no conversion intrinsic from integers.
        unsafe { _mm512_dpbf16_ps(acc, transmute::<__m512i, __m512bh>(w), transmute::<__m512i, __m512bh>(x)) }
    }

    #[inline(always)]
    fn quantise8(self, x: &[f32; 32]) -> Quantised<8> {
        let mut words = [0; 8];
        unsafe {
            let (q, scale) = round(x, MAX8);
            let bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(q[1]), _mm512_cvtepi32_epi8(q[0]));
            _mm256_storeu_si256(words.as_mut_ptr().cast(), bytes);
            Quantised { words, scale, sums: [_mm512_reduce_add_epi32(q[0]), _mm512_reduce_add_epi32(q[1])] }
        }
    }
    #[inline(always)]
    fn quantise16(self, x: &[f32; 32]) -> Quantised<16> {
        let mut words = [0; 16];
        unsafe {
            let (q, scale) = round(x, MAX16);
            for (out, q) in words.as_chunks_mut::<8>().0.iter_mut().zip(q) {
                let low = _mm512_cvtepi32_epi8(q);
                // To nearest, as the low bytes are signed.
                let high = _mm512_cvtepi32_epi8(_mm512_srai_epi32::<8>(_mm512_add_epi32(q, _mm512_set1_epi32(128))));
                _mm_storeu_si128(out.as_mut_ptr().cast(), _mm_unpacklo_epi32(low, high));
                _mm_storeu_si128(out[4..].as_mut_ptr().cast(), _mm_unpackhi_epi32(low, high));
            }
            Quantised { words, scale, sums: [_mm512_reduce_add_epi32(q[0]), _mm512_reduce_add_epi32(q[1])] }
        }
    }

    #[inline(always)]
    fn prefetch(self, line: &Line, lines: usize) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>((&raw const *line).wrapping_add(lines).cast()) }
    }
    #[inline(always)]
    fn prefetch_far(self, line: &Line, lines: usize) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>((&raw const *line).wrapping_add(lines).cast()) }
    }
}
