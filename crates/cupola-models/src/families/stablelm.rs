//! StableLM: norms by mean and variance; a quarter of each head rotates.

use super::Family;
use crate::ModelError;
use crate::decoder::Decoder;
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_graph::RopeStyle;

pub(super) const FAMILY: Family =
    Family { name: "stablelm", model_types: &["stablelm"], hugging_face, gguf: Some((&["stablelm"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let defaults = Defaults { kv_heads: Some(32), context_length: 4096, rotary: 0.25, ..Defaults::LLAMA };
    let mut decoder = m.decoder(&defaults)?;
    m.refuse("qk_layernorm")?;
    m.refuse("use_parallel_residual")?;
    m.layer_norm(&mut decoder, "layer_norm_eps", true)?;
    decoder.attention.qkv_bias = m.flag("use_qkv_bias")?;
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(RopeStyle::Halves)?;
    m.layer_norm(&mut decoder)?;
    Ok(decoder)
}
