//! GLM-4: part of each head rotates, in pairs of neighbours; gate and up are one tensor. The 0414 models have norms after attention and feed-forward too.

use super::Family;
use crate::ModelError;
use crate::decoder::{Decoder, Placement};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_graph::RopeStyle;

pub(super) const FAMILY: Family =
    Family { name: "glm", model_types: &["glm", "glm4"], hugging_face, gguf: Some((&["chatglm", "glm4"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(2),
        head_dim: Some(128),
        norm_eps: 0.000_000_156_25,
        context_length: 131072,
        rotary: 0.5,
        ..Defaults::LLAMA
    };
    let mut decoder = m.decoder(&defaults)?;
    decoder.attention.rope_style = RopeStyle::Interleaved;
    decoder.attention.qkv_bias = m.config.optional_bool("attention_bias")?.unwrap_or(true);
    decoder.mlp.fused = true;
    if m.config.model_type()? == "glm4" {
        decoder.placement = Placement::Around;
        decoder.names.layer.post_attention_norm = "post_self_attn_layernorm";
        decoder.names.layer.post_mlp_norm = "post_mlp_layernorm";
    }
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(RopeStyle::Interleaved)?;
    decoder.mlp.fused = true;
    if m.architecture == "glm4" {
        decoder.placement = Placement::Around;
    }
    Ok(decoder)
}
