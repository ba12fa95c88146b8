//! Gemma 2: four norms a layer, bounds on scores and logits, a window in every other layer, a scaled embedding.

use super::Family;
use crate::ModelError;
use crate::decoder::{Decoder, Placement};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_formats::config::HfConfig;
use cupola_graph::{Activation, RopeStyle};

pub(super) const FAMILY: Family =
    Family { name: "gemma2", model_types: &["gemma2"], hugging_face, gguf: Some((&["gemma2"], gguf)) };

/// What the configs of all Gemma models leave out.
pub(super) const DEFAULTS: Defaults = Defaults {
    heads: Some(8),
    kv_heads: Some(4),
    head_dim: Some(256),
    context_length: 8192,
    activation: "gelu_pytorch_tanh",
    tied: true,
    ..Defaults::LLAMA
};

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let mut decoder = common(m, &DEFAULTS)?;
    decoder.attention.softcap = m.setting("attn_logit_softcapping", HfConfig::optional_f32, Some(50.0))?;
    decoder.logit_softcap = m.setting("final_logit_softcapping", HfConfig::optional_f32, Some(30.0))?;
    let window = m.setting("sliding_window", HfConfig::optional_usize, Some(4096))?;
    m.windows(&mut decoder, window, |i| i.is_multiple_of(2))?;
    Ok(decoder)
}

/// What Gemma 2 and 3 share.
pub(super) fn common(m: &HuggingFace, defaults: &Defaults) -> Result<Decoder, ModelError> {
    if m.flag("use_bidirectional_attention")? {
        return Err(m.config.error("use_bidirectional_attention", "false: encoders are not supported yet").into());
    }
    let mut decoder = m.decoder(defaults)?;
    let bias = m.flag("attention_bias")?;
    (decoder.attention.qkv_bias, decoder.attention.out_bias) = (bias, bias);
    let scalar = m.config.optional_f32("query_pre_attn_scalar")?.unwrap_or(256.0);
    decoder.attention.scale = 1.0 / scalar.sqrt();
    decoder.embed_scale = (decoder.hidden as f32).sqrt();
    // Norm weights are stored as their distance from 1.
    decoder.norm_offset = 1.0;
    decoder.placement = Placement::Around;
    decoder.names.layer.mlp_norm = "pre_feedforward_layernorm";
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    // 46 layers: the 27B model, whose scores are scaled by hidden / heads.
    let mut decoder = common_gguf(m, 46)?;
    decoder.attention.softcap = Some(m.optional_f32("attn_logit_softcapping")?.unwrap_or(50.0));
    decoder.logit_softcap = Some(m.optional_f32("final_logit_softcapping")?.unwrap_or(30.0));
    m.windows(&mut decoder, m.window()?.unwrap_or(4096), 2)?;
    Ok(decoder)
}

/// What Gemma 2 and 3 share. The files do not hold the query scale, which only the model with `largest` layers has from
/// hidden size and heads instead of the head size.
pub(super) fn common_gguf(m: &GgufModel, largest: usize) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(RopeStyle::Halves)?;
    if decoder.layers.len() == largest && m.optional_f32("attention.scale")?.is_none() {
        decoder.attention.scale = 1.0 / ((decoder.hidden / decoder.attention.heads.max(1)) as f32).sqrt();
    }
    decoder.embed_scale = (decoder.hidden as f32).sqrt();
    decoder.mlp.activation = Activation::GeluTanh;
    decoder.placement = Placement::Around;
    Ok(decoder)
}
