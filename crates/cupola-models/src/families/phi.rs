//! Phi-1, 1.5 and 2: attention and feed-forward read the same norm; half of each head rotates; biases everywhere.

use super::Family;
use crate::ModelError;
use crate::decoder::{Decoder, Placement};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_graph::{Activation, RopeStyle};

pub(super) const FAMILY: Family =
    Family { name: "phi", model_types: &["phi"], hugging_face, gguf: Some((&["phi2"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(&Defaults { activation: "gelu_new", rotary: 0.5, ..Defaults::LLAMA })?;
    m.refuse("qk_layernorm")?;
    m.layer_norm(&mut decoder, "layer_norm_eps", true)?;
    decoder.placement = Placement::Parallel { own_norm: false };
    (decoder.attention.qkv_bias, decoder.attention.out_bias, decoder.mlp.bias) = (true, true, true);
    decoder.mlp.gated = false;
    decoder.head_bias = true;
    decoder.names.final_norm = "model.final_layernorm".into();
    let names = &mut decoder.names.layer;
    (names.out, names.up, names.down) = ("self_attn.dense", "mlp.fc1", "mlp.fc2");
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(RopeStyle::Halves)?;
    m.layer_norm(&mut decoder)?;
    decoder.placement = Placement::Parallel { own_norm: false };
    (decoder.mlp.gated, decoder.mlp.activation) = (false, Activation::GeluTanh);
    Ok(decoder)
}
