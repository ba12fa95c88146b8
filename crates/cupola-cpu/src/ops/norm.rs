//! Normalisation.

use crate::lanes::{LANES, Lanes, Vector, kernel};
use cupola_graph::NormKind;
use std::cell::Cell;

kernel! {
    /// Normalises one row, group by group of `group` elements.
    pub(crate) fn norm(
        s,
        kind: NormKind,
        group: usize,
        weight: Option<&'a [f32]>,
        bias: Option<&'a [f32]>,
        eps: f32,
        x: &'a [Cell<f32>],
        out: &'a [Cell<f32>],
    ) {
        for (x, out) in x.chunks_exact(group).zip(out.chunks_exact(group)) {
            match kind {
                NormKind::Rms => normalise(s, weight, bias, eps, x, out),
                NormKind::Layer => {
                    centre(s, x, out);
                    normalise(s, weight, bias, eps, out, out);
                }
            }
        }
    }
}

/// `out = x - mean(x)`.
#[inline(always)]
fn centre<S: Lanes>(s: S, x: &[Cell<f32>], out: &[Cell<f32>]) {
    let mut sum = s.all(0.0);
    for at in (0..x.len()).step_by(LANES) {
        sum = sum + s.get(x, at);
    }
    let mean = s.all(sum.sum() / x.len() as f32);
    for at in (0..x.len()).step_by(LANES) {
        s.put(s.get(x, at) - mean, out, at);
    }
}

/// `out = x * (1 / sqrt(dot(x, x) / n + eps)) * weight + bias`.
#[inline(always)]
fn normalise<S: Lanes>(
    s: S,
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    eps: f32,
    x: &[Cell<f32>],
    out: &[Cell<f32>],
) {
    let mut squares = s.all(0.0);
    for at in (0..x.len()).step_by(LANES) {
        let x = s.get(x, at);
        squares = x.fma(x, squares);
    }
    let factor = s.all(1.0 / (squares.sum() / x.len() as f32 + eps).sqrt());
    for at in (0..x.len()).step_by(LANES) {
        let mut y = s.get(x, at) * factor;
        if let Some(weight) = weight {
            y = y * s.load_slice(weight, at);
        }
        if let Some(bias) = bias {
            y = y + s.load_slice(bias, at);
        }
        s.put(y, out, at);
    }
}
