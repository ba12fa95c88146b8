//! NEON: 8 rows to a vector of two registers, of which there are 32; with `DOT`, also the dot product of bytes.

use super::quantise::{MAX8, MAX16, Quantised, scale_and_inverse};
use super::{Kernel, Simd};
use crate::memory::Line;
use std::arch::aarch64::*;
use std::arch::asm;

#[derive(Clone, Copy)]
pub(crate) struct Neon<const DOT: bool>(());

impl<const DOT: bool> Neon<DOT> {
    /// # Safety
    /// The processor has NEON, and if `DOT` its dot products of bytes (FEAT_DotProd).
    pub(crate) unsafe fn new() -> Self {
        Neon(())
    }
}

#[inline(never)]
#[target_feature(enable = "neon")]
fn run<K: Kernel>(s: Neon<false>, kernel: K) -> K::Output {
    kernel.run(s)
}

#[inline(never)]
#[target_feature(enable = "neon,dotprod")]
fn run_dot<K: Kernel>(s: Neon<true>, kernel: K) -> K::Output {
    kernel.run(s)
}

/// Adds to each lane the sum of the products of its four signed bytes. The intrinsic is not stable yet.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction is enabled, and touches nothing but these registers.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {a:v}.16b, {b:v}.16b",
            acc = inout(vreg) acc,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// The same without the instruction. Two products, at most `128 * 127` each, fit in 16 bits.
#[inline]
#[target_feature(enable = "neon")]
fn dot_bytes(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let (low, high) = (vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b));
    vpadalq_s16(acc, vpaddq_s16(low, high))
}

/// 32 activations as integers of at most `largest`, and their scale.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn round(x: &[f32; 32], largest: f32) -> ([int32x4_t; 8], f32) {
    // SAFETY: as above; every load is of four floats.
    unsafe {
        let mut v = [vdupq_n_f32(0.0); 8];
        let mut top = vdupq_n_u32(0);
        for i in 0..8 {
            v[i] = vld1q_f32(x[4 * i..][..4].as_ptr());
            top = vmaxq_u32(top, vreinterpretq_u32_f32(vabsq_f32(v[i])));
        }
        let (scale, inverse) = scale_and_inverse(vmaxvq_u32(top), largest);
        let inverse = vdupq_n_f32(inverse);
        // The conversion rounds to nearest, ties to even; NaN gives 0.
        let mut q = [vdupq_n_s32(0); 8];
        for i in 0..8 {
            q[i] = vcvtnq_s32_f32(vmulq_f32(v[i], inverse));
        }
        (q, scale)
    }
}

/// Sums of the first and last 16 integers.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn sums(q: [int32x4_t; 8]) -> [i32; 2] {
    // SAFETY: as above.
    unsafe {
        [
            vaddvq_s32(vaddq_s32(vaddq_s32(q[0], q[1]), vaddq_s32(q[2], q[3]))),
            vaddvq_s32(vaddq_s32(vaddq_s32(q[4], q[5]), vaddq_s32(q[6], q[7]))),
        ]
    }
}

/// The same expression for both registers. Not a closure: that would be a function without these instructions.
macro_rules! both {
    ($i:ident => $e:expr) => {
        unsafe {
            [
                {
                    let $i = 0;
                    $e
                },
                {
                    let $i = 1;
                    $e
                },
            ]
        }
    };
}

/// What register `i` of a half holds, of whole lines or numbers of 16 rows: both are 0 or 1, which the remainders tell the
/// compiler, so that no check of a bound is left.
#[inline(always)]
fn part<const N: usize>(rows: &[u8], half: usize, i: usize) -> &[u8; N] {
    &rows.as_chunks().0[2 * (half % 2) + i % 2]
}
#[inline(always)]
fn part_mut(line: &mut Line, half: usize, i: usize) -> &mut [u8; 16] {
    &mut line.0.as_chunks_mut().0[2 * (half % 2) + i % 2]
}

type F = [float32x4_t; 2];
type I = [int32x4_t; 2];

// SAFETY of every block below: the value `self` exists only if the instructions do, and loads and stores get references
// to as many bytes as they touch, `half` being 0 or 1.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const DOT: bool> Simd for Neon<DOT> {
    const ROWS: usize = 8;
    // In registers: 12 for integer sums, 12 for float sums, 4 for weights, 1 for an activation.
    const COLUMNS: usize = 2;
    const TILE: usize = 3;
    const EXACT_TILE: usize = 3;
    const EXACT_LANES: usize = 4;
    // Both operands of the dot product are signed.
    const CENTRED: bool = true;
    type F = F;
    type I = I;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        unsafe { if DOT { run_dot(Neon(()), kernel) } else { run(Neon(()), kernel) } }
    }

    #[inline(always)]
    fn splat(self, v: f32) -> F {
        [unsafe { vdupq_n_f32(v) }; 2]
    }
    #[inline(always)]
    fn load(self, line: &Line, half: usize) -> F {
        both!(i => vld1q_f32(part::<16>(&line.0, half, i).as_ptr().cast()))
    }
    #[inline(always)]
    fn store(self, v: F, line: &mut Line, half: usize) {
        for i in 0..2 {
            unsafe { vst1q_f32(part_mut(line, half, i).as_mut_ptr().cast(), v[i]) }
        }
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        both!(i => vaddq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        both!(i => vmulq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        both!(i => vfmaq_f32(c[i], a[i], b[i]))
    }
    #[inline(always)]
    fn fnma(self, a: F, b: F, c: F) -> F {
        both!(i => vfmsq_f32(c[i], a[i], b[i]))
    }
    #[inline(always)]
    fn fms(self, a: F, b: F, c: F) -> F {
        both!(i => vfmaq_f32(vnegq_f32(c[i]), a[i], b[i]))
    }

    #[inline(always)]
    fn splat_i(self, v: u32) -> I {
        [unsafe { vdupq_n_s32(v as i32) }; 2]
    }
    #[inline(always)]
    fn load_i(self, line: &Line, half: usize) -> I {
        both!(i => vld1q_s32(part::<16>(&line.0, half, i).as_ptr().cast()))
    }
    #[inline(always)]
    fn store_i(self, v: I, line: &mut Line, half: usize) {
        for i in 0..2 {
            unsafe { vst1q_s32(part_mut(line, half, i).as_mut_ptr().cast(), v[i]) }
        }
    }
    #[inline(always)]
    fn add_i(self, a: I, b: I) -> I {
        both!(i => vaddq_s32(a[i], b[i]))
    }
    #[inline(always)]
    fn sub_bytes(self, a: I, b: I) -> I {
        both!(i => vreinterpretq_s32_s8(vsubq_s8(vreinterpretq_s8_s32(a[i]), vreinterpretq_s8_s32(b[i]))))
    }
    #[inline(always)]
    fn and(self, a: I, b: I) -> I {
        both!(i => vandq_s32(a[i], b[i]))
    }
    #[inline(always)]
    fn or(self, a: I, b: I) -> I {
        both!(i => vorrq_s32(a[i], b[i]))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], v: I) -> I {
        let table = unsafe { vld1q_u8(table.as_ptr()) };
        both!(i => vreinterpretq_s32_u8(vqtbl1q_u8(table, vreinterpretq_u8_s32(v[i]))))
    }
    #[inline(always)]
    fn odd_bytes(self, v: I) -> I {
        both!(i => vreinterpretq_s32_u16(vshrq_n_u16::<8>(vreinterpretq_u16_s32(v[i]))))
    }
    // A shift to the right is one by a negative number. Of a constant the compiler makes the immediate form, but for 0.
    #[inline(always)]
    fn shl(self, v: I, by: u32) -> I {
        if by == 0 { v } else { both!(i => vshlq_s32(v[i], vdupq_n_s32(by as i32))) }
    }
    #[inline(always)]
    fn shr(self, v: I, by: u32) -> I {
        if by == 0 {
            return v;
        }
        both!(i => vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(v[i]), vdupq_n_s32(-(by as i32)))))
    }
    #[inline(always)]
    fn sar(self, v: I, by: u32) -> I {
        if by == 0 { v } else { both!(i => vshlq_s32(v[i], vdupq_n_s32(-(by as i32)))) }
    }
    #[inline(always)]
    fn to_f(self, v: I) -> F {
        both!(i => vcvtq_f32_s32(v[i]))
    }
    #[inline(always)]
    fn as_f(self, v: I) -> F {
        both!(i => vreinterpretq_f32_s32(v[i]))
    }
    #[inline(always)]
    fn as_i(self, v: F) -> I {
        both!(i => vreinterpretq_s32_f32(v[i]))
    }

    #[inline(always)]
    fn f16(self, rows: &[u8; 32], half: usize) -> F {
        both!(i => vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(part::<8>(rows, half, i).as_ptr()))))
    }
    #[inline(always)]
    fn u8(self, rows: &[u8; 16], half: usize) -> I {
        unsafe {
            let v = vmovl_u8(vld1_u8(part::<8>(rows, 0, half).as_ptr()));
            [vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(v))), vreinterpretq_s32_u32(vmovl_high_u16(v))]
        }
    }
    #[inline(always)]
    fn i8(self, rows: &[u8; 16], half: usize) -> I {
        unsafe {
            let v = vmovl_s8(vld1_s8(part::<8>(rows, 0, half).as_ptr().cast()));
            [vmovl_s16(vget_low_s16(v)), vmovl_high_s16(v)]
        }
    }

    #[inline(always)]
    fn dot(self, acc: I, codes: I, x: I) -> I {
        both!(i => {
            let (codes, x) = (vreinterpretq_s8_s32(codes[i]), vreinterpretq_s8_s32(x[i]));
            if DOT { sdot(acc[i], codes, x) } else { dot_bytes(acc[i], codes, x) }
        })
    }
    #[inline(always)]
    fn dot_centred(self, acc: I, codes: I, x: I) -> I {
        let signed = both!(i => veorq_s32(codes[i], vdupq_n_s32(0x8080_8080_u32 as i32)));
        self.dot(acc, signed, x)
    }
    #[inline(always)]
    fn dot_pairs(self, acc: I, w: I, x: I) -> I {
        both!(i => {
            let (w, x) = (vreinterpretq_s16_s32(w[i]), vreinterpretq_s16_s32(x[i]));
            let (low, high) = (vmull_s16(vget_low_s16(w), vget_low_s16(x)), vmull_high_s16(w, x));
            vaddq_s32(acc[i], vpaddq_s32(low, high))
        })
    }
    fn dot_bf16(self, _: F, _: I, _: I) -> F {
        unreachable!("no BF16 instruction")
    }

    #[inline(always)]
    fn quantise8(self, x: &[f32; 32]) -> Quantised<8> {
        let mut words = [0; 8];
        unsafe {
            let (q, scale) = round(x, MAX8);
            for i in 0..2 {
                let low = vcombine_s16(vmovn_s32(q[4 * i]), vmovn_s32(q[4 * i + 1]));
                let high = vcombine_s16(vmovn_s32(q[4 * i + 2]), vmovn_s32(q[4 * i + 3]));
                let bytes = vcombine_s8(vmovn_s16(low), vmovn_s16(high));
                vst1q_u32(words[4 * i..][..4].as_mut_ptr(), vreinterpretq_u32_s8(bytes));
            }
            Quantised { words, scale, sums: sums(q) }
        }
    }
    #[inline(always)]
    fn quantise16(self, x: &[f32; 32]) -> Quantised<16> {
        // Within 64 bits from 0 1 2 3 to 0 2 1 3.
        const ORDER: [u8; 16] = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15];
        let mut words = [0; 16];
        unsafe {
            let (q, scale) = round(x, MAX16);
            let order = vld1q_u8(ORDER.as_ptr());
            for i in 0..4 {
                let halves = vcombine_s16(vmovn_s32(q[2 * i]), vmovn_s32(q[2 * i + 1]));
                let pairs = vqtbl1q_u8(vreinterpretq_u8_s16(halves), order);
                vst1q_u32(words[4 * i..][..4].as_mut_ptr(), vreinterpretq_u32_u8(pairs));
            }
            Quantised { words, scale, sums: sums(q) }
        }
    }

    #[inline(always)]
    fn prefetch(self, line: &Line, lines: usize) {
        let address = (&raw const *line).wrapping_add(lines);
        // A hint, which takes any address. The intrinsic is not stable yet.
        unsafe { asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags)) }
    }
    #[inline(always)]
    fn prefetch_far(self, line: &Line, lines: usize) {
        let address = (&raw const *line).wrapping_add(lines);
        // As above.
        unsafe { asm!("prfm pldl2keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags)) }
    }
}
