//! Qwen2 and Qwen2.5: Llama with biases on queries, keys and values; some have a window in their upper layers.

use super::Family;
use crate::ModelError;
use crate::decoder::Decoder;
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_formats::config::HfConfig;
use cupola_graph::RopeStyle;

pub(super) const FAMILY: Family =
    Family { name: "qwen2", model_types: &["qwen2"], hugging_face, gguf: Some((&["qwen2"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(&Defaults { context_length: 32768, ..Defaults::LLAMA })?;
    decoder.attention.qkv_bias = true;
    upper_windows(m, &mut decoder)?;
    Ok(decoder)
}

/// Windows in the layers from `max_window_layers` on, if `use_sliding_window` says so.
pub(super) fn upper_windows(m: &HuggingFace, decoder: &mut Decoder) -> Result<(), ModelError> {
    let window = match m.flag("use_sliding_window")? {
        true => m.setting("sliding_window", HfConfig::optional_usize, Some(4096))?,
        false => None,
    };
    let first = m.config.optional_usize("max_window_layers")?.unwrap_or(28);
    m.windows(decoder, window, |i| window.is_some() && i >= first)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(RopeStyle::Halves)?;
    decoder.attention.qkv_bias = true;
    Ok(decoder)
}
