//! gpt-oss: experts with bounds on their gates and biases, a window in every other layer, a score for nothing in each head,
//! and YaRN whose ramp is not rounded.

use super::Family;
use crate::ModelError;
use crate::decoder::Decoder;
use crate::experts::{Experts, Layout};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_formats::config::HfConfig;
use cupola_graph::{Gating, RopeStyle, Scores};
use std::sync::Arc;

pub(super) const FAMILY: Family =
    Family { name: "gpt_oss", model_types: &["gpt_oss"], hugging_face, gguf: Some((&["gpt-oss"], gguf)) };

/// Steepness of the sigmoid, which no config states.
const ALPHA: f32 = 1.702;
/// Bound on both halves of the gated feed-forward.
const LIMIT: f32 = 7.0;

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let defaults = Defaults { norm_eps: 1e-5, theta: 150000.0, context_length: 131072, ..Defaults::LLAMA };
    let mut decoder = m.decoder(&defaults)?;
    let bias = m.config.optional_bool("attention_bias")?.unwrap_or(true);
    (decoder.attention.qkv_bias, decoder.attention.out_bias) = (bias, bias);
    let window = m.setting("sliding_window", HfConfig::optional_usize, Some(128))?;
    m.windows(&mut decoder, window, |i| i.is_multiple_of(2))?;
    let limit = m.config.optional_f32("swiglu_limit")?.unwrap_or(LIMIT);
    let experts = Experts::new(m.experts(128)?, decoder.mlp.width, m.experts_per_token(4)?, decoder.mlp.activation);
    decoder.names.layer.experts.router = "mlp.router";
    let layout = match m.layout(&decoder) {
        Layout::Mxfp4 => Layout::Mxfp4,
        _ => Layout::Columns,
    };
    finish(&mut decoder, Experts { layout, ..experts }, limit);
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder_with_experts(RopeStyle::Halves)?;
    // The files do not say that the ramp is not rounded.
    let table = Arc::new(m.rope(&decoder, false)?);
    decoder.layers.iter_mut().for_each(|layer| layer.rope = Some(table.clone()));
    if let Some(window) = m.window()? {
        decoder.layers.iter_mut().step_by(2).for_each(|layer| layer.window = Some(window));
    }
    decoder.names.layer.mlp_norm = "post_attention_norm";
    if let Some(experts) = decoder.experts.take() {
        finish(&mut decoder, experts, LIMIT);
    }
    Ok(decoder)
}

fn finish(decoder: &mut Decoder, experts: Experts, limit: f32) {
    decoder.attention.sinks = true;
    decoder.layers.iter_mut().for_each(|layer| layer.experts = true);
    decoder.experts = Some(Experts {
        scores: Scores::SoftmaxOfChosen,
        gating: Gating::ClampedSwiglu { alpha: ALPHA, limit },
        router_bias: true,
        bias: true,
        ..experts
    });
}
