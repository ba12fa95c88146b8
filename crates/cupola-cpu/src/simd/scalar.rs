//! Plain Rust: the reference.

use super::{Kernel, Simd};
use crate::memory::Line;
use half::f16;

#[derive(Clone, Copy)]
pub(crate) struct Scalar;

type F = [f32; 16];
type I = [u32; 16];

#[inline(always)]
fn each(mut a: F, f: impl Fn(usize, f32) -> f32) -> F {
    for (i, v) in a.iter_mut().enumerate() {
        *v = f(i, *v);
    }
    a
}

#[inline(always)]
fn each_i(mut a: I, f: impl Fn(usize, u32) -> u32) -> I {
    for (i, v) in a.iter_mut().enumerate() {
        *v = f(i, *v);
    }
    a
}

impl Simd for Scalar {
    const ROWS: usize = 16;
    const COLUMNS: usize = 1;
    const TILE: usize = 4;
    const EXACT_TILE: usize = 4;
    const EXACT_LANES: usize = 16;
    const CENTRED: bool = false;
    type F = F;
    type I = I;

    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, v: f32) -> F {
        [v; 16]
    }
    #[inline(always)]
    fn load(self, line: &Line, _: usize) -> F {
        *line.floats()
    }
    #[inline(always)]
    fn store(self, v: F, line: &mut Line, _: usize) {
        *line.floats_mut() = v;
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        each(a, |i, v| v + b[i])
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        each(a, |i, v| v * b[i])
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        each(a, |i, v| v.mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn fnma(self, a: F, b: F, c: F) -> F {
        each(a, |i, v| (-v).mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn fms(self, a: F, b: F, c: F) -> F {
        each(a, |i, v| v.mul_add(b[i], -c[i]))
    }
    // Without the instruction a fused multiply-add is a function of some 50 ns.
    #[inline(always)]
    fn fma_fast(self, a: F, b: F, c: F) -> F {
        each(a, |i, v| v * b[i] + c[i])
    }
    #[inline(always)]
    fn fnma_fast(self, a: F, b: F, c: F) -> F {
        each(a, |i, v| c[i] - v * b[i])
    }

    #[inline(always)]
    fn splat_i(self, v: u32) -> I {
        [v; 16]
    }
    #[inline(always)]
    fn load_i(self, line: &Line, _: usize) -> I {
        line.floats().map(f32::to_bits)
    }
    #[inline(always)]
    fn store_i(self, v: I, line: &mut Line, _: usize) {
        *line.floats_mut() = v.map(f32::from_bits);
    }
    #[inline(always)]
    fn add_i(self, a: I, b: I) -> I {
        each_i(a, |i, v| v.wrapping_add(b[i]))
    }
    #[inline(always)]
    fn sub_bytes(self, a: I, b: I) -> I {
        each_i(a, |i, v| {
            let (v, w) = (v.to_ne_bytes(), b[i].to_ne_bytes());
            u32::from_ne_bytes([0, 1, 2, 3].map(|j| v[j].wrapping_sub(w[j])))
        })
    }
    #[inline(always)]
    fn and(self, a: I, b: I) -> I {
        each_i(a, |i, v| v & b[i])
    }
    #[inline(always)]
    fn or(self, a: I, b: I) -> I {
        each_i(a, |i, v| v | b[i])
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], v: I) -> I {
        each_i(v, |_, v| u32::from_ne_bytes(v.to_ne_bytes().map(|b| table[usize::from(b & 15)])))
    }
    #[inline(always)]
    fn odd_bytes(self, v: I) -> I {
        each_i(v, |_, v| v >> 8 & 0x00ff_00ff)
    }
    #[inline(always)]
    fn shl(self, v: I, by: u32) -> I {
        each_i(v, |_, v| v << by)
    }
    #[inline(always)]
    fn shr(self, v: I, by: u32) -> I {
        each_i(v, |_, v| v >> by)
    }
    #[inline(always)]
    fn sar(self, v: I, by: u32) -> I {
        each_i(v, |_, v| ((v as i32) >> by) as u32)
    }
    #[inline(always)]
    fn to_f(self, v: I) -> F {
        v.map(|v| v as i32 as f32)
    }
    #[inline(always)]
    fn as_f(self, v: I) -> F {
        v.map(f32::from_bits)
    }
    #[inline(always)]
    fn as_i(self, v: F) -> I {
        v.map(f32::to_bits)
    }

    #[inline(always)]
    fn f16(self, rows: &[u8; 32], _: usize) -> F {
        each([0.0; 16], |i, _| f16::from_le_bytes([rows[2 * i], rows[2 * i + 1]]).to_f32())
    }
    #[inline(always)]
    fn u8(self, rows: &[u8; 16], _: usize) -> I {
        rows.map(u32::from)
    }
    #[inline(always)]
    fn i8(self, rows: &[u8; 16], _: usize) -> I {
        rows.map(|v| v as i8 as u32)
    }

    #[inline(always)]
    fn dot(self, acc: I, codes: I, x: I) -> I {
        each_i(acc, |i, v| {
            let (c, x) = (codes[i].to_le_bytes(), x[i].to_le_bytes());
            let mut sum = v as i32;
            for j in 0..4 {
                sum += i32::from(c[j]) * i32::from(x[j] as i8);
            }
            sum as u32
        })
    }
    fn dot_centred(self, _: I, _: I, _: I) -> I {
        unreachable!("not a centred tier")
    }
    #[inline(always)]
    fn dot_pairs(self, acc: I, w: I, x: I) -> I {
        each_i(acc, |i, v| {
            let low = i32::from(w[i] as i16) * i32::from(x[i] as i16);
            let high = i32::from((w[i] >> 16) as i16) * i32::from((x[i] >> 16) as i16);
            (v as i32 + low + high) as u32
        })
    }
    fn dot_bf16(self, _: F, _: I, _: I) -> F {
        unreachable!("no BF16 instruction")
    }

    #[inline(always)]
    fn prefetch(self, _: &Line, _: usize) {}
    #[inline(always)]
    fn prefetch_far(self, _: &Line, _: usize) {}
}
