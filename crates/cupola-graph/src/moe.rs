//! Mixtures of experts.

use crate::{Gating, ValueId, VectorId, WeightId};

/// A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): every row is computed by the few experts that its logits
/// choose, and gets the weighted sum of what they give.
///
/// ```text
/// s[e]  = scores(logits)[e]
/// C     = the top_k experts with the largest s[e] + choice_bias[e], of equals those with lower indices
/// w[e]  = s[e], divided by the sum of s over C if normalised; times scale            for e in C
/// out   = sum over C of w[e] * (down[e] . gating(gate[e] . x, up[e] . x))
/// ```
///
/// With [`Groups`], only experts of the chosen groups can be chosen. If there are not `top_k` numbers to choose from
/// (NaNs), the lowest indices fill the rest.
///
/// Exact-mode order: softmax is `e[i] = exp(l[i] - max(l))`, then `e[i] / sum(e)` in the module's order of sums. Sums over
/// the chosen experts, that of scores and that of outputs, go in ascending order of experts, from +0; outputs are added
/// by fused multiply-add.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    /// `[rows, n_in]`.
    pub x: ValueId,
    /// The router's outputs, `[rows, experts]`.
    pub logits: ValueId,
    /// Who computes a row.
    pub routing: Routing,
    /// All of the same widths.
    pub experts: Vec<Expert>,
    /// What happens between an expert's products.
    pub gating: Gating,
    /// `[rows, n_out]`.
    pub out: ValueId,
}

/// How rows choose experts, see [`Moe`].
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// How logits become scores.
    pub scores: Scores,
    /// Added to the scores for the choice only, `[experts]`.
    pub choice_bias: Option<VectorId>,
    /// Experts are chosen from the best groups only.
    pub groups: Option<Groups>,
    /// Experts of a row.
    pub top_k: usize,
    /// Whether the chosen scores are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights.
    pub scale: f32,
}

/// How logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// Softmax over all experts.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
    /// The logits themselves choose; then softmax over the chosen ones, in ascending order of experts.
    SoftmaxOfChosen,
}

/// Experts in equal consecutive groups. A group is worth the sum of its `best` largest scores, biases included; the `top_k`
/// groups worth most are chosen, of equals those with lower indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// How many there are: a divisor of the number of experts.
    pub count: usize,
    /// How many may be chosen from.
    pub top_k: usize,
    /// Scores that count: 1 or 2.
    pub best: usize,
}

/// One expert of a [`Moe`]: a gated feed-forward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expert {
    /// `[width, n_in]` and `[width]`.
    pub gate: (WeightId, Option<VectorId>),
    /// `[width, n_in]` and `[width]`.
    pub up: (WeightId, Option<VectorId>),
    /// `[n_out, width]` and `[n_out]`.
    pub down: (WeightId, Option<VectorId>),
}
