//! OLMoE: many small experts; norms over all queries and all keys of a token.

use super::Family;
use super::qwen2_moe::small_experts;
use crate::ModelError;
use crate::decoder::{Decoder, QkNorm};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_graph::RopeStyle;

pub(super) const FAMILY: Family =
    Family { name: "olmoe", model_types: &["olmoe"], hugging_face, gguf: Some((&["olmoe"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(&Defaults { norm_eps: 1e-5, context_length: 4096, ..Defaults::LLAMA })?;
    m.attention_bias(&mut decoder, false)?;
    m.refuse("clip_qkv")?;
    decoder.attention.qk_norm = QkNorm::Whole;
    // Here the size of the feed-forward is that of an expert.
    let width = decoder.mlp.width;
    decoder.experts = Some(small_experts(m, &decoder, 64, 8, width)?);
    decoder.layers.iter_mut().for_each(|layer| layer.experts = true);
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder_with_experts(RopeStyle::Halves)?;
    decoder.attention.qk_norm = QkNorm::Whole;
    Ok(decoder)
}
