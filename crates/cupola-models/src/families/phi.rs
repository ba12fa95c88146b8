//! Phi-1, 1.5 and 2: attention and feed-forward read the same norm; half of each head rotates; biases everywhere.

use super::Family;
use crate::ModelError;
use crate::decoder::{Decoder, Placement};
use crate::hugging_face::{Defaults, HuggingFace};

pub(super) const FAMILY: Family = Family { name: "phi", model_types: &["phi"], hugging_face, gguf: None };

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
