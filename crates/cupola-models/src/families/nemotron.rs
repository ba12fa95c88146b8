//! Nemotron-4 and Minitron: norms by mean and variance, stored as distance from 1; squared ReLU without a gate.

use super::Family;
use crate::ModelError;
use crate::decoder::Decoder;
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_graph::{Activation, RopeStyle};

pub(super) const FAMILY: Family =
    Family { name: "nemotron", model_types: &["nemotron"], hugging_face, gguf: Some((&["nemotron"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let defaults = Defaults { activation: "relu2", context_length: 4096, rotary: 0.5, ..Defaults::LLAMA };
    let mut decoder = m.decoder(&defaults)?;
    m.attention_bias(&mut decoder, false)?;
    m.layer_norm(&mut decoder, "norm_eps", true)?;
    decoder.norm_offset = 1.0;
    decoder.mlp.gated = false;
    decoder.mlp.bias = m.flag("mlp_bias")?;
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(RopeStyle::Halves)?;
    m.layer_norm(&mut decoder)?;
    (decoder.mlp.gated, decoder.mlp.activation) = (false, Activation::ReluSquared);
    Ok(decoder)
}
