//! Qwen1.5-MoE and Qwen2-MoE: Qwen2 with many small experts and a large one that every token uses.

use super::Family;
use super::qwen2::upper_windows;
use crate::ModelError;
use crate::decoder::Decoder;
use crate::experts::{Experts, Shared};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_formats::config::HfConfig;
use cupola_graph::RopeStyle;

pub(super) const FAMILY: Family =
    Family { name: "qwen2_moe", model_types: &["qwen2_moe"], hugging_face, gguf: Some((&["qwen2moe"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(&Defaults { context_length: 32768, ..Defaults::LLAMA })?;
    decoder.attention.qkv_bias = m.config.optional_bool("qkv_bias")?.unwrap_or(true);
    upper_windows(m, &mut decoder)?;
    sparse_layers(m, &mut decoder)?;
    let mut experts = small_experts(m, &decoder, 60, 4, 1408)?;
    let width = m.config.optional_usize("shared_expert_intermediate_size")?.unwrap_or(5632);
    experts.shared = Some(Shared { width, gated: true, fused: false });
    decoder.experts = Some(experts);
    Ok(decoder)
}

/// Experts of a size of their own; the numbers are what transformers takes where a config says nothing.
pub(super) fn small_experts(
    m: &HuggingFace,
    decoder: &Decoder,
    count: usize,
    top_k: usize,
    width: usize,
) -> Result<Experts, ModelError> {
    let width = m.config.optional_usize("moe_intermediate_size")?.unwrap_or(width);
    let experts = Experts::new(m.experts(count)?, width, m.experts_per_token(top_k)?, decoder.mlp.activation);
    Ok(Experts { normalise: m.flag("norm_topk_prob")?, layout: m.layout(decoder), ..experts })
}

/// Every layer has experts but those that `mlp_only_layers` lists, or with `decoder_sparse_step` every so-manieth.
pub(super) fn sparse_layers(m: &HuggingFace, decoder: &mut Decoder) -> Result<(), ModelError> {
    let dense = m.config.optional_u32s("mlp_only_layers")?.unwrap_or_default();
    let step = m.setting("decoder_sparse_step", HfConfig::optional_usize, Some(1))?.unwrap_or(0);
    if step == 0 {
        return Err(m.config.error("decoder_sparse_step", "a number above 0").into());
    }
    for (i, layer) in decoder.layers.iter_mut().enumerate() {
        layer.experts = (i + 1).is_multiple_of(step) && !dense.iter().any(|dense| *dense as usize == i);
    }
    Ok(())
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder_with_experts(RopeStyle::Halves)?;
    decoder.attention.qkv_bias = true;
    Ok(decoder)
}
