//! Gemma: Llama with norms stored as distance from 1, a scaled embedding and a GELU gate.

use super::Family;
use super::gemma2::DEFAULTS;
use crate::ModelError;
use crate::decoder::Decoder;
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_graph::{Activation, RopeStyle};

pub(super) const FAMILY: Family =
    Family { name: "gemma", model_types: &["gemma"], hugging_face, gguf: Some((&["gemma"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(&Defaults { kv_heads: Some(16), ..DEFAULTS })?;
    m.attention_bias(&mut decoder, false)?;
    decoder.embed_scale = (decoder.hidden as f32).sqrt();
    decoder.norm_offset = 1.0;
    // Early configs say "gelu" and mean its approximation.
    decoder.mlp.activation = Activation::GeluTanh;
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(RopeStyle::Halves)?;
    decoder.embed_scale = (decoder.hidden as f32).sqrt();
    decoder.mlp.activation = Activation::GeluTanh;
    Ok(decoder)
}
