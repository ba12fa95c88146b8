//! The common decoder: one description that every family fills in, one way to turn it into a program.

use crate::experts::Experts;
use crate::latent::{Heads, Latent};
use crate::names::{IGNORED, Names};
use crate::parameters::Loader;
use crate::{ModelError, Parameters};
use cupola_formats::Checkpoint;
use cupola_graph::{
    Activation, Attention, Builder, KvLayer, Norm, NormKind, Program, RopeStyle, RopeTable, ValueId, VectorId, WeightId,
};
use std::sync::Arc;

/// A decoder-only transformer: embedding, layers of attention and gated feed-forward with residuals, norm, logits.
///
/// What differs between families is a field here. A family's file fills it from a config; nothing else knows families.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    /// What the tensors are called.
    pub names: Names,
    /// Whether checkpoints hold layers after these, which foretell further tokens and are not used.
    pub draft_layers: bool,
    /// Longest sequence that the model is made for.
    pub context_length: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Factor on the embedding.
    pub embed_scale: f32,
    /// Each layer's differences from the others.
    pub layers: Vec<Layer>,
    /// How heads look at each other.
    pub attention: AttentionSpec,
    /// The feed-forward.
    pub mlp: Mlp,
    /// That of the layers that have experts.
    pub experts: Option<Experts>,
    /// Added to the mean square of every norm.
    pub norm_eps: f32,
    /// Added to the stored weights of every norm: 1 where they are stored as distance from 1.
    pub norm_offset: f32,
    /// Root mean square, or mean and variance.
    pub norm_kind: NormKind,
    /// Whether norms have biases; those of heads have none.
    pub norm_bias: bool,
    /// Where a layer's norms are.
    pub placement: Placement,
    /// Factor on what attention and feed-forward add to the residual stream.
    pub residual_scale: f32,
    /// Whether the logits' matrix is the embedding.
    pub tied: bool,
    /// Whether the logits have a bias.
    pub head_bias: bool,
    /// Factor on the logits.
    pub logit_scale: f32,
    /// Bound on the logits.
    pub logit_softcap: Option<f32>,
}

/// Where the norms of a layer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Before attention and before the feed-forward.
    Before,
    /// After both, before what they give is added to the residual stream.
    After,
    /// Before and after both.
    Around,
    /// Before both, which read the same residual stream and are added to it together. The feed-forward shares the norm of
    /// attention, unless it has one of its own.
    Parallel { own_norm: bool },
}

/// How the matrices of queries, keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Qkv {
    /// A tensor for each.
    Separate,
    /// One tensor with all queries above all keys above all values.
    Stacked,
    /// One tensor with query, key and value of each head in turn. As many key-value heads as heads.
    ByHead,
}

/// Norms of queries and keys, before the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QkNorm {
    None,
    /// Each head, all with the same weights.
    Heads,
    /// All heads together.
    Whole,
}

/// What one layer has for itself.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// Its rotary frequencies, most often those of other layers too; absent: positions play no role.
    pub rope: Option<Arc<RopeTable>>,
    /// Keys that a query sees, itself included; absent: all.
    pub window: Option<usize>,
    /// Whether its feed-forward is a mixture of experts.
    pub experts: bool,
}

/// Attention of every layer.
#[derive(Clone, Debug)]
pub(crate) struct AttentionSpec {
    pub heads: usize,
    pub kv_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Bound on the scores.
    pub softcap: Option<f32>,
    pub rope_style: RopeStyle,
    pub qk_norm: QkNorm,
    /// How queries, keys and values are stored.
    pub qkv: Qkv,
    /// Latent attention, which has matrices of its own.
    pub latent: Option<Latent>,
    /// Whether the products that give queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the product after attention has a bias.
    pub out_bias: bool,
    /// Whether each head has a score that takes weight but has no value.
    pub sinks: bool,
}

/// The feed-forward of every layer.
#[derive(Clone, Debug)]
pub(crate) struct Mlp {
    pub width: usize,
    /// Whether it has a gate.
    pub gated: bool,
    pub activation: Activation,
    /// Whether gate and up are one tensor; then they have no biases.
    pub fused: bool,
    pub bias: bool,
}

impl Decoder {
    /// The program and where its parameters are.
    pub fn build<'c>(
        &self,
        checkpoint: &'c Checkpoint,
        family: &'static str,
    ) -> Result<(Program, Parameters<'c>), ModelError> {
        self.check()?;
        let embed = format!("{}.weight", self.names.embed);
        let vocab = checkpoint.tensor(&embed).and_then(|t| t.shape.first().copied());
        let vocab = vocab.ok_or(ModelError::MissingTensor { tensor: embed.clone(), family })?;
        let mut w = Loader::new(checkpoint, family, vocab);

        let table = w.matrix(&embed, vocab, self.hidden)?;
        let mut x = w.builder.embed(table, self.embed_scale);
        for i in 0..self.layers.len() {
            w.builder.scope(format!("l{i}"));
            x = self.layer(&mut w, i, x)?;
        }
        w.builder.scope("");
        let norm = self.norm(&mut w, &self.names.final_norm, self.hidden)?;
        let head = match self.tied {
            true => table,
            false => w.matrix(&format!("{}.weight", self.names.head), vocab, self.hidden)?,
        };
        let bias = bias_of(&mut w, &self.names.head, vocab, self.head_bias)?;
        w.refuse_unused(&self.names.layers, self.draft_layers.then_some(self.layers.len()), &IGNORED)?;

        let (mut g, parameters) = w.finish();
        let h = g.norm(x, norm);
        let logits = g.linear(h, head, bias);
        let mut logits = g.scale(logits, self.logit_scale);
        if let Some(cap) = self.logit_softcap {
            logits = g.softcap(logits, cap);
        }
        Ok((g.finish(logits)?, parameters))
    }

    /// One layer. In the last one, everything after attention is computed for the wanted rows only.
    fn layer(&self, w: &mut Loader, i: usize, x: ValueId) -> Result<ValueId, ModelError> {
        let names = &self.names.layer;
        let name = |part: &str| format!("{}{i}.{part}", self.names.layers);
        let (before, after) = match self.placement {
            Placement::Before | Placement::Parallel { .. } => (true, false),
            Placement::After => (false, true),
            Placement::Around => (true, true),
        };
        let last = i + 1 == self.layers.len();
        let norm = |w: &mut Loader, part: &str, x: ValueId, wanted: bool| match wanted {
            true => {
                let norm = self.norm(w, &name(part), self.hidden)?;
                Ok(w.builder.norm(x, norm))
            }
            false => Ok::<_, ModelError>(x),
        };
        let mut x = x;

        let h = norm(w, names.attention_norm, x, before)?;
        let mut a = self.attend(w, i, h)?;
        if last {
            (x, a) = (w.builder.take_wanted(x), w.builder.take_wanted(a));
        }
        let a_width = self.attention.heads * self.attention.value_dim;
        let o = linear(w, a, &name(names.out), self.hidden, a_width, self.attention.out_bias)?;
        let o = norm(w, names.post_attention_norm, o, after)?;
        let o = w.builder.scale(o, self.residual_scale);
        let sum = w.builder.add(x, o);

        let h = match self.placement {
            Placement::Parallel { own_norm: false } if last => w.builder.take_wanted(h),
            Placement::Parallel { own_norm: false } => h,
            Placement::Parallel { own_norm: true } => norm(w, names.mlp_norm, x, true)?,
            _ => norm(w, names.mlp_norm, sum, before)?,
        };
        let y = match self.experts.as_ref().filter(|_| self.layers[i].experts) {
            Some(experts) => experts.build(w, &names.experts, &name, self.hidden, h)?,
            None => self.feed_forward(w, i, h)?,
        };
        let y = norm(w, names.post_mlp_norm, y, after)?;
        let y = w.builder.scale(y, self.residual_scale);
        Ok(w.builder.add(sum, y))
    }

    /// The feed-forward of a layer without experts.
    fn feed_forward(&self, w: &mut Loader, i: usize, h: ValueId) -> Result<ValueId, ModelError> {
        let names = &self.names.layer;
        let name = |part: &str| format!("{}{i}.{part}", self.names.layers);
        let (width, bias) = (self.mlp.width, self.mlp.bias);
        if !self.mlp.gated {
            let up = linear(w, h, &name(names.up), width, self.hidden, bias)?;
            let h = w.builder.activate(up, self.mlp.activation);
            return linear(w, h, &name(names.down), self.hidden, width, bias);
        }
        let [gate, up] = match self.mlp.fused {
            true => w.stacked(&format!("{}.weight", name(names.gate_up)), [width, width], self.hidden)?,
            false => {
                let mut matrix = |part| w.matrix(&format!("{}.weight", name(part)), width, self.hidden);
                [matrix(names.gate)?, matrix(names.up)?]
            }
        };
        let gate = (gate, bias_of(w, &name(names.gate), width, bias)?);
        let up = (up, bias_of(w, &name(names.up), width, bias)?);
        let [gate, up] = w.builder.linears(h, [gate, up]);
        let h = w.builder.glu(gate, up, self.mlp.activation);
        linear(w, h, &name(names.down), self.hidden, width, bias)
    }

    /// Queries, keys, values, rotation, attention; not yet the product after it.
    fn attend(&self, w: &mut Loader, i: usize, h: ValueId) -> Result<ValueId, ModelError> {
        let names = &self.names.layer;
        let name = |part: &str| format!("{}{i}.{part}", self.names.layers);
        let a = &self.attention;
        let Layer { rope, window, .. } = &self.layers[i];
        let table = rope.as_ref().map(|table| w.builder.rope_table(RopeTable::clone(table)));
        let [q, k, v] = match &a.latent {
            Some(latent) => {
                let (count, style, eps) = (a.heads, a.rope_style, self.norm_eps);
                let heads = Heads { count, key_dim: a.key_dim, value_dim: a.value_dim, style, table, eps };
                latent.build(w, &names.latent, &name, h, self.hidden, &heads)?
            }
            None => self.qkv(w, i, h, table)?,
        };
        let sink = match a.sinks {
            true => Some(w.vector(&name(names.sinks), a.heads, 0.0)?),
            false => None,
        };
        let g: &mut Builder = &mut w.builder;
        let layer = g.kv_layer(KvLayer { heads: a.kv_heads, key_dim: a.key_dim, value_dim: a.value_dim });
        Ok(g.attention(Attention {
            q,
            k,
            v,
            layer,
            heads: a.heads,
            scale: a.scale,
            window: *window,
            softcap: a.softcap,
            sink,
            out: v,
        }))
    }

    /// Queries, keys and values, rotated.
    fn qkv(&self, w: &mut Loader, i: usize, h: ValueId, table: Option<usize>) -> Result<[ValueId; 3], ModelError> {
        let names = &self.names.layer;
        let name = |part: &str| format!("{}{i}.{part}", self.names.layers);
        let a = &self.attention;
        let widths = [a.heads * a.key_dim, a.kv_heads * a.key_dim, a.kv_heads * a.value_dim];
        let parts = [names.q, names.k, names.v];

        let fused = format!("{}.weight", name(names.qkv));
        let head = [a.key_dim, a.key_dim, a.value_dim];
        let weights: [WeightId; 3] = match a.qkv {
            Qkv::Stacked => w.stacked(&fused, widths, self.hidden)?,
            Qkv::ByHead => w.by_head(&fused, a.heads, head, self.hidden)?,
            Qkv::Separate => {
                let mut matrix = |at: usize| w.matrix(&format!("{}.weight", name(parts[at])), widths[at], self.hidden);
                [matrix(0)?, matrix(1)?, matrix(2)?]
            }
        };
        let biases: [Option<VectorId>; 3] = match a.qkv {
            Qkv::ByHead if a.qkv_bias => {
                w.vectors_by_head(&format!("{}.bias", name(names.qkv)), a.heads, head)?.map(Some)
            }
            Qkv::Stacked if a.qkv_bias => w.vectors_by_head(&format!("{}.bias", name(names.qkv)), 1, widths)?.map(Some),
            _ => {
                let mut bias = |at: usize| bias_of(w, &name(parts[at]), widths[at], a.qkv_bias);
                [bias(0)?, bias(1)?, bias(2)?]
            }
        };
        let jobs = std::array::from_fn(|at| (weights[at], biases[at]));
        let [mut q, mut k, v] = w.builder.linears(h, jobs);
        let groups = match a.qk_norm {
            QkNorm::None => None,
            QkNorm::Heads => Some([a.key_dim; 2]),
            QkNorm::Whole => Some([widths[0], widths[1]]),
        };
        if let Some([of_q, of_k]) = groups {
            let norm = |w: &mut Loader, part: &str, group| {
                let weight = Some(w.vector(&format!("{}.weight", name(part)), group, self.norm_offset)?);
                Ok::<_, ModelError>(Norm { kind: self.norm_kind, group, weight, bias: None, eps: self.norm_eps })
            };
            let (q_norm, k_norm) = (norm(w, names.q_norm, of_q)?, norm(w, names.k_norm, of_k)?);
            (q, k) = (w.builder.norm(q, q_norm), w.builder.norm(k, k_norm));
        }
        if let Some(table) = table {
            q = w.builder.rope(q, a.key_dim, a.rope_style, table);
            k = w.builder.rope(k, a.key_dim, a.rope_style, table);
        }
        Ok([q, k, v])
    }

    /// Refuses hyperparameters that cannot be, before anything is computed from them.
    fn check(&self) -> Result<(), ModelError> {
        let a = &self.attention;
        let sizes = [
            ("the context length", self.context_length),
            ("the hidden size", self.hidden),
            ("the number of attention heads", a.heads),
            ("the number of key-value heads", a.kv_heads),
            ("the size of a key head", a.key_dim),
            ("the size of a value head", a.value_dim),
            ("the size of the feed-forward", self.mlp.width),
        ];
        if let Some((what, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(ModelError::hyperparameter(*what, "above 0", 0));
        }
        if let Some(experts) = &self.experts {
            experts.check(self.hidden)?;
        }
        if !a.heads.is_multiple_of(a.kv_heads) {
            let expected = format!("a divisor of the number of attention heads, {}", a.heads);
            return Err(ModelError::hyperparameter("the number of key-value heads", expected, a.kv_heads));
        }
        if let Some(latent) = &a.latent {
            latent.check(a.key_dim)?;
        }
        if (a.qkv == Qkv::ByHead || a.latent.is_some()) && a.kv_heads != a.heads {
            return Err(ModelError::hyperparameter("the number of key-value heads", a.heads.to_string(), a.kv_heads));
        }
        // There are no more key-value heads than heads, so that this bounds their widths too.
        if a.heads.checked_mul(a.key_dim.max(a.value_dim)).is_none_or(|width| width > usize::MAX / 4) {
            let found = format!("{} heads of {} and {}", a.heads, a.key_dim, a.value_dim);
            return Err(ModelError::hyperparameter("attention", "a width that memory can hold", found));
        }
        let numbers = [
            ("the epsilon of the norms", Some(self.norm_eps)),
            ("the scale of the attention scores", Some(a.scale)),
            ("the scale of the embedding", Some(self.embed_scale)),
            ("the scale of the residual stream", Some(self.residual_scale)),
            ("the scale of the logits", Some(self.logit_scale)),
            ("the bound on the attention scores", a.softcap),
            ("the bound on the logits", self.logit_softcap),
        ];
        for (what, value) in numbers {
            if let Some(value) = value.filter(|v| !(*v > 0.0 && v.is_finite())) {
                return Err(ModelError::hyperparameter(what, "a positive number", value));
            }
        }
        Ok(())
    }

    fn norm(&self, w: &mut Loader, name: &str, group: usize) -> Result<Norm, ModelError> {
        let weight = Some(w.vector(&format!("{name}.weight"), group, self.norm_offset)?);
        let bias = bias_of(w, name, group, self.norm_bias)?;
        Ok(Norm { kind: self.norm_kind, group, weight, bias, eps: self.norm_eps })
    }
}

fn linear(
    w: &mut Loader,
    x: ValueId,
    name: &str,
    n_out: usize,
    n_in: usize,
    bias: bool,
) -> Result<ValueId, ModelError> {
    let weight = w.matrix(&format!("{name}.weight"), n_out, n_in)?;
    let bias = bias_of(w, name, n_out, bias)?;
    Ok(w.builder.linear(x, weight, bias))
}

fn bias_of(w: &mut Loader, name: &str, len: usize, wanted: bool) -> Result<Option<VectorId>, ModelError> {
    wanted.then(|| w.vector(&format!("{name}.bias"), len, 0.0)).transpose()
}
