//! Rotary position embedding: the parameters of a config in one form.

use super::HfConfig;
use crate::error::KeyError;

/// Layers that attend to a window.
const SLIDING: &str = "sliding_attention";

/// How the layers of one type rotate queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeParameters {
    /// Base of the frequencies: pair `i` of `n` turns by `theta^(-i / n)` per position.
    pub theta: f64,
    /// The share of each head that is rotated, above 0 and at most 1, if the config states it.
    pub partial_rotary_factor: Option<f64>,
    /// How the frequencies are changed for contexts longer than the model was first trained with.
    pub kind: RopeKind,
}

/// Change of the frequencies.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeKind {
    /// None.
    Default,
    /// Positions divided by `factor`.
    Linear {
        /// At least 1 in practice.
        factor: f64,
    },
    /// Theta grows with the length of the text ("dynamic NTK").
    Dynamic {
        /// At least 1 in practice.
        factor: f64,
        /// Length up to which theta stays.
        original_context: u32,
    },
    /// YaRN: high frequencies kept, low ones divided. <https://arxiv.org/abs/2309.00071>
    Yarn(Yarn),
    /// The scheme of Llama 3.1: frequencies divided by `factor` below a limit, with a smooth transition.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context of the first training.
        original_context: u32,
    },
    /// LongRoPE: a divisor for each frequency. <https://arxiv.org/abs/2402.13753>
    LongRope(LongRope),
}

/// Parameters of YaRN.
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    /// Divisor of low frequencies.
    pub factor: f64,
    /// Context of the first training.
    pub original_context: u32,
    /// Turns within the original context above which a frequency is kept.
    pub beta_fast: f64,
    /// Turns within the original context below which a frequency is divided.
    pub beta_slow: f64,
    /// Whether the borders of the transition are rounded outwards to whole pairs.
    pub truncate: bool,
    /// Factor of sine and cosine, if the config sets it.
    pub attention_factor: Option<f64>,
    /// DeepSeek's weight of the factor of sine and cosine.
    pub mscale: Option<f64>,
    /// DeepSeek's weight of the factor of the attention scores.
    pub mscale_all_dim: Option<f64>,
}

/// Parameters of LongRoPE.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// Divisors for texts up to `original_context`, one for each pair.
    pub short: Vec<f64>,
    /// Divisors for longer texts, one for each pair.
    pub long: Vec<f64>,
    /// Context of the first training.
    pub original_context: u32,
    /// By how much the context was stretched.
    pub factor: f64,
    /// Factor of sine and cosine, if the config sets it.
    pub attention_factor: Option<f64>,
}

impl RopeParameters {
    /// Factor of sine and cosine, 1 for most kinds.
    pub fn attention_factor(&self) -> f64 {
        match &self.kind {
            RopeKind::Yarn(yarn) => yarn.attention_factor(),
            RopeKind::LongRope(long) => long.attention_factor(),
            _ => 1.0,
        }
    }
}

impl Yarn {
    /// Factor of sine and cosine: as set, else `0.1 ln(factor) + 1`, weighted if both weights are given.
    pub fn attention_factor(&self) -> f64 {
        match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(set), _, _) => set,
            // As in transformers, a weight of 0 counts as not set.
            (None, Some(scale), Some(all)) if scale != 0.0 && all != 0.0 => self.magnitude(scale) / self.magnitude(all),
            _ => self.magnitude(1.0),
        }
    }

    /// Factor of the attention scores (DeepSeek), 1 unless `mscale_all_dim` is given. It comes on top of
    /// [`Yarn::attention_factor`].
    pub fn score_factor(&self) -> f64 {
        match self.mscale_all_dim {
            Some(weight) if weight != 0.0 => self.magnitude(weight) * self.magnitude(weight),
            _ => 1.0,
        }
    }

    fn magnitude(&self, weight: f64) -> f64 {
        if self.factor <= 1.0 { 1.0 } else { 0.1 * weight * libm::log(self.factor) + 1.0 }
    }
}

impl LongRope {
    /// Factor of sine and cosine: as set, else `sqrt(1 + ln(factor) / ln(original_context))`.
    pub fn attention_factor(&self) -> f64 {
        match self.attention_factor {
            Some(set) => set,
            None if self.factor <= 1.0 => 1.0,
            None => (1.0 + libm::log(self.factor) / libm::log(f64::from(self.original_context))).sqrt(),
        }
    }
}

impl HfConfig {
    /// RoPE of the layers of one type (`full_attention`, `sliding_attention`; models with one type of layers have the
    /// former). `default_theta` is the base that the architecture takes if the config gives none.
    ///
    /// # Errors
    /// A parameter is missing, has the wrong type or makes no sense, or the kind of scaling is unknown.
    pub fn rope(&self, layer_type: &str, default_theta: f64) -> Result<RopeParameters, KeyError> {
        match self.optional_section("rope_parameters")? {
            Some(section) => self.rope_of_5(&section, layer_type, default_theta),
            None => self.rope_of_4(layer_type, default_theta),
        }
    }

    /// transformers 5: one object, or one for each type of layers.
    fn rope_of_5(&self, section: &HfConfig, layer_type: &str, default_theta: f64) -> Result<RopeParameters, KeyError> {
        let per_layer_type = section.values().values().any(|value| value.is_object());
        let nested = if per_layer_type { section.optional_section(layer_type)? } else { None };
        if per_layer_type && nested.is_none() {
            return Err(section.error(layer_type, "an object with the RoPE parameters of this type of layers"));
        }
        let section = nested.as_ref().unwrap_or(section);
        let theta = match positive(section, "rope_theta")? {
            Some(theta) => theta,
            None => self.theta_of_4(layer_type)?.unwrap_or(default_theta),
        };
        self.rope_parameters(Some(section), theta)
    }

    /// transformers 4: `rope_theta` and, for stretched contexts, `rope_scaling`. Layers with a window can have a base
    /// of their own, and are then not stretched.
    fn rope_of_4(&self, layer_type: &str, default_theta: f64) -> Result<RopeParameters, KeyError> {
        let theta = self.theta_of_4(layer_type)?.unwrap_or(default_theta);
        let scaling = if self.has_local_rope(layer_type) { None } else { self.optional_section("rope_scaling")? };
        self.rope_parameters(scaling.as_ref(), theta)
    }

    fn has_local_rope(&self, layer_type: &str) -> bool {
        let keys = ["rope_local_base_freq", "local_rope_theta"];
        // Gemma 3 configs can leave the key out.
        let is_gemma3 = self.optional_str("model_type").is_ok_and(|kind| kind.is_some_and(|k| k.starts_with("gemma3")));
        layer_type == SLIDING && (is_gemma3 || keys.iter().any(|key| self.get(key).is_some()))
    }

    fn theta_of_4(&self, layer_type: &str) -> Result<Option<f64>, KeyError> {
        let keys: &[&str] = if self.has_local_rope(layer_type) {
            &["rope_local_base_freq", "local_rope_theta"]
        } else {
            &["rope_theta", "global_rope_theta", "rotary_emb_base"]
        };
        match keys.iter().find(|key| self.get(key).is_some()) {
            Some(key) => positive(self, key),
            None => Ok(None),
        }
    }

    /// Common to both: the object that names the kind, with its parameters.
    fn rope_parameters(&self, section: Option<&HfConfig>, theta: f64) -> Result<RopeParameters, KeyError> {
        let kind = match section {
            Some(section) => self.rope_kind(section)?,
            None => RopeKind::Default,
        };
        Ok(RopeParameters { theta, partial_rotary_factor: self.partial_rotary_factor(section)?, kind })
    }

    fn partial_rotary_factor(&self, section: Option<&HfConfig>) -> Result<Option<f64>, KeyError> {
        let places =
            [(section, "partial_rotary_factor"), (Some(self), "partial_rotary_factor"), (Some(self), "rotary_pct")];
        for (config, key) in places.into_iter().filter_map(|(config, key)| Some((config?, key))) {
            if let Some(factor) = positive(config, key)? {
                return if factor <= 1.0 { Ok(Some(factor)) } else { Err(config.error(key, "a number from 0 to 1")) };
            }
        }
        Ok(None)
    }

    fn rope_kind(&self, section: &HfConfig) -> Result<RopeKind, KeyError> {
        let key = if section.get("rope_type").is_some() { "rope_type" } else { "type" };
        match section.optional_str(key)? {
            // A factor without a kind would be ignored silently.
            None if section.get("factor").is_some() => Err(section.error("rope_type", KINDS)),
            // Multimodal RoPE numbers positions differently; for text it is the default.
            None | Some("default" | "mrope") => Ok(RopeKind::Default),
            Some("linear") => Ok(RopeKind::Linear { factor: required(section, "factor")? }),
            Some("dynamic") => Ok(RopeKind::Dynamic {
                factor: required(section, "factor")?,
                original_context: self.original_context(section)?,
            }),
            Some("llama3") => Ok(RopeKind::Llama3 {
                factor: required(section, "factor")?,
                low_freq_factor: required(section, "low_freq_factor")?,
                high_freq_factor: required(section, "high_freq_factor")?,
                original_context: self.original_context(section)?,
            }),
            Some("yarn") => Ok(RopeKind::Yarn(Yarn {
                factor: self.stretch(section)?,
                original_context: self.original_context(section)?,
                beta_fast: positive(section, "beta_fast")?.unwrap_or(32.0),
                beta_slow: positive(section, "beta_slow")?.unwrap_or(1.0),
                truncate: section.optional_bool("truncate")?.unwrap_or(true),
                attention_factor: positive(section, "attention_factor")?,
                mscale: section.optional_f64("mscale")?,
                mscale_all_dim: section.optional_f64("mscale_all_dim")?,
            })),
            // The name that the first Phi-3 models used.
            Some("longrope" | "su") => Ok(RopeKind::LongRope(LongRope {
                short: section.f64s("short_factor")?,
                long: section.f64s("long_factor")?,
                original_context: self.original_context(section)?,
                factor: self.stretch(section)?,
                attention_factor: positive(section, "attention_factor")?,
            })),
            Some(_) => Err(section.error(key, KINDS)),
        }
    }

    /// Context of the first training: in the section, beside it, or the context that the config states.
    fn original_context(&self, section: &HfConfig) -> Result<u32, KeyError> {
        let key = "original_max_position_embeddings";
        for config in [section, self] {
            match config.optional_u32(key)? {
                Some(0 | 1) => return Err(config.error(key, "a whole number above 1")),
                Some(context) => return Ok(context),
                None => {}
            }
        }
        self.u32("max_position_embeddings")
    }

    /// By how much the context was stretched: as stated, else the ratio of new and original context.
    fn stretch(&self, section: &HfConfig) -> Result<f64, KeyError> {
        match positive(section, "factor")? {
            Some(factor) => Ok(factor),
            None => {
                let context = self.u32("max_position_embeddings")?;
                Ok(f64::from(context) / f64::from(self.original_context(section)?))
            }
        }
    }

    /// The type of each layer as the config lists it (`layer_types`), if it does.
    ///
    /// # Errors
    /// It is not a list of strings, or its length is not the number of layers.
    pub fn layer_types(&self) -> Result<Option<Vec<&str>>, KeyError> {
        let Some(types) = self.optional_strings("layer_types")? else { return Ok(None) };
        let layers = self.usize("num_hidden_layers")?;
        if types.len() != layers {
            return Err(self.error("layer_types", format!("an array of {layers} strings, one for each layer")));
        }
        Ok(Some(types))
    }
}

const POSITIVE: &str = "a number above 0";
const KINDS: &str = "one of default, linear, dynamic, yarn, llama3, longrope";

fn positive(config: &HfConfig, key: &str) -> Result<Option<f64>, KeyError> {
    match config.optional_f64(key)? {
        Some(value) if value > 0.0 && value.is_finite() => Ok(Some(value)),
        Some(_) => Err(config.error(key, POSITIVE)),
        None => Ok(None),
    }
}

fn required(config: &HfConfig, key: &str) -> Result<f64, KeyError> {
    positive(config, key)?.ok_or_else(|| config.error(key, POSITIVE))
}
