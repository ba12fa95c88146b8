//! The ops in plain scalar code: what every kernel of every device is compared with.
//!
//! Each function follows the doc of its op in `cupola_graph`, with the sums in the order of exact mode.

use crate::lanes::{LANES, fold};
use crate::math::{erf, exp, max, min, tanh};
use cupola_graph::{Activation, BLOCK_TOKENS, Gating, Groups, NormKind, RopeStyle, Routing, Scores};
use std::f32::consts::SQRT_2;

/// `sqrt(2 / pi)`, of GELU's approximation.
pub(crate) const SQRT_2_OVER_PI: f32 = 0.797_884_6;
/// The cubic term's factor in GELU's approximation.
pub(crate) const GELU_CUBE: f32 = 0.044_715;

/// Sum of products: 32 lanes of fused multiply-adds, then the fold.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for (k, (a, b)) in a.iter().zip(b).enumerate() {
        lanes[k % LANES] = a.mul_add(*b, lanes[k % LANES]);
    }
    fold(lanes)
}

/// Sum: 32 lanes of additions, then the fold.
pub fn sum(a: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for (k, a) in a.iter().enumerate() {
        lanes[k % LANES] += a;
    }
    fold(lanes)
}

/// Normalises one group in place.
pub fn norm(kind: NormKind, x: &mut [f32], weight: Option<&[f32]>, bias: Option<&[f32]>, eps: f32) {
    let n = x.len() as f32;
    if kind == NormKind::Layer {
        let mean = sum(x) / n;
        x.iter_mut().for_each(|x| *x -= mean);
    }
    let factor = 1.0 / (dot(x, x) / n + eps).sqrt();
    for (i, x) in x.iter_mut().enumerate() {
        *x *= factor;
        if let Some(weight) = weight {
            *x *= weight[i];
        }
        if let Some(bias) = bias {
            *x += bias[i];
        }
    }
}

/// One output of a linear layer.
pub fn linear(weight: &[f32], x: &[f32], bias: Option<f32>, residual: Option<f32>) -> f32 {
    let mut y = dot(weight, x);
    if let Some(bias) = bias {
        y += bias;
    }
    if let Some(residual) = residual {
        y += residual;
    }
    y
}

/// Rotates one head in place; `cos` and `sin` have one entry for each pair.
pub fn rope(style: RopeStyle, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let pairs = cos.len();
    for (i, (c, s)) in cos.iter().zip(sin).enumerate() {
        let (at_a, at_b) = match style {
            RopeStyle::Halves => (i, i + pairs),
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
        };
        let (a, b) = (head[at_a], head[at_b]);
        head[at_a] = a.mul_add(*c, -(b * s));
        head[at_b] = b.mul_add(*c, a * s);
    }
}

/// A function of one element. GELU's products are taken from left to right.
pub fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + exp(-x)),
        Activation::GeluTanh => {
            let inner = SQRT_2_OVER_PI * (x + GELU_CUBE * (x * x * x));
            0.5 * x * (1.0 + tanh(inner))
        }
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / SQRT_2)),
        Activation::Relu => max(0.0, x),
        Activation::ReluSquared => max(0.0, x) * max(0.0, x),
        Activation::Sigmoid => 1.0 / (1.0 + exp(-x)),
    }
}

/// The two halves of a gated feed-forward.
pub fn gate(gating: Gating, gate: f32, up: f32) -> f32 {
    match gating {
        Gating::Plain(activation) => activate(activation, gate) * up,
        Gating::ClampedSwiglu { alpha, limit } => {
            let (g, u) = (min(gate, limit), max(min(up, limit), -limit));
            (u + 1.0) * (g / (1.0 + exp(-(alpha * g))))
        }
    }
}

/// The weights of all experts for one row; of those that are not chosen, nothing.
pub fn route(routing: &Routing, choice_bias: Option<&[f32]>, logits: &[f32]) -> Vec<Option<f32>> {
    let softmax = |x: &[f32], total: &dyn Fn(&[f32]) -> f32| -> Vec<f32> {
        let m = x.iter().fold(f32::NEG_INFINITY, |m, x| max(*x, m));
        let e: Vec<f32> = x.iter().map(|x| exp(x - m)).collect();
        let total = total(&e);
        e.iter().map(|e| e / total).collect()
    };
    let scores = match routing.scores {
        Scores::Softmax => softmax(logits, &sum),
        Scores::Sigmoid => logits.iter().map(|l| activate(Activation::Sigmoid, *l)).collect(),
        Scores::SoftmaxOfChosen => logits.to_vec(),
    };
    let rank = |e: usize| scores[e] + choice_bias.map_or(0.0, |bias| bias[e]);
    // The best first, of equals the lower index: the sort is stable.
    let sorted = |items: std::ops::Range<usize>, rank: &dyn Fn(usize) -> f32| {
        let mut items: Vec<usize> = items.collect();
        items.sort_by(|a, b| rank(*b).total_cmp(&rank(*a)));
        items
    };
    let mut allowed: Vec<usize> = (0..logits.len()).collect();
    if let Some(Groups { count, top_k, best }) = routing.groups {
        let size = logits.len() / count;
        let worth = |g: usize| sorted(g * size..(g + 1) * size, &rank)[..best].iter().map(|e| rank(*e)).sum();
        let groups = &sorted(0..count, &worth)[..top_k];
        allowed.retain(|e| groups.contains(&(e / size)));
    }
    let mut chosen = sorted(0..logits.len(), &rank);
    chosen.retain(|e| allowed.contains(e));
    chosen.truncate(routing.top_k);
    chosen.sort_unstable();
    let in_order = |x: &[f32]| x.iter().fold(0.0, |sum, x| sum + x);
    let mut weights: Vec<f32> = chosen.iter().map(|e| scores[*e]).collect();
    if routing.scores == Scores::SoftmaxOfChosen {
        weights = softmax(&weights, &in_order);
    } else if routing.normalise {
        let total = in_order(&weights);
        weights.iter_mut().for_each(|w| *w /= total);
    }
    let mut all = vec![None; logits.len()];
    for (expert, weight) in chosen.into_iter().zip(weights) {
        all[expert] = Some(routing.scale * weight);
    }
    all
}

/// Keeps `x` within `±cap`.
pub fn softcap(x: f32, cap: f32) -> f32 {
    cap * tanh(x / cap)
}

/// One query head at one position.
pub struct AttentionRow<'a> {
    /// `[key_dim]`.
    pub q: &'a [f32],
    /// Keys of the sequence from position 0 to the query's own, each `[key_dim]`.
    pub keys: &'a [&'a [f32]],
    /// Values, each `[value_dim]`.
    pub values: &'a [&'a [f32]],
    /// Factor on the scores.
    pub scale: f32,
    /// Keys that the query sees, itself included.
    pub window: Option<usize>,
    /// Bound on the scores.
    pub softcap: Option<f32>,
    /// A score without a value.
    pub sink: Option<f32>,
}

impl AttentionRow<'_> {
    /// `[value_dim]`.
    pub fn compute(&self, out: &mut [f32]) {
        let end = self.keys.len();
        let first = self.window.map_or(0, |w| end.saturating_sub(w));
        let score = |key: &&[f32]| {
            let s = dot(self.q, key) * self.scale;
            self.softcap.map_or(s, |cap| softcap(s, cap))
        };
        let mut weights: Vec<f32> = self.keys[first..].iter().map(score).collect();
        let m = weights.iter().chain(&self.sink).fold(f32::NEG_INFINITY, |m, s| max(*s, m));
        weights.iter_mut().for_each(|s| *s = exp(*s - m));

        let mut lanes = [0.0; LANES];
        for (j, e) in (first..end).zip(&weights) {
            lanes[j % LANES] += e;
        }
        let mut total = fold(lanes);
        if let Some(sink) = self.sink {
            total += exp(sink - m);
        }

        for (d, out) in out.iter_mut().enumerate() {
            let mut all = 0.0f32;
            for block in first / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS) {
                let positions = first.max(block * BLOCK_TOKENS)..end.min((block + 1) * BLOCK_TOKENS);
                let add = |sum: f32, j: usize| weights[j - first].mul_add(self.values[j][d], sum);
                all += positions.fold(0.0, add);
            }
            *out = all / total;
        }
    }
}
