//! Rotary position embedding.

use crate::lanes::{LANES, Lanes, Vector, kernel};
use cupola_graph::RopeStyle;
use std::cell::Cell;

kernel! {
    /// Rotates every head of one row; `cos` and `sin` have one entry for each pair.
    pub(crate) fn rope(
        s,
        style: RopeStyle,
        head_dim: usize,
        cos: &'a [f32],
        sin: &'a [f32],
        x: &'a [Cell<f32>],
        out: &'a [Cell<f32>],
    ) {
        let rotated = 2 * cos.len();
        for (x, out) in x.chunks_exact(head_dim).zip(out.chunks_exact(head_dim)) {
            match style {
                RopeStyle::Halves => halves(s, cos, sin, &x[..rotated], &out[..rotated]),
                RopeStyle::Interleaved => interleaved(cos, sin, &x[..rotated], &out[..rotated]),
            }
            for (out, x) in out[rotated..].iter().zip(&x[rotated..]) {
                out.set(x.get());
            }
        }
    }
}

#[inline(always)]
fn halves<S: Lanes>(s: S, cos: &[f32], sin: &[f32], x: &[Cell<f32>], out: &[Cell<f32>]) {
    let ((xa, xb), (out_a, out_b)) = (x.split_at(cos.len()), out.split_at(cos.len()));
    for at in (0..cos.len()).step_by(LANES) {
        let (a, b) = (s.get(xa, at), s.get(xb, at));
        let (cos, sin) = (s.load_slice(cos, at), s.load_slice(sin, at));
        s.put(a.fma(cos, (b * sin).negate()), out_a, at);
        s.put(b.fma(cos, a * sin), out_b, at);
    }
}

#[inline(always)]
fn interleaved(cos: &[f32], sin: &[f32], x: &[Cell<f32>], out: &[Cell<f32>]) {
    for (i, (cos, sin)) in cos.iter().zip(sin).enumerate() {
        let (a, b) = (x[2 * i].get(), x[2 * i + 1].get());
        out[2 * i].set(a.mul_add(*cos, -(b * sin)));
        out[2 * i + 1].set(b.mul_add(*cos, a * sin));
    }
}
