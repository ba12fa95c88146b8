//! The ops of a program and what they mean.
//!
//! Values are f32. Every op but [`Attention`] works row by row, so the rows of a step never influence each other.
//!
//! # Exact mode: the order of sums
//!
//! In exact mode every device gives the same bits. Each sum has one order:
//!
//! - **dot**: a sum over `n` products keeps 32 lanes; product `k` goes to lane `k % 32` by fused multiply-add, in
//!   ascending `k`, from lanes of +0. Then lane `i` takes lane `i + 16`, then `i + 8`, `i + 4`, `i + 2`, `i + 1` (plain
//!   additions; lane 0 is the sum).
//! - **sum**: as a dot, with a plain addition in place of the fused multiply-add.
//!
//! Everything else is one IEEE operation after the other as written, correctly rounded, nothing contracted but the
//! multiply-adds that are written as fused. Products are taken from left to right; `x^3` is `x * x * x`. `exp`, `tanh` and
//! `erf` are the polynomials that the CPU backend defines. The bits of NaNs are not defined.
//! Outside exact mode a backend may use other orders and lower-precision operands, and documents its error.

use crate::{Expert, Moe, ValueId, VectorId, WeightId};

/// One operation of a program.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out[r] = scale * table[token[r]]`: a row of a weight matrix per token. The product is one rounding; a scale
    /// of 1 changes nothing.
    Embed {
        /// The embedding matrix `[vocab, width]`.
        table: WeightId,
        /// Factor on every element.
        scale: f32,
        /// `[rows, width]`.
        out: ValueId,
    },
    /// Normalisation, see [`Norm`].
    Norm {
        /// `[rows, width]`.
        x: ValueId,
        /// What is computed.
        norm: Norm,
        /// `[rows, width]`.
        out: ValueId,
    },
    /// Linear layers over one input, see [`Linears`].
    Linears(Linears),
    /// `out = activation(gate(x)) * up(x)`, see [`GatedLinear`].
    GatedLinear(GatedLinear),
    /// Rotary position embedding, see [`Rope`].
    Rope(Rope),
    /// Appends keys and values to a cache and attends, see [`Attention`].
    Attention(Attention),
    /// `out = activation(gate) * up`, element by element.
    Glu {
        /// `[rows, width]`.
        gate: ValueId,
        /// `[rows, width]`.
        up: ValueId,
        /// Applied to `gate`.
        activation: Activation,
        /// `[rows, width]`.
        out: ValueId,
    },
    /// `out = activation(x)`, element by element.
    Activate {
        /// `[rows, width]`.
        x: ValueId,
        /// The function.
        activation: Activation,
        /// `[rows, width]`.
        out: ValueId,
    },
    /// `out = a + b`, element by element.
    Add {
        /// `[rows, width]`.
        a: ValueId,
        /// `[rows, width]`.
        b: ValueId,
        /// `[rows, width]`.
        out: ValueId,
    },
    /// A mixture of experts, see [`Moe`].
    Moe(Moe),
    /// Heads put together: head `h` of `out` is head `h` of `a` followed by head `h` of `b`, or by its only one.
    JoinHeads {
        /// `[rows, heads * a_dim]`.
        a: ValueId,
        /// `[rows, heads * b_dim]`, or `[rows, b_dim]`, which all heads share.
        b: ValueId,
        /// Heads of `a`.
        heads: usize,
        /// Width of a head of `b`.
        b_dim: usize,
        /// `[rows, heads * (a_dim + b_dim)]`.
        out: ValueId,
    },
    /// `out[r] = by[r] * x[r]`: each row times a number of its own.
    ScaleRows {
        /// `[rows, width]`.
        x: ValueId,
        /// `[rows, 1]`.
        by: ValueId,
        /// `[rows, width]`.
        out: ValueId,
    },
    /// `out = by * x`, element by element.
    Scale {
        /// `[rows, width]`.
        x: ValueId,
        /// The factor.
        by: f32,
        /// `[rows, width]`.
        out: ValueId,
    },
    /// `out = cap * tanh(x / cap)`, element by element: keeps values within `±cap`.
    Softcap {
        /// `[rows, width]`.
        x: ValueId,
        /// The bound, positive.
        cap: f32,
        /// `[rows, width]`.
        out: ValueId,
    },
    /// Keeps the rows that the step wants outputs of.
    TakeWanted {
        /// `[rows, width]`.
        x: ValueId,
        /// `[wanted, width]`.
        out: ValueId,
    },
}

/// Normalisation of each row, or of each group of columns of a row.
///
/// With `x` the `group` elements, `n` their count, and the exact-mode sums of the module:
/// - [`NormKind::Rms`] (Zhang and Sennrich 2019, arXiv:1910.07467): `y = x * (1 / sqrt(dot(x, x) / n + eps)) * weight`
/// - [`NormKind::Layer`] (Ba et al. 2016, arXiv:1607.06450): `c = x - sum(x) / n`,
///   `y = c * (1 / sqrt(dot(c, c) / n + eps)) * weight + bias`
///
/// Products are taken from left to right, each rounded; the bias is one plain addition.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    /// Which normalisation.
    pub kind: NormKind,
    /// Elements that are normalised together: the width of `x`, or a divisor of it (per-head norms).
    pub group: usize,
    /// `[group]`, the same for every group; absent: 1.
    pub weight: Option<VectorId>,
    /// `[group]`, the same for every group; absent: 0.
    pub bias: Option<VectorId>,
    /// Added to the mean square.
    pub eps: f32,
}

/// See [`Norm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Root mean square.
    Rms,
    /// Mean and variance.
    Layer,
}

/// Matrix products that share an input: each job gives `dot(weight[o], h) (+ bias[o]) (+ residual)` for every output `o`,
/// where `h` is `x`, or its normalisation. Bias, then residual, are plain additions after the dot is complete.
#[derive(Clone, Debug, PartialEq)]
pub struct Linears {
    /// `[rows, n_in]`.
    pub x: ValueId,
    /// Normalisation of `x` before the products; its group is the whole width.
    pub norm: Option<Norm>,
    /// At least one.
    pub jobs: Vec<Linear>,
}

/// One product of a [`Linears`].
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// `[n_out, n_in]`.
    pub weight: WeightId,
    /// `[n_out]`.
    pub bias: Option<VectorId>,
    /// What happens to the product.
    pub epilogue: Epilogue,
    /// `[rows, n_out]`.
    pub out: ValueId,
}

/// What a [`Linear`] does with its product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// `out = product`.
    Store,
    /// `out = residual + product`.
    Add(ValueId),
}

/// The first half of a gated feed-forward: `out = activation(gate . h) * (up . h)`, where `h` is `x` or its
/// normalisation. The products are those of [`Linears`].
#[derive(Clone, Debug, PartialEq)]
pub struct GatedLinear {
    /// `[rows, n_in]`.
    pub x: ValueId,
    /// Normalisation of `x` before the products; its group is the whole width.
    pub norm: Option<Norm>,
    /// `[n_out, n_in]`.
    pub gate: WeightId,
    /// `[n_out]`.
    pub gate_bias: Option<VectorId>,
    /// `[n_out, n_in]`.
    pub up: WeightId,
    /// `[n_out]`.
    pub up_bias: Option<VectorId>,
    /// Applied to the gate's product.
    pub activation: Activation,
    /// `[rows, n_out]`.
    pub out: ValueId,
}

/// Functions of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3)))`.
    GeluTanh,
    /// `0.5 * x * (1 + erf(x / sqrt(2)))`.
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

/// How the two halves of a gated feed-forward become one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gating {
    /// `activation(gate) * up`.
    Plain(Activation),
    /// `(u + 1) * (g / (1 + exp(-(alpha * g))))` with `g = min(gate, limit)` and `u = max(min(up, limit), -limit)`: the
    /// SwiGLU of gpt-oss.
    ClampedSwiglu {
        /// Steepness of the sigmoid.
        alpha: f32,
        /// Bound on both halves; positive.
        limit: f32,
    },
}

/// Rotary position embedding (Su et al. 2021, arXiv:2104.09864) of every head of `x`: with `c` and `s` the cosine and
/// sine of the row's position and pair (see [`RopeTable`](crate::RopeTable)), a pair `(a, b)` becomes
/// `(fma(a, c, -(b * s)), fma(b, c, a * s))`. Elements after the rotated ones are copied.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// `[rows, heads * head_dim]`.
    pub x: ValueId,
    /// Width of a head.
    pub head_dim: usize,
    /// How pairs are formed.
    pub style: RopeStyle,
    /// Index into [`Program::ropes`](crate::Program::ropes).
    pub table: usize,
    /// `[rows, heads * head_dim]`.
    pub out: ValueId,
}

/// Which two elements of a head form pair `i` of `n` rotated elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// `(i, i + n / 2)`: Hugging Face's order.
    Halves,
    /// `(2i, 2i + 1)`: the paper's order, and GGUF's for the llama family.
    Interleaved,
}

/// Causal attention over the sequence's cache.
///
/// First the row's keys and values are stored at its position (rounded to the cache's type). Then, for query head `h`,
/// reading key-value head `h / (heads / kv_heads)`, over the keys `j` with `j <= p`, and `j > p - window` if there is one,
/// for a query at position `p`:
///
/// ```text
/// s[j] = dot(q, k[j]) * scale;   s[j] = softcap * tanh(s[j] / softcap) if there is a softcap
/// m    = max(s[j], sink)         e[j] = exp(s[j] - m)
/// out  = sum(e[j] * v[j]) / (sum(e[j]) + exp(sink - m))
/// ```
///
/// Exact-mode order: `sum(e)` has 32 lanes, lane `j % 32`, ascending `j`, folded as in a dot, then the sink is added. The
/// weighted sum of values is taken per block of 32 positions (fused multiply-adds in ascending `j` from +0), and the
/// blocks' sums are added in ascending order, from +0.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// `[rows, heads * key_dim]`.
    pub q: ValueId,
    /// `[rows, kv_heads * key_dim]`.
    pub k: ValueId,
    /// `[rows, kv_heads * value_dim]`.
    pub v: ValueId,
    /// Index into [`Program::kv`](crate::Program::kv), which has the key-value heads and dims.
    pub layer: usize,
    /// Query heads; a multiple of the layer's key-value heads.
    pub heads: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Keys that a query sees, itself included; absent: all.
    pub window: Option<usize>,
    /// Bound on the scores.
    pub softcap: Option<f32>,
    /// A learned score per query head, `[heads]`, that takes weight but has no value.
    pub sink: Option<VectorId>,
    /// `[rows, heads * value_dim]`.
    pub out: ValueId,
}

impl Op {
    /// The op's kind, as statistics and listings name it.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::Norm { .. } => "norm",
            Op::Linears(_) => "linears",
            Op::GatedLinear(_) => "gated_linear",
            Op::Rope(_) => "rope",
            Op::Attention(_) => "attention",
            Op::Glu { .. } => "glu",
            Op::Activate { .. } => "activate",
            Op::Add { .. } => "add",
            Op::Moe(_) => "moe",
            Op::JoinHeads { .. } => "join_heads",
            Op::ScaleRows { .. } => "scale_rows",
            Op::Scale { .. } => "scale",
            Op::Softcap { .. } => "softcap",
            Op::TakeWanted { .. } => "take_wanted",
        }
    }

    /// Values that the op reads, in a fixed order.
    pub fn inputs(&self) -> Vec<ValueId> {
        match self {
            Op::Embed { .. } => vec![],
            Op::Norm { x, .. } | Op::Activate { x, .. } | Op::Scale { x, .. } => vec![*x],
            Op::Softcap { x, .. } | Op::TakeWanted { x, .. } => vec![*x],
            Op::Linears(l) => {
                let residual = |j: &Linear| match j.epilogue {
                    Epilogue::Add(r) => Some(r),
                    Epilogue::Store => None,
                };
                std::iter::once(l.x).chain(l.jobs.iter().filter_map(residual)).collect()
            }
            Op::GatedLinear(g) => vec![g.x],
            Op::Rope(r) => vec![r.x],
            Op::Attention(a) => vec![a.q, a.k, a.v],
            Op::Glu { gate, up, .. } => vec![*gate, *up],
            Op::Add { a, b, .. } | Op::JoinHeads { a, b, .. } => vec![*a, *b],
            Op::Moe(m) => vec![m.x, m.logits],
            Op::ScaleRows { x, by, .. } => vec![*x, *by],
        }
    }

    /// Values that the op writes, in a fixed order.
    pub fn outputs(&self) -> Vec<ValueId> {
        match self {
            Op::Linears(l) => l.jobs.iter().map(|j| j.out).collect(),
            Op::GatedLinear(GatedLinear { out, .. })
            | Op::Rope(Rope { out, .. })
            | Op::Attention(Attention { out, .. })
            | Op::Moe(Moe { out, .. })
            | Op::JoinHeads { out, .. }
            | Op::ScaleRows { out, .. }
            | Op::Embed { out, .. }
            | Op::Norm { out, .. }
            | Op::Glu { out, .. }
            | Op::Activate { out, .. }
            | Op::Add { out, .. }
            | Op::Scale { out, .. }
            | Op::Softcap { out, .. }
            | Op::TakeWanted { out, .. } => vec![*out],
        }
    }

    /// Weight matrices that the op reads.
    pub fn weights(&self) -> Vec<WeightId> {
        match self {
            Op::Embed { table, .. } => vec![*table],
            Op::Linears(l) => l.jobs.iter().map(|j| j.weight).collect(),
            Op::GatedLinear(g) => vec![g.gate, g.up],
            Op::Moe(m) => m.experts.iter().flat_map(|e| [e.gate.0, e.up.0, e.down.0]).collect(),
            _ => vec![],
        }
    }

    /// Vectors (norm weights, biases, sinks) that the op reads.
    pub fn vectors(&self) -> Vec<VectorId> {
        let of_norm = |n: &Norm| [n.weight, n.bias];
        let found: Vec<Option<VectorId>> = match self {
            Op::Norm { norm, .. } => of_norm(norm).into(),
            Op::Linears(l) => l.norm.iter().flat_map(of_norm).chain(l.jobs.iter().map(|j| j.bias)).collect(),
            Op::GatedLinear(g) => g.norm.iter().flat_map(of_norm).chain([g.gate_bias, g.up_bias]).collect(),
            Op::Attention(a) => vec![a.sink],
            Op::Moe(m) => {
                let of_expert = |e: &Expert| [e.gate.1, e.up.1, e.down.1];
                m.experts.iter().flat_map(of_expert).chain([m.routing.choice_bias]).collect()
            }
            _ => vec![],
        };
        found.into_iter().flatten().collect()
    }

    /// Whether an output may share memory with the input `x` once nothing reads `x` any more: each output element
    /// depends on `x` only at its own place.
    pub fn in_place(&self, x: ValueId) -> bool {
        match self {
            Op::Norm { .. } | Op::Rope(_) | Op::Glu { .. } | Op::Activate { .. } => true,
            Op::Add { .. } | Op::Scale { .. } | Op::Softcap { .. } => true,
            Op::ScaleRows { by, .. } => *by != x,
            Op::Linears(l) => l.jobs.len() == 1 && l.jobs[0].epilogue == Epilogue::Add(x) && l.x != x,
            _ => false,
        }
    }
}
