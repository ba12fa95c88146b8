//! StarCoder2: norms by mean and variance, biases everywhere, GELU without a gate, a window.

use super::Family;
use crate::ModelError;
use crate::decoder::Decoder;
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_graph::{Activation, RopeStyle};

pub(super) const FAMILY: Family =
    Family { name: "starcoder2", model_types: &["starcoder2"], hugging_face, gguf: Some((&["starcoder2"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let defaults = Defaults {
        kv_heads: Some(2),
        activation: "gelu_pytorch_tanh",
        context_length: 4096,
        tied: true,
        ..Defaults::LLAMA
    };
    let mut decoder = m.decoder(&defaults)?;
    m.layer_norm(&mut decoder, "norm_epsilon", true)?;
    let bias = m.config.optional_bool("use_bias")?.unwrap_or(true);
    (decoder.attention.qkv_bias, decoder.attention.out_bias, decoder.mlp.bias) = (bias, bias, bias);
    decoder.mlp.gated = false;
    (decoder.names.layer.up, decoder.names.layer.down) = ("mlp.c_fc", "mlp.c_proj");
    let window = m.config.optional_usize("sliding_window")?;
    m.windows(&mut decoder, window, |_| window.is_some())?;
    Ok(decoder)
}

/// The window of every published model, which files do not state.
const WINDOW: usize = 4096;

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(RopeStyle::Halves)?;
    m.layer_norm(&mut decoder)?;
    (decoder.mlp.gated, decoder.mlp.activation) = (false, Activation::GeluTanh);
    let window = m.window()?.unwrap_or(WINDOW);
    decoder.layers.iter_mut().for_each(|layer| layer.window = Some(window));
    Ok(decoder)
}
