//! GPT-NeoX and Pythia: attention and feed-forward side by side, each with its norm; query, key and value of each head in turn in one tensor.

use super::Family;
use crate::ModelError;
use crate::decoder::{Decoder, Placement, Qkv};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use crate::names::{LayerNames, Names};
use cupola_graph::{Activation, RopeStyle};

pub(super) const FAMILY: Family =
    Family { name: "gpt_neox", model_types: &["gpt_neox"], hugging_face, gguf: Some((&["gptneox"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let rotary = m.config.optional_f64("rotary_pct")?.unwrap_or(0.25);
    let mut decoder = m.decoder_named(&Defaults { activation: "gelu", rotary, ..Defaults::LLAMA }, names())?;
    m.layer_norm(&mut decoder, "layer_norm_eps", true)?;
    let bias = m.config.optional_bool("attention_bias")?.unwrap_or(true);
    (decoder.attention.qkv_bias, decoder.attention.out_bias, decoder.mlp.bias) = (bias, bias, true);
    decoder.attention.qkv = Qkv::ByHead;
    decoder.attention.kv_heads = decoder.attention.heads;
    decoder.mlp.gated = false;
    if m.config.optional_bool("use_parallel_residual")?.unwrap_or(true) {
        decoder.placement = Placement::Parallel { own_norm: true };
    }
    Ok(decoder)
}

fn names() -> Names {
    let llama = Names::hugging_face("", "gpt_neox.");
    Names {
        embed: "gpt_neox.embed_in".into(),
        final_norm: "gpt_neox.final_layer_norm".into(),
        head: "embed_out".into(),
        layer: LayerNames {
            qkv: "attention.query_key_value",
            out: "attention.dense",
            up: "mlp.dense_h_to_4h",
            down: "mlp.dense_4h_to_h",
            ..llama.layer
        },
        ..llama
    }
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(RopeStyle::Halves)?;
    m.layer_norm(&mut decoder)?;
    // The files do not say which GELU it is: the approximation in GPT-NeoX-20B only, which has 44 layers.
    let activation = if decoder.layers.len() == 44 { Activation::GeluTanh } else { Activation::Gelu };
    (decoder.mlp.gated, decoder.mlp.activation) = (false, activation);
    if m.optional_bool("use_parallel_residual")?.unwrap_or(true) {
        decoder.placement = Placement::Parallel { own_norm: true };
    }
    Ok(decoder)
}
