//! Seed-OSS: Llama with biases on queries, keys and values.

use super::Family;
use crate::ModelError;
use crate::decoder::Decoder;
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_graph::RopeStyle;

pub(super) const FAMILY: Family =
    Family { name: "seed_oss", model_types: &["seed_oss"], hugging_face, gguf: Some((&["seed_oss"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let defaults = Defaults { kv_heads: Some(8), head_dim: Some(128), context_length: 524288, ..Defaults::LLAMA };
    let mut decoder = m.decoder(&defaults)?;
    decoder.attention.qkv_bias = m.config.optional_bool("attention_bias")?.unwrap_or(true);
    decoder.attention.out_bias = m.flag("attention_out_bias")?;
    decoder.mlp.bias = m.flag("mlp_bias")?;
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(RopeStyle::Halves)?;
    decoder.names.layer.mlp_norm = "post_attention_norm";
    Ok(decoder)
}
