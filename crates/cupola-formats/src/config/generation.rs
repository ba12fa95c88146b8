//! `generation_config.json`: where to stop and how to sample.

use std::path::Path;

use super::HfConfig;
use crate::error::{FormatError, KeyError};
use crate::gguf::Metadata;

/// What a model's makers recommend for generation. `None` is "not said".
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end the text, in the order of the file.
    pub eos_token_ids: Vec<u32>,
    /// Token that starts a text.
    pub bos_token_id: Option<u32>,
    /// Whether to sample (true) or take the best token (false).
    pub do_sample: Option<bool>,
    /// Divisor of the logits.
    pub temperature: Option<f32>,
    /// Number of best tokens to sample from; 0 means all.
    pub top_k: Option<u32>,
    /// Share of the probability to sample from.
    pub top_p: Option<f32>,
    /// Least probability, relative to that of the best token.
    pub min_p: Option<f32>,
    /// Divisor of the logits of tokens that occurred.
    pub repetition_penalty: Option<f32>,
    /// Most tokens to generate.
    pub max_new_tokens: Option<u32>,
}

impl GenerationConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is not a JSON object, or a value has the wrong type.
    pub fn read(path: impl AsRef<Path>) -> Result<GenerationConfig, FormatError> {
        let values = HfConfig::read(path)?;
        Ok(GenerationConfig {
            eos_token_ids: values.token_ids("eos_token_id")?,
            bos_token_id: values.token_ids("bos_token_id")?.first().copied(),
            do_sample: values.optional_bool("do_sample")?,
            temperature: values.optional_f32("temperature")?,
            top_k: values.optional_u32("top_k")?,
            top_p: values.optional_f32("top_p")?,
            min_p: values.optional_f32("min_p")?,
            repetition_penalty: values.optional_f32("repetition_penalty")?,
            max_new_tokens: values.optional_u32("max_new_tokens")?,
        })
    }

    /// From the keys `general.sampling.*` of GGUF metadata; `None` if there are none. Temperature 0 stands for greedy.
    ///
    /// # Errors
    /// A value has the wrong type.
    pub fn from_gguf(metadata: &Metadata) -> Result<Option<GenerationConfig>, KeyError> {
        let number = |name: &str| metadata.optional_f32(&format!("general.sampling.{name}"));
        // A negative number stands for all tokens, as 0 does.
        let top_k = metadata.get("general.sampling.top_k").and_then(|value| value.as_integer());
        let config = GenerationConfig {
            temperature: number("temp")?,
            top_k: top_k.and_then(|k| k.max(0).try_into().ok()),
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repetition_penalty: number("penalty_repeat")?,
            ..GenerationConfig::default()
        };
        Ok(Some(config).filter(|config| *config != GenerationConfig::default()))
    }
}
