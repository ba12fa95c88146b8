//! What the families have in common in Hugging Face checkpoints.

use crate::decoder::{AttentionSpec, Decoder, Layer, Mlp, Placement, QkNorm, Qkv};
use crate::experts::Layout;
use crate::names::Names;
use crate::{ModelError, rope};
use cupola_formats::Checkpoint;
use cupola_formats::config::{HfConfig, RopeKind};
use cupola_graph::{Activation, NormKind, RopeStyle, RopeTable};
use std::sync::Arc;

/// Type of the layers that attend to everything before them.
pub const FULL: &str = "full_attention";
/// Type of the layers that attend to a window.
pub const SLIDING: &str = "sliding_attention";

/// A config and the checkpoint that it describes.
pub(crate) struct HuggingFace<'c> {
    pub config: &'c HfConfig,
    pub checkpoint: &'c Checkpoint,
}

/// What transformers takes for a key that a config of the family lacks. Only keys that published configs leave out.
pub(crate) struct Defaults {
    pub heads: Option<usize>,
    /// Absent: as many as there are heads.
    pub kv_heads: Option<usize>,
    /// Absent: hidden size divided among the heads.
    pub head_dim: Option<usize>,
    pub theta: f64,
    pub norm_eps: f32,
    pub context_length: usize,
    pub activation: &'static str,
    /// Share of each head that is rotated.
    pub rotary: f64,
    pub tied: bool,
}

impl Defaults {
    /// Those of a Llama model, from which most families differ in a key or two.
    pub const LLAMA: Defaults = Defaults {
        heads: None,
        kv_heads: None,
        head_dim: None,
        theta: 10000.0,
        norm_eps: 1e-6,
        context_length: 2048,
        activation: "silu",
        rotary: 1.0,
        tied: false,
    };
}

impl HuggingFace<'_> {
    /// A Llama-like decoder with everything that the common keys say.
    pub fn decoder(&self, defaults: &Defaults) -> Result<Decoder, ModelError> {
        self.decoder_named(defaults, self.names())
    }

    /// The same with tensors of these names.
    pub fn decoder_named(&self, defaults: &Defaults, names: Names) -> Result<Decoder, ModelError> {
        let c = self.config;
        self.refuse_quantized()?;
        let layers = c.usize("num_hidden_layers")?;
        // Every layer has tensors, so that this bounds the memory that a wrong number can take.
        let tensors = self.checkpoint.tensors().len();
        if layers == 0 || layers > tensors {
            let expected = format!("a number from 1 to the number of tensors, {tensors}");
            return Err(c.error("num_hidden_layers", expected).into());
        }
        let heads = match defaults.heads {
            Some(heads) => self.or("num_attention_heads", HfConfig::optional_usize, heads)?,
            None => c.usize("num_attention_heads")?,
        };
        let kv_heads = self.or("num_key_value_heads", HfConfig::optional_usize, defaults.kv_heads.unwrap_or(heads))?;
        let head_dim = match (c.optional_usize("head_dim")?, defaults.head_dim) {
            (Some(set), _) | (None, Some(set)) => set,
            (None, None) => c.head_dim()? as usize,
        };
        let head_is_missing = self.checkpoint.tensor(&format!("{}.weight", names.head)).is_none();
        let tied = c.optional_bool("tie_word_embeddings")?.unwrap_or(defaults.tied || head_is_missing);
        let mut decoder = Decoder {
            draft_layers: false,
            context_length: self.or("max_position_embeddings", HfConfig::optional_usize, defaults.context_length)?,
            hidden: c.usize("hidden_size")?,
            embed_scale: 1.0,
            layers: vec![Layer { rope: None, window: None, experts: false }; layers],
            attention: AttentionSpec {
                heads,
                kv_heads,
                key_dim: head_dim,
                value_dim: head_dim,
                scale: 1.0 / (head_dim as f32).sqrt(),
                softcap: None,
                rope_style: RopeStyle::Halves,
                qk_norm: QkNorm::None,
                qkv: Qkv::Separate,
                latent: None,
                qkv_bias: false,
                out_bias: false,
                sinks: false,
            },
            mlp: Mlp {
                width: c.usize("intermediate_size")?,
                gated: true,
                activation: self.activation(defaults.activation)?,
                fused: false,
                bias: false,
            },
            experts: None,
            norm_eps: self.or("rms_norm_eps", HfConfig::optional_f32, defaults.norm_eps)?,
            norm_offset: 0.0,
            norm_kind: NormKind::Rms,
            norm_bias: false,
            placement: Placement::Before,
            residual_scale: 1.0,
            tied,
            head_bias: false,
            logit_scale: 1.0,
            logit_softcap: None,
            names,
        };
        // Rounded down, as transformers does.
        let share = c.rope(FULL, defaults.theta)?.partial_rotary_factor.unwrap_or(defaults.rotary);
        self.rotate(&mut decoder, FULL, defaults.theta, (head_dim as f64 * share) as usize)?;
        Ok(decoder)
    }

    /// Has `dim` elements of every head rotate in every layer.
    pub fn rotate(&self, decoder: &mut Decoder, layer_type: &str, theta: f64, dim: usize) -> Result<(), ModelError> {
        let table = self.table(decoder, layer_type, theta, dim)?;
        decoder.layers.iter_mut().for_each(|layer| layer.rope = Some(table.clone()));
        Ok(())
    }

    /// Has the norms take mean and variance.
    pub fn layer_norm(&self, decoder: &mut Decoder, eps: &str, bias: bool) -> Result<(), ModelError> {
        decoder.norm_eps = self.config.optional_f32(eps)?.unwrap_or(1e-5);
        (decoder.norm_kind, decoder.norm_bias) = (NormKind::Layer, bias);
        Ok(())
    }

    /// Whether the four products of attention have biases.
    pub fn attention_bias(&self, decoder: &mut Decoder, default: bool) -> Result<(), ModelError> {
        let bias = self.config.optional_bool("attention_bias")?.unwrap_or(default);
        (decoder.attention.qkv_bias, decoder.attention.out_bias) = (bias, bias);
        Ok(())
    }

    /// Refuses a setting that no published model of the family is known to use.
    pub fn refuse(&self, key: &str) -> Result<(), ModelError> {
        match self.config.get(key) {
            None => Ok(()),
            Some(value) if value.as_bool() == Some(false) => Ok(()),
            Some(_) => Err(self.config.error(key, "off: nothing else is supported").into()),
        }
    }

    /// The rotary frequencies of one type of layers. Where they hold for a shorter context only, the decoder's context
    /// is shortened.
    pub fn rope(&self, decoder: &mut Decoder, layer_type: &str, theta: f64) -> Result<Arc<RopeTable>, ModelError> {
        let share = self.config.rope(layer_type, theta)?.partial_rotary_factor.unwrap_or(1.0);
        let dim = (decoder.attention.key_dim as f64 * share) as usize;
        self.table(decoder, layer_type, theta, dim)
    }

    fn table(
        &self,
        decoder: &mut Decoder,
        layer_type: &str,
        theta: f64,
        dim: usize,
    ) -> Result<Arc<RopeTable>, ModelError> {
        let parameters = self.config.rope(layer_type, theta)?;
        if let RopeKind::Dynamic { original_context, .. } = parameters.kind {
            decoder.context_length = decoder.context_length.min(original_context as usize);
        }
        Ok(Arc::new(rope::table(&parameters, dim)?))
    }

    /// Gives layers a window: those that `layer_types` calls sliding, or without such a list those that `slides` picks.
    pub fn windows(
        &self,
        decoder: &mut Decoder,
        window: Option<usize>,
        slides: impl Fn(usize) -> bool,
    ) -> Result<(), ModelError> {
        let types = self.config.layer_types()?;
        for (i, layer) in decoder.layers.iter_mut().enumerate() {
            let slides = match types.as_ref().map(|types| types[i]) {
                None => slides(i),
                Some(FULL) => false,
                Some(SLIDING) => true,
                Some(_) => {
                    return Err(self.config.error("layer_types", format!("a list of {FULL} and {SLIDING}")).into());
                }
            };
            if slides {
                let window = window.filter(|w| *w > 0);
                layer.window = Some(window.ok_or_else(|| self.config.error("sliding_window", "a number above 0"))?);
            }
        }
        Ok(())
    }

    /// Experts of a layer.
    pub fn experts(&self, default: usize) -> Result<usize, ModelError> {
        let keys = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];
        let key = keys.into_iter().find(|key| self.config.get(key).is_some());
        let count = match key {
            Some(key) => self.config.usize(key)?,
            None => default,
        };
        // Each has a tensor or an element of one.
        let most = self.checkpoint.tensors().map(|t| t.shape.first().map_or(1, |n| *n)).max().unwrap_or(0);
        let most = most.max(self.checkpoint.tensors().len());
        if count > most {
            return Err(self
                .config
                .error(key.unwrap_or(keys[0]), format!("at most {most}, as the tensors allow"))
                .into());
        }
        Ok(count)
    }

    /// Experts that compute a token.
    pub fn experts_per_token(&self, default: usize) -> Result<usize, ModelError> {
        let key = ["num_experts_per_tok", "experts_per_token"].into_iter().find(|key| self.config.get(key).is_some());
        Ok(key.map(|key| self.config.usize(key)).transpose()?.unwrap_or(default))
    }

    /// How experts are stored, by the names of the first layer that has any.
    pub fn layout(&self, decoder: &Decoder) -> Layout {
        let names = &decoder.names.layer.experts;
        let has = |end: &str| {
            let is_there = |i: usize| self.checkpoint.tensor(&format!("{}{i}.{end}", decoder.names.layers)).is_some();
            (0..decoder.layers.len()).any(is_there)
        };
        if has(&format!("{}_blocks", names.gate_up_bank)) {
            Layout::Mxfp4
        } else if has(names.gate_up_bank) {
            Layout::GateUpBanks
        } else {
            Layout::Separate
        }
    }

    /// A setting that a null turns off, and that has a default where the key is missing.
    pub fn setting<T>(
        &self,
        key: &str,
        get: impl Fn(&HfConfig, &str) -> Result<Option<T>, cupola_formats::KeyError>,
        default: Option<T>,
    ) -> Result<Option<T>, ModelError> {
        if self.config.values().contains_key(key) { Ok(get(self.config, key)?) } else { Ok(default) }
    }

    /// A flag that is off where the key is missing.
    pub fn flag(&self, key: &str) -> Result<bool, ModelError> {
        Ok(self.config.optional_bool(key)?.unwrap_or(false))
    }

    fn or<T>(
        &self,
        key: &str,
        get: impl Fn(&HfConfig, &str) -> Result<Option<T>, cupola_formats::KeyError>,
        default: T,
    ) -> Result<T, ModelError> {
        Ok(get(self.config, key)?.unwrap_or(default))
    }

    fn activation(&self, default: &str) -> Result<Activation, ModelError> {
        let keys = ["hidden_activation", "hidden_act"];
        let key = keys.into_iter().find(|key| self.config.get(key).is_some()).unwrap_or(keys[1]);
        Ok(match self.config.optional_str(key)?.unwrap_or(default) {
            "silu" | "swish" => Activation::Silu,
            "gelu" => Activation::Gelu,
            "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Activation::GeluTanh,
            "relu" => Activation::Relu,
            "relu2" => Activation::ReluSquared,
            _ => return Err(self.config.error(key, "one of silu, gelu, gelu_pytorch_tanh, relu, relu2").into()),
        })
    }

    /// Multimodal checkpoints have the language model under a name of its own.
    fn names(&self) -> Names {
        let places = [("", "model."), ("", "model.language_model."), ("language_model.", "language_model.model.")];
        let is_there =
            |(_, inner): &(&str, &str)| self.checkpoint.tensor(&format!("{inner}embed_tokens.weight")).is_some();
        let (outer, inner) = places.into_iter().find(is_there).unwrap_or(places[0]);
        Names::hugging_face(outer, inner)
    }

    /// Transformers and its exporters use the first key, MLX the second. MXFP4 is known by its tensors.
    fn refuse_quantized(&self) -> Result<(), ModelError> {
        for key in ["quantization_config", "quantization"] {
            if let Some(section) = self.config.optional_section(key)? {
                if section.optional_str("quant_method")? == Some("mxfp4") {
                    continue;
                }
                let method = match section.optional_str("quant_method")? {
                    Some(method) => format!("\"{method}\""),
                    None => format!("a method that config.json describes under \"{key}\""),
                };
                return Err(ModelError::Quantized { method });
            }
        }
        Ok(())
    }
}
