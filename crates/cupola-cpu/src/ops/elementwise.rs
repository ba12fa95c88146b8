//! Functions of single elements.

use crate::lanes::{LANES, Lanes, Vector, kernel};
use crate::math::{erf_lanes, exp_lanes, tanh_lanes};
use crate::reference::{GELU_CUBE, SQRT_2_OVER_PI};
use cupola_graph::{Activation, Gating};
use std::cell::Cell;
use std::f32::consts::SQRT_2;

kernel! {
    /// `out = a + b`.
    pub(crate) fn add(s, a: &'a [Cell<f32>], b: &'a [Cell<f32>], out: &'a [Cell<f32>]) {
        for at in (0..out.len()).step_by(LANES) {
            s.put(s.get(a, at) + s.get(b, at), out, at);
        }
    }
}

kernel! {
    /// `out = by * x`.
    pub(crate) fn scale(s, x: &'a [Cell<f32>], by: f32, out: &'a [Cell<f32>]) {
        let by = s.all(by);
        for at in (0..out.len()).step_by(LANES) {
            s.put(by * s.get(x, at), out, at);
        }
    }
}

kernel! {
    /// `out = cap * tanh(x / cap)`.
    pub(crate) fn softcap(s, x: &'a [Cell<f32>], cap: f32, out: &'a [Cell<f32>]) {
        for at in (0..out.len()).step_by(LANES) {
            s.put(softcap_lanes(s, s.get(x, at), cap), out, at);
        }
    }
}

kernel! {
    /// `out = activation(x)`.
    pub(crate) fn activate(s, activation: Activation, x: &'a [Cell<f32>], out: &'a [Cell<f32>]) {
        for at in (0..out.len()).step_by(LANES) {
            s.put(activate_lanes(s, activation, s.get(x, at)), out, at);
        }
    }
}

kernel! {
    /// `out = gating(gate, up)`.
    pub(crate) fn glu(s, gating: Gating, gate: &'a [Cell<f32>], up: &'a [Cell<f32>], out: &'a [Cell<f32>]) {
        for at in (0..out.len()).step_by(LANES) {
            s.put(gate_lanes(s, gating, s.get(gate, at), s.get(up, at)), out, at);
        }
    }
}

kernel! {
    /// `out = by * x + out`, fused.
    pub(crate) fn add_scaled(s, x: &'a [Cell<f32>], by: f32, out: &'a [Cell<f32>]) {
        let by = s.all(by);
        for at in (0..out.len()).step_by(LANES) {
            s.put(by.fma(s.get(x, at), s.get(out, at)), out, at);
        }
    }
}

/// [`crate::reference::gate`] of each lane.
#[inline(always)]
fn gate_lanes<S: Lanes>(s: S, gating: Gating, gate: S::V, up: S::V) -> S::V {
    match gating {
        Gating::Plain(activation) => activate_lanes(s, activation, gate) * up,
        Gating::ClampedSwiglu { alpha, limit } => {
            let (one, limit) = (s.all(1.0), s.all(limit));
            let (g, u) = (gate.min(limit), up.min(limit).max(limit.negate()));
            (u + one) * (g / (one + exp_lanes(s, (s.all(alpha) * g).negate())))
        }
    }
}

/// [`crate::reference::softcap`] of each lane.
#[inline(always)]
pub(crate) fn softcap_lanes<S: Lanes>(s: S, x: S::V, cap: f32) -> S::V {
    s.all(cap) * tanh_lanes(s, x / s.all(cap))
}

/// [`crate::reference::activate`] of each lane.
#[inline(always)]
fn activate_lanes<S: Lanes>(s: S, activation: Activation, x: S::V) -> S::V {
    let one = s.all(1.0);
    match activation {
        Activation::Silu => x / (one + exp_lanes(s, x.negate())),
        Activation::GeluTanh => {
            let inner = s.all(SQRT_2_OVER_PI) * (x + s.all(GELU_CUBE) * (x * x * x));
            s.all(0.5) * x * (one + tanh_lanes(s, inner))
        }
        Activation::Gelu => s.all(0.5) * x * (one + erf_lanes(s, x / s.all(SQRT_2))),
        Activation::Relu => s.all(0.0).max(x),
        Activation::ReluSquared => s.all(0.0).max(x) * s.all(0.0).max(x),
        Activation::Sigmoid => one / (one + exp_lanes(s, x.negate())),
    }
}
