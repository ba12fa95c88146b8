//! What the families have in common in GGUF checkpoints.

use crate::decoder::{AttentionSpec, Decoder, Layer, Mlp, Placement, QkNorm, Qkv};
use crate::experts::{Experts, Layout, Shared};
use crate::names::Names;
use crate::{ModelError, rope};
use cupola_formats::config::{LongRope, RopeKind, RopeParameters, Yarn};
use cupola_formats::gguf::Metadata;
use cupola_formats::{Checkpoint, Dtype, KeyError};
use cupola_graph::{Activation, NormKind, RopeStyle, RopeTable, Scores};
use std::sync::Arc;

/// Metadata and the checkpoint that it describes.
pub(crate) struct GgufModel<'c> {
    pub metadata: &'c Metadata,
    pub checkpoint: &'c Checkpoint,
    /// `general.architecture`, which the keys start with.
    pub architecture: &'c str,
    /// The name of the family, for messages.
    pub family: &'static str,
}

impl GgufModel<'_> {
    /// A Llama-like decoder with everything that the common keys say; without experts.
    pub fn decoder(&self, rope_style: RopeStyle) -> Result<Decoder, ModelError> {
        let decoder = self.decoder_with_experts(rope_style)?;
        if decoder.experts.is_some() {
            return Err(self.error("expert_count", format!("0: {} models have no experts", self.family)));
        }
        Ok(decoder)
    }

    /// A Llama-like decoder with everything that the common keys say.
    pub fn decoder_with_experts(&self, rope_style: RopeStyle) -> Result<Decoder, ModelError> {
        let drafts = self.optional_size("nextn_predict_layers")?.unwrap_or(0);
        let layers = self.size("block_count")?.saturating_sub(drafts);
        // Every layer has tensors, so that this bounds the memory that a wrong number can take.
        let tensors = self.checkpoint.tensors().len();
        if layers == 0 || layers > tensors {
            return Err(self.error("block_count", format!("a number from 1 to the number of tensors, {tensors}")));
        }
        let hidden = self.size("embedding_length")?;
        let heads = self.size("attention.head_count")?;
        let split = hidden.checked_div(heads).unwrap_or(0);
        let key_dim = self.optional_size("attention.key_length")?.unwrap_or(split);
        let names = Names::gguf();
        let has = |name: &str| self.checkpoint.tensor(name).is_some();
        let has_bias = |part: &str| has(&format!("{}0.{part}.bias", names.layers));
        let mut decoder = Decoder {
            draft_layers: drafts > 0,
            context_length: self.size("context_length")?,
            hidden,
            embed_scale: 1.0,
            layers: vec![Layer { rope: None, window: None, experts: false }; layers],
            attention: AttentionSpec {
                heads,
                kv_heads: self.optional_size("attention.head_count_kv")?.unwrap_or(heads),
                key_dim,
                value_dim: self.optional_size("attention.value_length")?.unwrap_or(split),
                scale: self.optional_f32("attention.scale")?.unwrap_or(1.0 / (key_dim as f32).sqrt()),
                softcap: None,
                rope_style,
                qk_norm: QkNorm::None,
                qkv: match has(&format!("{}0.{}.weight", names.layers, names.layer.qkv)) {
                    true => Qkv::Stacked,
                    false => Qkv::Separate,
                },
                qkv_bias: has_bias(names.layer.q) || has_bias(names.layer.qkv),
                out_bias: has_bias(names.layer.out),
                latent: None,
                sinks: false,
            },
            mlp: Mlp {
                width: self.size("feed_forward_length")?,
                gated: true,
                activation: Activation::Silu,
                fused: false,
                bias: has_bias(names.layer.down),
            },
            experts: None,
            norm_eps: match self.optional_f32("attention.layer_norm_epsilon")? {
                Some(eps) if self.optional_f32("attention.layer_norm_rms_epsilon")?.is_none() => eps,
                _ => self.metadata.f32(&self.key("attention.layer_norm_rms_epsilon"))?,
            },
            // The files hold the finished norm weights.
            norm_offset: 0.0,
            norm_kind: NormKind::Rms,
            norm_bias: false,
            placement: Placement::Before,
            residual_scale: 1.0,
            tied: !has(&format!("{}.weight", names.head)),
            head_bias: has(&format!("{}.bias", names.head)),
            logit_scale: 1.0,
            logit_softcap: None,
            names,
        };
        let table = Arc::new(self.rope(&decoder, true)?);
        decoder.layers.iter_mut().for_each(|layer| layer.rope = Some(table.clone()));
        self.experts(&mut decoder)?;
        Ok(decoder)
    }

    /// Has the norms take mean and variance.
    pub fn layer_norm(&self, decoder: &mut Decoder) -> Result<(), ModelError> {
        decoder.norm_eps = self.metadata.f32(&self.key("attention.layer_norm_epsilon"))?;
        decoder.norm_kind = NormKind::Layer;
        decoder.norm_bias = self.checkpoint.tensor(&format!("{}.bias", decoder.names.final_norm)).is_some();
        Ok(())
    }

    /// Whether the first layer has this weight.
    pub fn has_in_first_layer(&self, part: &str) -> bool {
        self.checkpoint.tensor(&format!("{}0.{part}.weight", Names::gguf().layers)).is_some()
    }

    /// Reads what keys and tensors say about experts. Layers have experts where they have a router.
    fn experts(&self, decoder: &mut Decoder) -> Result<(), ModelError> {
        let count = self.optional_size("expert_count")?.unwrap_or(0);
        if count == 0 {
            return Ok(());
        }
        let names = decoder.names.clone();
        let has = |i: usize, part: &str| self.checkpoint.tensor(&format!("{}{i}.{part}", names.layers)).is_some();
        let parts = names.layer.experts;
        for (i, layer) in decoder.layers.iter_mut().enumerate() {
            layer.experts = has(i, &format!("{}.weight", parts.router));
        }
        let Some(first) = decoder.layers.iter().position(|layer| layer.experts) else {
            return Err(self.error("expert_count", "0, as no layer has a router"));
        };
        let width = self.optional_size("expert_feed_forward_length")?.unwrap_or(decoder.mlp.width);
        let scores = match self.optional_u32("expert_gating_func")? {
            None | Some(0 | 1) => Scores::Softmax,
            Some(2) => Scores::Sigmoid,
            Some(3) => Scores::SoftmaxOfChosen,
            Some(_) => return Err(self.error("expert_gating_func", "0 to 3")),
        };
        let layout = if has(first, &format!("{}.weight", parts.gate.replace("{e}", "0"))) {
            Layout::Separate
        } else if has(first, &format!("{}.weight", parts.gate_up_bank)) {
            Layout::GateUpBanks
        } else {
            Layout::Banks
        };
        // The tensors say how wide it is: not all files do, and some say it wrongly.
        let up = self.checkpoint.tensor(&format!("{}{first}.{}.weight", names.layers, parts.shared_up));
        let shared = up.and_then(|up| up.shape.first().copied()).map(|width| Shared {
            width,
            gated: has(first, &format!("{}.weight", parts.shared_router)),
            fused: false,
        });
        decoder.experts = Some(Experts {
            shared,
            scores,
            choice_bias: has(first, parts.choice_bias),
            normalise: self.optional_bool("expert_weights_norm")?.unwrap_or(false),
            scale: self.optional_f32("expert_weights_scale")?.filter(|scale| *scale != 0.0).unwrap_or(1.0),
            layout,
            ..Experts::new(count, width, self.size("expert_used_count")?, decoder.mlp.activation)
        });
        Ok(())
    }

    /// The rotary frequencies of layers without a window of their own kind; `truncate` says whether YaRN's ramp begins and
    /// ends at whole numbers.
    pub fn rope(&self, decoder: &Decoder, truncate: bool) -> Result<RopeTable, ModelError> {
        let theta = self.optional_f64("rope.freq_base")?.unwrap_or(10000.0);
        let dim = self.rotary_dim(decoder)?;
        let kind = self.rope_kind(decoder, truncate)?;
        let table = rope::table(&RopeParameters { theta, partial_rotary_factor: None, kind }, dim)?;
        match self.checkpoint.tensor("rope_freqs.weight") {
            Some(_) => Ok(rope::divide(table, &self.numbers("rope_freqs.weight")?)?),
            None => Ok(table),
        }
    }

    /// Elements of each head that are rotated.
    pub fn rotary_dim(&self, decoder: &Decoder) -> Result<usize, ModelError> {
        Ok(self.optional_size("rope.dimension_count")?.unwrap_or(decoder.attention.key_dim))
    }

    fn rope_kind(&self, decoder: &Decoder, truncate: bool) -> Result<RopeKind, ModelError> {
        let original = self.optional_u32("rope.scaling.original_context_length")?;
        let context = u32::try_from(decoder.context_length).unwrap_or(u32::MAX);
        let original_context = original.unwrap_or(context);
        let attention_factor = self.optional_f64("rope.scaling.attn_factor")?;
        if self.checkpoint.tensor("rope_factors_long.weight").is_some() {
            return Ok(RopeKind::LongRope(LongRope {
                short: self.numbers("rope_factors_short.weight")?,
                long: self.numbers("rope_factors_long.weight")?,
                original_context,
                factor: f64::from(context) / f64::from(original_context),
                attention_factor,
            }));
        }
        // A factor of 0 is how some files say that there is none. A factor without a type is linear.
        let factor = match self.optional_f64("rope.scaling.factor")? {
            None => self.optional_f64("rope.scale_linear")?,
            found => found,
        };
        let factor = factor.filter(|f| *f != 0.0).unwrap_or(1.0);
        match self.optional_str("rope.scaling.type")?.unwrap_or("linear") {
            "none" => Ok(RopeKind::Default),
            "linear" if factor == 1.0 => Ok(RopeKind::Default),
            "linear" => Ok(RopeKind::Linear { factor }),
            "yarn" => {
                for key in ["rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"] {
                    if self.optional_f32(key)?.is_some_and(|value| value != 1.0) {
                        return Err(self.error(key, "1"));
                    }
                }
                let mut yarn = Yarn {
                    factor,
                    original_context,
                    beta_fast: self.optional_f64("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                    beta_slow: self.optional_f64("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                    truncate,
                    attention_factor: None,
                    mscale: None,
                    mscale_all_dim: None,
                };
                // The file's factor comes on top of the computed one.
                yarn.attention_factor = attention_factor.map(|extra| extra * yarn.attention_factor());
                Ok(RopeKind::Yarn(yarn))
            }
            _ => Err(self.error("rope.scaling.type", "one of none, linear, yarn")),
        }
    }

    /// Gives a window to the layers that slide: those that the file lists, or all but every `pattern`-th.
    pub fn windows(&self, decoder: &mut Decoder, window: usize, pattern: usize) -> Result<(), ModelError> {
        let key = self.key("attention.sliding_window_pattern");
        let listed = match self.metadata.get(&key) {
            Some(value) if value.as_array().is_some() => Some(self.metadata.bools(&key)?),
            _ => None,
        };
        let pattern = match &listed {
            None => self.optional_size("attention.sliding_window_pattern")?.unwrap_or(pattern),
            Some(list) if list.len() == decoder.layers.len() => pattern,
            Some(_) => {
                let expected = format!("{} values, one for each layer", decoder.layers.len());
                return Err(self.error("attention.sliding_window_pattern", expected));
            }
        };
        for (i, layer) in decoder.layers.iter_mut().enumerate() {
            let slides = match &listed {
                Some(list) => list[i],
                None => pattern == 0 || !(i + 1).is_multiple_of(pattern),
            };
            layer.window = slides.then_some(window);
        }
        Ok(())
    }

    /// The window, if the file has one; a window of 0 is none.
    pub fn window(&self) -> Result<Option<usize>, ModelError> {
        Ok(self.optional_size("attention.sliding_window")?.filter(|w| *w > 0))
    }

    /// Numbers that are stored as a tensor.
    fn numbers(&self, name: &str) -> Result<Vec<f64>, ModelError> {
        let missing = || ModelError::MissingTensor { tensor: name.into(), family: self.family };
        let tensor = self.checkpoint.tensor(name).ok_or_else(missing)?;
        let unusable = || ModelError::Format { tensor: name.into(), dtype: tensor.dtype, columns: tensor.elements() };
        let Dtype::Weight(format) = tensor.dtype else { return Err(unusable()) };
        let mut values = vec![0.0; tensor.elements()];
        cupola_quant::decode(format, tensor.bytes, &mut values).map_err(|_| unusable())?;
        Ok(values.into_iter().map(f64::from).collect())
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn error(&self, key: &str, expected: impl Into<String>) -> ModelError {
        self.metadata.error(&self.key(key), expected).into()
    }

    fn size(&self, key: &str) -> Result<usize, KeyError> {
        self.metadata.u32(&self.key(key)).map(|n| n as usize)
    }

    pub fn optional_size(&self, key: &str) -> Result<Option<usize>, KeyError> {
        Ok(self.optional_u32(key)?.map(|n| n as usize))
    }

    fn optional_u32(&self, key: &str) -> Result<Option<u32>, KeyError> {
        self.metadata.optional_u32(&self.key(key))
    }

    /// A number under a key of this architecture.
    pub fn optional_f32(&self, key: &str) -> Result<Option<f32>, KeyError> {
        self.metadata.optional_f32(&self.key(key))
    }

    /// A number under a key of this architecture.
    pub fn optional_f64(&self, key: &str) -> Result<Option<f64>, KeyError> {
        self.metadata.optional_f64(&self.key(key))
    }

    pub fn optional_bool(&self, key: &str) -> Result<Option<bool>, KeyError> {
        self.metadata.optional_bool(&self.key(key))
    }

    fn optional_str(&self, key: &str) -> Result<Option<&str>, KeyError> {
        self.metadata.optional_str(&self.key(key))
    }
}
