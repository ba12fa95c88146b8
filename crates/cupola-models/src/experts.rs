//! Mixtures of experts: one description for all families, as in `decoder`.

use crate::ModelError;
use crate::names::ExpertNames;
use crate::parameters::Loader;
use cupola_graph::{Activation, Expert, Gating, Groups, Moe, Routing, Scores, ValueId, VectorId, WeightId};

/// The feed-forward of the layers that have experts.
#[derive(Clone, Debug)]
pub(crate) struct Experts {
    pub count: usize,
    /// Between an expert's products.
    pub width: usize,
    /// Experts of a row.
    pub top_k: usize,
    pub scores: Scores,
    /// Whether a bias takes part in the choice.
    pub choice_bias: bool,
    pub groups: Option<Groups>,
    /// Whether the chosen scores are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights.
    pub scale: f32,
    pub gating: Gating,
    /// Whether the router has a bias.
    pub router_bias: bool,
    /// Whether the experts' products have biases.
    pub bias: bool,
    /// How the experts are stored.
    pub layout: Layout,
    /// An expert that computes every row.
    pub shared: Option<Shared>,
}

/// How the matrices of the experts are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A tensor for each.
    Separate,
    /// Three tensors `[experts, n_out, n_in]`.
    Banks,
    /// Gate above up `[experts, 2 * width, n_in]`, and down `[experts, n_out, width]`.
    GateUpBanks,
    /// gpt-oss: `[experts, n_in, 2 * width]`, with columns of gate and up in turn, and `[experts, width, n_out]`.
    Columns,
    /// gpt-oss in MXFP4: rows of gate and up in turn, in blocks and exponents.
    Mxfp4,
}

/// An expert that computes every row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    pub width: usize,
    /// Whether its output is multiplied with the sigmoid of a product of its own.
    pub gated: bool,
    /// Whether gate and up are one tensor.
    pub fused: bool,
}

type Bias = Option<VectorId>;

impl Experts {
    /// Experts that a softmax chooses.
    pub fn new(count: usize, width: usize, top_k: usize, activation: Activation) -> Experts {
        Experts {
            count,
            width,
            top_k,
            scores: Scores::Softmax,
            choice_bias: false,
            groups: None,
            normalise: false,
            scale: 1.0,
            gating: Gating::Plain(activation),
            router_bias: false,
            bias: false,
            layout: Layout::Separate,
            shared: None,
        }
    }

    /// Refuses numbers that cannot be.
    pub fn check(&self, hidden: usize) -> Result<(), ModelError> {
        let shared = self.shared.map_or(1, |s| s.width);
        for (what, size) in [
            ("the number of experts", self.count),
            ("the size of an expert", self.width),
            ("the size of the shared expert", shared),
        ] {
            if size == 0 {
                return Err(ModelError::hyperparameter(what, "above 0", 0));
            }
        }
        if self.top_k == 0 || self.top_k > self.count {
            let expected = format!("from 1 to the number of experts, {}", self.count);
            return Err(ModelError::hyperparameter("the number of experts of a token", expected, self.top_k));
        }
        let elements =
            self.width.max(shared).checked_mul(2 * hidden.min(usize::MAX / 2)).and_then(|n| n.checked_mul(self.count));
        if elements.is_none_or(|n| n > isize::MAX as usize) {
            let found = format!("{} of {} x {hidden}", self.count, self.width);
            return Err(ModelError::hyperparameter("the experts", "of a size that memory can hold", found));
        }
        Ok(())
    }

    /// The feed-forward of one layer on `h`; `name` makes names of tensors of names within the layer.
    pub fn build(
        &self,
        w: &mut Loader,
        names: &ExpertNames,
        name: &dyn Fn(&str) -> String,
        hidden: usize,
        h: ValueId,
    ) -> Result<ValueId, ModelError> {
        let router = w.matrix(&format!("{}.weight", name(names.router)), self.count, hidden)?;
        let bias = match self.router_bias {
            true => Some(w.vector(&format!("{}.bias", name(names.router)), self.count, 0.0)?),
            false => None,
        };
        let choice_bias = match self.choice_bias {
            // ERNIE has it as the only row of a matrix.
            true if w.has_rows(&name(names.choice_bias)) => {
                let [[bias]] = w.bank_of_vectors(&name(names.choice_bias), 1, self.count)?[..] else {
                    unreachable!("a bank of one has one vector")
                };
                Some(bias)
            }
            true => Some(w.vector(&name(names.choice_bias), self.count, 0.0)?),
            false => None,
        };
        let logits = w.builder.linear(h, router, bias);
        let experts = self.experts(w, names, name, hidden)?;
        let Experts { scores, groups, top_k, normalise, scale, gating, .. } = *self;
        let routing = Routing { scores, choice_bias, groups, top_k, normalise, scale };
        let y = w.builder.moe(Moe { x: h, logits, routing, experts, gating, out: h });
        let Some(shared) = self.shared else { return Ok(y) };
        let shared = self.shared(w, names, name, hidden, h, shared)?;
        Ok(w.builder.add(y, shared))
    }

    fn experts(
        &self,
        w: &mut Loader,
        names: &ExpertNames,
        name: &dyn Fn(&str) -> String,
        hidden: usize,
    ) -> Result<Vec<Expert>, ModelError> {
        let (count, width) = (self.count, self.width);
        let pair = |[gate, up]: [WeightId; 2]| (gate, up);
        let single = |[id]: [WeightId; 1]| id;
        let (gate_up, down): (Vec<(WeightId, WeightId)>, Vec<WeightId>) = match self.layout {
            Layout::Separate => {
                let of = |part: &str, e: usize| format!("{}.weight", name(&part.replace("{e}", &e.to_string())));
                let mut all = (vec![], vec![]);
                for e in 0..count {
                    let gate = w.matrix(&of(names.gate, e), width, hidden)?;
                    all.0.push((gate, w.matrix(&of(names.up, e), width, hidden)?));
                    all.1.push(w.matrix(&of(names.down, e), hidden, width)?);
                }
                all
            }
            Layout::Banks => {
                let mut bank = |part: &str, n_out, n_in| w.bank(&format!("{}.weight", name(part)), count, n_out, n_in);
                let gate = bank(names.gate_bank, width, hidden)?;
                let up = bank(names.up_bank, width, hidden)?;
                (gate.into_iter().zip(up).collect(), bank(names.down_bank, hidden, width)?)
            }
            Layout::GateUpBanks => {
                let named = |part: &str| if w.has(&name(part)) { name(part) } else { format!("{}.weight", name(part)) };
                let (gate_up, down) = (named(names.gate_up_bank), named(names.down_bank));
                let gate_up = w.bank_of_pairs(&gate_up, count, width, hidden)?;
                (gate_up.into_iter().map(pair).collect(), w.bank(&down, count, hidden, width)?)
            }
            Layout::Columns => {
                let gate_up = w.columns::<2>(&name(names.gate_up_bank), count, width, hidden)?;
                let down = w.columns::<1>(&name(names.down_bank), count, hidden, width)?;
                (gate_up.into_iter().map(pair).collect(), down.into_iter().map(single).collect())
            }
            Layout::Mxfp4 => {
                let gate_up = w.mxfp4::<2>(&name(names.gate_up_bank), count, width, hidden)?;
                let down = w.mxfp4::<1>(&name(names.down_bank), count, hidden, width)?;
                (gate_up.into_iter().map(pair).collect(), down.into_iter().map(single).collect())
            }
        };
        let biases = self.biases(w, names, name, hidden)?;
        let experts = gate_up.into_iter().zip(down).zip(biases);
        let expert = |(((gate, up), down), [of_gate, of_up, of_down]): (_, [Bias; 3])| Expert {
            gate: (gate, of_gate),
            up: (up, of_up),
            down: (down, of_down),
        };
        Ok(experts.map(expert).collect())
    }

    /// Of gate, up and down of each expert.
    fn biases(
        &self,
        w: &mut Loader,
        names: &ExpertNames,
        name: &dyn Fn(&str) -> String,
        hidden: usize,
    ) -> Result<Vec<[Bias; 3]>, ModelError> {
        let (count, width) = (self.count, self.width);
        if !self.bias {
            return Ok(vec![[None; 3]; count]);
        }
        let (gate_up, down): (Vec<[VectorId; 2]>, _) = match self.layout {
            Layout::Banks => {
                let mut of = |part: &str, len| w.bank_of_vectors::<1>(&format!("{}.bias", name(part)), count, len);
                let both = of(names.gate_bank, width)?.into_iter().zip(of(names.up_bank, width)?);
                (both.map(|([gate], [up])| [gate, up]).collect(), of(names.down_bank, hidden)?)
            }
            _ => {
                let of = |part: &str| format!("{}_bias", name(part));
                let gate_up = w.bank_of_vectors::<2>(&of(names.gate_up_bank), count, width)?;
                (gate_up, w.bank_of_vectors::<1>(&of(names.down_bank), count, hidden)?)
            }
        };
        let all = gate_up.into_iter().zip(down);
        Ok(all.map(|([gate, up], [down])| [Some(gate), Some(up), Some(down)]).collect())
    }

    fn shared(
        &self,
        w: &mut Loader,
        names: &ExpertNames,
        name: &dyn Fn(&str) -> String,
        hidden: usize,
        h: ValueId,
        Shared { width, gated, fused }: Shared,
    ) -> Result<ValueId, ModelError> {
        let Gating::Plain(activation) = self.gating else {
            return Err(ModelError::hyperparameter("the shared expert", "without bounds on its gate", "some"));
        };
        let pair = match fused {
            true => Some(w.stacked(&format!("{}.weight", name(names.shared_gate_up)), [width, width], hidden)?),
            false => None,
        };
        let mut matrix = |part: &str, n_out, n_in| w.matrix(&format!("{}.weight", name(part)), n_out, n_in);
        let [gate, up] = match pair {
            Some(pair) => pair,
            None => [matrix(names.shared_gate, width, hidden)?, matrix(names.shared_up, width, hidden)?],
        };
        let down = matrix(names.shared_down, hidden, width)?;
        let router = gated.then(|| matrix(names.shared_router, 1, hidden)).transpose()?;
        let g = &mut w.builder;
        let [gate, up] = g.linears(h, [(gate, None), (up, None)]);
        let glu = g.glu(gate, up, activation);
        let y = g.linear(glu, down, None);
        let Some(router) = router else { return Ok(y) };
        let by = g.linear(h, router, None);
        let by = g.activate(by, Activation::Sigmoid);
        Ok(g.scale_rows(y, by))
    }
}
