//! Mistral 7B, Nemo, Small: Llama, in the first version with a window in every layer.

use super::Family;
use crate::ModelError;
use crate::decoder::Decoder;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_formats::config::HfConfig;

/// In GGUF they are Llama models.
pub(super) const FAMILY: Family = Family { name: "mistral", model_types: &["mistral"], hugging_face, gguf: None };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(&Defaults { context_length: 131072, ..Defaults::LLAMA })?;
    let window = m.setting("sliding_window", HfConfig::optional_usize, Some(4096))?;
    m.windows(&mut decoder, window, |_| window.is_some())?;
    Ok(decoder)
}
