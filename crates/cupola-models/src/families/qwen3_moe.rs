//! Qwen3-MoE: Qwen3 with many small experts.

use super::Family;
use super::qwen2::upper_windows;
use super::qwen2_moe::{small_experts, sparse_layers};
use crate::ModelError;
use crate::decoder::{Decoder, QkNorm};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_graph::RopeStyle;

pub(super) const FAMILY: Family =
    Family { name: "qwen3_moe", model_types: &["qwen3_moe"], hugging_face, gguf: Some((&["qwen3moe"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(&Defaults { context_length: 32768, ..Defaults::LLAMA })?;
    decoder.attention.qk_norm = QkNorm::Heads;
    let bias = m.flag("attention_bias")?;
    (decoder.attention.qkv_bias, decoder.attention.out_bias) = (bias, bias);
    upper_windows(m, &mut decoder)?;
    sparse_layers(m, &mut decoder)?;
    decoder.experts = Some(small_experts(m, &decoder, 128, 8, 768)?);
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder_with_experts(RopeStyle::Halves)?;
    decoder.attention.qk_norm = QkNorm::Heads;
    if let Some(experts) = &mut decoder.experts {
        experts.normalise = m.optional_bool("expert_weights_norm")?.unwrap_or(true);
    }
    Ok(decoder)
}
