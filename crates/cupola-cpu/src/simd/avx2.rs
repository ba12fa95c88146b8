//! AVX2 with FMA and F16C: 8 rows to a vector, and 16 registers. Bytes and 16-bit integers are multiplied with instructions
//! of AVX2 or of VNNI in vectors of this size.

use super::quantise::{MAX8, MAX16, Quantised, scale_and_inverse};
use super::{Kernel, Simd};
use crate::memory::Line;
use std::arch::x86_64::*;
use std::marker::PhantomData;

#[derive(Clone, Copy)]
pub(crate) struct Avx2<D>(PhantomData<D>);

impl<D: IntegerDot> Avx2<D> {
    /// # Safety
    /// The processor has AVX2, FMA and F16C, and the instructions of `D`.
    pub(crate) unsafe fn new() -> Self {
        Avx2(PhantomData)
    }
}

/// How integers are multiplied and summed; the operations are those of [`Simd`].
///
/// # Safety
/// Of all its functions: the processor has the instructions.
pub(crate) trait IntegerDot: Copy + Send + Sync + 'static {
    const CENTRED: bool;
    const TILE: usize;
    unsafe fn run<K: Kernel>(kernel: K) -> K::Output;
    unsafe fn bytes(acc: __m256i, codes: __m256i, x: __m256i) -> __m256i;
    unsafe fn pairs(acc: __m256i, w: __m256i, x: __m256i) -> __m256i;
}

/// `vpmaddubsw` and `vpmaddwd` of AVX2.
#[derive(Clone, Copy)]
pub(crate) struct Madd;

/// `vpdpbusd` and `vpdpwssd` of AVX-VNNI. Not yet run on a processor that has them: what is tested is [`Vnni512`].
#[derive(Clone, Copy)]
pub(crate) struct Vnni;

/// The same instructions in the encoding of AVX-512, with which processors without AVX-VNNI test what is built on it. No
/// tier: it has not been compared with vectors twice as long.
#[cfg(test)]
#[derive(Clone, Copy)]
pub(crate) struct Vnni512;

macro_rules! integer_dot {
    ($name:ident, $features:literal, centred: $centred:literal, tile: $tile:literal, $bytes:expr, $pairs:expr) => {
        impl IntegerDot for $name {
            const CENTRED: bool = $centred;
            const TILE: usize = $tile;
            #[inline(always)]
            unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
                #[inline(never)]
                #[target_feature(enable = $features)]
                fn run<K: Kernel>(s: Avx2<$name>, kernel: K) -> K::Output {
                    kernel.run(s)
                }
                // SAFETY: this function's own condition.
                unsafe { run(Avx2(PhantomData), kernel) }
            }
            #[inline(always)]
            unsafe fn bytes(acc: __m256i, codes: __m256i, x: __m256i) -> __m256i {
                // SAFETY: this function's own condition.
                unsafe { $bytes(acc, codes, x) }
            }
            #[inline(always)]
            unsafe fn pairs(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
                // SAFETY: this function's own condition.
                unsafe { $pairs(acc, w, x) }
            }
        }
    };
}
// Registers: `2 * TILE` integer sums, as many float sums, 2 weights, 1 activation; without VNNI also temporaries.
integer_dot!(Madd, "avx2,fma,f16c", centred: true, tile: 2, madd_bytes, madd_pairs);
integer_dot!(
    Vnni, "avx2,fma,f16c,avxvnni", centred: false, tile: 3, _mm256_dpbusd_avx_epi32, _mm256_dpwssd_avx_epi32
);
#[cfg(test)]
integer_dot!(
    Vnni512, "avx2,fma,f16c,avx512vnni,avx512vl", centred: false, tile: 3, _mm256_dpbusd_epi32, _mm256_dpwssd_epi32
);

/// `vpmaddubsw` adds two products in 16 bits with saturation, hence [`Simd::CENTRED`].
#[inline]
#[target_feature(enable = "avx2")]
fn madd_bytes(acc: __m256i, codes: __m256i, x: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(codes, x);
    _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn madd_pairs(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
    _mm256_add_epi32(acc, _mm256_madd_epi16(w, x))
}

/// 32 activations as integers of at most `largest`, and their scale.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn round(x: &[f32; 32], largest: f32) -> ([__m256i; 4], f32) {
    // SAFETY: as above; every load is of eight floats.
    unsafe {
        let load = x.as_chunks::<8>().0;
        let v = [
            _mm256_loadu_ps(load[0].as_ptr()),
            _mm256_loadu_ps(load[1].as_ptr()),
            _mm256_loadu_ps(load[2].as_ptr()),
            _mm256_loadu_ps(load[3].as_ptr()),
        ];
        let magnitude = _mm256_set1_epi32(0x7fff_ffff);
        let mut top = _mm256_setzero_si256();
        for v in v {
            top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v), magnitude));
        }
        let top = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256::<1>(top));
        let top = _mm_max_epi32(top, _mm_shuffle_epi32::<0b01_00_11_10>(top));
        let top = _mm_max_epi32(top, _mm_shuffle_epi32::<0b10_11_00_01>(top));
        let (scale, inverse) = scale_and_inverse(_mm_cvtsi128_si32(top) as u32, largest);
        let inverse = _mm256_set1_ps(inverse);
        // The conversion rounds to nearest, ties to even.
        let mut q = [_mm256_setzero_si256(); 4];
        for i in 0..4 {
            q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
        }
        (q, scale)
    }
}

/// Sums of the first and last 16 integers.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn sums(q: [__m256i; 4]) -> [i32; 2] {
    // SAFETY: as above.
    unsafe {
        let sum = _mm256_hadd_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
        let sum = _mm256_hadd_epi32(sum, sum);
        let sum = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
        [_mm_extract_epi32::<0>(sum), _mm_extract_epi32::<1>(sum)]
    }
}

// SAFETY of every block below: the value `self` exists only if the instructions do, and loads and stores get references
// to as many bytes as they touch, `half` being 0 or 1.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<D: IntegerDot> Simd for Avx2<D> {
    const ROWS: usize = 8;
    const COLUMNS: usize = 2;
    const TILE: usize = D::TILE;
    const EXACT_TILE: usize = 3;
    const EXACT_LANES: usize = 4;
    const CENTRED: bool = D::CENTRED;
    type F = __m256;
    type I = __m256i;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        unsafe { D::run(kernel) }
    }

    #[inline(always)]
    fn splat(self, v: f32) -> __m256 {
        unsafe { _mm256_set1_ps(v) }
    }
    #[inline(always)]
    fn load(self, line: &Line, half: usize) -> __m256 {
        unsafe { _mm256_load_ps(line.0[32 * half..][..32].as_ptr().cast()) }
    }
    #[inline(always)]
    fn store(self, v: __m256, line: &mut Line, half: usize) {
        unsafe { _mm256_store_ps(line.0[32 * half..][..32].as_mut_ptr().cast(), v) }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn fnma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn fms(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmsub_ps(a, b, c) }
    }

    #[inline(always)]
    fn splat_i(self, v: u32) -> __m256i {
        unsafe { _mm256_set1_epi32(v as i32) }
    }
    #[inline(always)]
    fn load_i(self, line: &Line, half: usize) -> __m256i {
        unsafe { _mm256_load_si256(line.0[32 * half..][..32].as_ptr().cast()) }
    }
    #[inline(always)]
    fn store_i(self, v: __m256i, line: &mut Line, half: usize) {
        unsafe { _mm256_store_si256(line.0[32 * half..][..32].as_mut_ptr().cast(), v) }
    }
    #[inline(always)]
    fn add_i(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(a, b) }
    }
    #[inline(always)]
    fn sub_bytes(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_sub_epi8(a, b) }
    }
    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(a, b) }
    }
    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], v: __m256i) -> __m256i {
        unsafe { _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), v) }
    }
    #[inline(always)]
    fn odd_bytes(self, v: __m256i) -> __m256i {
        unsafe { _mm256_srli_epi16::<8>(v) }
    }
    #[inline(always)]
    fn shl(self, v: __m256i, by: u32) -> __m256i {
        unsafe { _mm256_sll_epi32(v, _mm_cvtsi32_si128(by as i32)) }
    }
    #[inline(always)]
    fn shr(self, v: __m256i, by: u32) -> __m256i {
        unsafe { _mm256_srl_epi32(v, _mm_cvtsi32_si128(by as i32)) }
    }
    #[inline(always)]
    fn sar(self, v: __m256i, by: u32) -> __m256i {
        unsafe { _mm256_sra_epi32(v, _mm_cvtsi32_si128(by as i32)) }
    }
    #[inline(always)]
    fn to_f(self, v: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(v) }
    }
    #[inline(always)]
    fn as_f(self, v: __m256i) -> __m256 {
        unsafe { _mm256_castsi256_ps(v) }
    }
    #[inline(always)]
    fn as_i(self, v: __m256) -> __m256i {
        unsafe { _mm256_castps_si256(v) }
    }

    #[inline(always)]
    fn f16(self, rows: &[u8; 32], half: usize) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(rows[16 * half..][..16].as_ptr().cast())) }
    }
    #[inline(always)]
    fn u8(self, rows: &[u8; 16], half: usize) -> __m256i {
        unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(rows[8 * half..][..8].as_ptr().cast())) }
    }
    #[inline(always)]
    fn i8(self, rows: &[u8; 16], half: usize) -> __m256i {
        unsafe { _mm256_cvtepi8_epi32(_mm_loadl_epi64(rows[8 * half..][..8].as_ptr().cast())) }
    }

    #[inline(always)]
    fn dot(self, acc: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        unsafe { D::bytes(acc, codes, x) }
    }
    #[inline(always)]
    fn dot_centred(self, acc: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        unsafe {
            // |w| * (x with the sign of w): at most 2 * 128 * 127, which 16 bits hold.
            let w = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
            self.dot(acc, _mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
        }
    }
    #[inline(always)]
    fn dot_pairs(self, acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
        unsafe { D::pairs(acc, w, x) }
    }
    fn dot_bf16(self, _: __m256, _: __m256i, _: __m256i) -> __m256 {
        unreachable!("no BF16 instruction")
    }

    #[inline(always)]
    fn quantise8(self, x: &[f32; 32]) -> Quantised<8> {
        let mut words = [0; 8];
        unsafe {
            let (q, scale) = round(x, MAX8);
            // Packing works in 128-bit halves; the permutation puts the words in order again.
            let bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
            let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            _mm256_storeu_si256(words.as_mut_ptr().cast(), bytes);
            Quantised { words, scale, sums: sums(q) }
        }
    }
    #[inline(always)]
    fn quantise16(self, x: &[f32; 32]) -> Quantised<16> {
        let mut words = [0; 16];
        unsafe {
            let (q, scale) = round(x, MAX16);
            // Within 64 bits from 0 1 2 3 to 0 2 1 3, then the 64-bit parts likewise, since packing works in 128-bit halves.
            let order = _mm256_setr_epi8(
                0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14,
                15,
            );
            for (out, q) in words.as_chunks_mut::<8>().0.iter_mut().zip(q.as_chunks::<2>().0) {
                let pairs = _mm256_shuffle_epi8(_mm256_packs_epi32(q[0], q[1]), order);
                let pairs = _mm256_permute4x64_epi64::<0b11_01_10_00>(pairs);
                _mm256_storeu_si256(out.as_mut_ptr().cast(), pairs);
            }
            Quantised { words, scale, sums: sums(q) }
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
