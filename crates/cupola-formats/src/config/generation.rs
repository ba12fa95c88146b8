//! `generation_config.json`: where to stop and how to sample.

use std::path::Path;

use super::HfConfig;
use crate::error::FormatError;

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
}
