//! Qwen3: a norm on each query and key head, and no biases.

use super::Family;
use super::qwen2::upper_windows;
use crate::ModelError;
use crate::decoder::{Decoder, QkNorm};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_graph::RopeStyle;

pub(super) const FAMILY: Family =
    Family { name: "qwen3", model_types: &["qwen3"], hugging_face, gguf: Some((&["qwen3"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(&Defaults { context_length: 32768, head_dim: Some(128), ..Defaults::LLAMA })?;
    decoder.attention.qk_norm = QkNorm::Heads;
    let bias = m.flag("attention_bias")?;
    (decoder.attention.qkv_bias, decoder.attention.out_bias) = (bias, bias);
    upper_windows(m, &mut decoder)?;
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(RopeStyle::Halves)?;
    decoder.attention.qk_norm = QkNorm::Heads;
    Ok(decoder)
}
