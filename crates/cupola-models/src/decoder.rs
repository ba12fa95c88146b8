//! The common decoder: one description that every family fills in, one way to turn it into a program.

use crate::experts::Experts;
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
    /// Further norms, of what attention and feed-forward give, before it is added to the residual stream.
    pub post_norms: bool,
    /// Whether the logits' matrix is the embedding.
    pub tied: bool,
    /// Bound on the logits.
    pub logit_softcap: Option<f32>,
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
    /// Norms of each query and key head, before the rotation.
    pub qk_norm: bool,
    /// Whether queries, keys and values are one tensor; then they have no biases.
    pub fused: bool,
    /// Whether the products that give queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the product after attention has a bias.
    pub out_bias: bool,
    /// Whether each head has a score that takes weight but has no value.
    pub sinks: bool,
}

/// The gated feed-forward of every layer.
#[derive(Clone, Debug)]
pub(crate) struct Mlp {
    pub width: usize,
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
        w.refuse_unused(&self.names.layers, &IGNORED)?;

        let (mut g, parameters) = w.finish();
        let h = g.norm(x, norm);
        let mut logits = g.linear(h, head, None);
        if let Some(cap) = self.logit_softcap {
            logits = g.softcap(logits, cap);
        }
        Ok((g.finish(logits)?, parameters))
    }

    /// One layer. In the last one, everything after attention is computed for the wanted rows only.
    fn layer(&self, w: &mut Loader, i: usize, x: ValueId) -> Result<ValueId, ModelError> {
        let names = &self.names.layer;
        let name = |part: &str| format!("{}{i}.{part}", self.names.layers);
        let mut x = x;

        let norm = self.norm(w, &name(names.attention_norm), self.hidden)?;
        let h = w.builder.norm(x, norm);
        let mut a = self.attend(w, i, h)?;
        if i + 1 == self.layers.len() {
            (x, a) = (w.builder.take_wanted(x), w.builder.take_wanted(a));
        }
        let a_width = self.attention.heads * self.attention.value_dim;
        let mut o = linear(w, a, &name(names.out), self.hidden, a_width, self.attention.out_bias)?;
        if self.post_norms {
            let norm = self.norm(w, &name(names.post_attention_norm), self.hidden)?;
            o = w.builder.norm(o, norm);
        }
        x = w.builder.add(x, o);

        let norm = self.norm(w, &name(names.mlp_norm), self.hidden)?;
        let h = w.builder.norm(x, norm);
        let mut y = match self.experts.as_ref().filter(|_| self.layers[i].experts) {
            Some(experts) => experts.build(w, &names.experts, &name, self.hidden, h)?,
            None => self.feed_forward(w, i, h)?,
        };
        if self.post_norms {
            let norm = self.norm(w, &name(names.post_mlp_norm), self.hidden)?;
            y = w.builder.norm(y, norm);
        }
        Ok(w.builder.add(x, y))
    }

    /// The feed-forward of a layer without experts.
    fn feed_forward(&self, w: &mut Loader, i: usize, h: ValueId) -> Result<ValueId, ModelError> {
        let names = &self.names.layer;
        let name = |part: &str| format!("{}{i}.{part}", self.names.layers);
        let (width, bias) = (self.mlp.width, self.mlp.bias);
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
        let widths = [a.heads * a.key_dim, a.kv_heads * a.key_dim, a.kv_heads * a.value_dim];
        let parts = [names.q, names.k, names.v];

        let weights: [WeightId; 3] = match a.fused {
            true => w.stacked(&format!("{}.weight", name(names.qkv)), widths, self.hidden)?,
            false => {
                let mut matrix = |at: usize| w.matrix(&format!("{}.weight", name(parts[at])), widths[at], self.hidden);
                [matrix(0)?, matrix(1)?, matrix(2)?]
            }
        };
        let mut job = |at: usize| -> Result<(WeightId, Option<VectorId>), ModelError> {
            Ok((weights[at], bias_of(w, &name(parts[at]), widths[at], a.qkv_bias)?))
        };
        let jobs = [job(0)?, job(1)?, job(2)?];
        let [mut q, mut k, v] = w.builder.linears(h, jobs);
        if a.qk_norm {
            let (q_norm, k_norm) =
                (self.norm(w, &name(names.q_norm), a.key_dim)?, self.norm(w, &name(names.k_norm), a.key_dim)?);
            (q, k) = (w.builder.norm(q, q_norm), w.builder.norm(k, k_norm));
        }
        let sink = match a.sinks {
            true => Some(w.vector(&name(names.sinks), a.heads, 0.0)?),
            false => None,
        };
        let g: &mut Builder = &mut w.builder;
        let Layer { rope, window, .. } = &self.layers[i];
        if let Some(table) = rope {
            let table = g.rope_table(RopeTable::clone(table));
            q = g.rope(q, a.key_dim, a.rope_style, table);
            k = g.rope(k, a.key_dim, a.rope_style, table);
        }
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
        // There are no more key-value heads than heads, so that this bounds their widths too.
        if a.heads.checked_mul(a.key_dim.max(a.value_dim)).is_none() {
            let found = format!("{} heads of {} and {}", a.heads, a.key_dim, a.value_dim);
            return Err(ModelError::hyperparameter("attention", "a width that memory can hold", found));
        }
        let numbers = [
            ("the epsilon of the norms", Some(self.norm_eps)),
            ("the scale of the attention scores", Some(a.scale)),
            ("the scale of the embedding", Some(self.embed_scale)),
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
        Ok(Norm { kind: NormKind::Rms, group, weight, bias: None, eps: self.norm_eps })
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
