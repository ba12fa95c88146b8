//! ERNIE 4.5: pairs of neighbours rotate. The larger ones have experts, and some that every token uses.

use super::Family;
use crate::ModelError;
use crate::decoder::Decoder;
use crate::experts::{Experts, Shared};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_graph::RopeStyle;

pub(super) const FAMILY: Family = Family {
    name: "ernie4_5",
    model_types: &["ernie4_5", "ernie4_5_moe"],
    hugging_face,
    gguf: Some((&["ernie4_5", "ernie4_5-moe"], gguf)),
};

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let experts = m.config.model_type()? == "ernie4_5_moe";
    let defaults = Defaults {
        kv_heads: Some(if experts { 4 } else { 2 }),
        head_dim: if experts { None } else { Some(128) },
        norm_eps: 1e-5,
        theta: 500000.0,
        context_length: 131072,
        tied: true,
        ..Defaults::LLAMA
    };
    let mut decoder = m.decoder(&defaults)?;
    let bias = m.flag("use_bias")?;
    (decoder.attention.qkv_bias, decoder.attention.out_bias, decoder.mlp.bias) = (bias, bias, bias);
    decoder.attention.rope_style = RopeStyle::Interleaved;
    if experts {
        m.refuse("use_bias")?;
        routed(m, &mut decoder)?;
    }
    Ok(decoder)
}

fn routed(m: &HuggingFace, decoder: &mut Decoder) -> Result<(), ModelError> {
    let number = |key: &str, default| Ok::<_, ModelError>(m.config.optional_usize(key)?.unwrap_or(default));
    let width = number("moe_intermediate_size", 1536)?;
    let shared = number("moe_num_shared_experts", 2)?;
    let shared =
        shared.checked_mul(width).ok_or_else(|| m.config.error("moe_num_shared_experts", "a smaller number"))?;
    let names = &mut decoder.names.layer.experts;
    names.choice_bias = "mlp.moe_statics.e_score_correction_bias";
    names.shared_gate = "mlp.shared_experts.gate_proj";
    names.shared_up = "mlp.shared_experts.up_proj";
    names.shared_down = "mlp.shared_experts.down_proj";
    decoder.experts = Some(Experts {
        choice_bias: true,
        normalise: true,
        layout: m.layout(decoder),
        shared: (shared > 0).then_some(Shared { width: shared, gated: false, fused: false }),
        ..Experts::new(m.experts(64)?, width, number("moe_k", 6)?, decoder.mlp.activation)
    });
    let (first, interval) = (number("moe_layer_start_index", 1)?, number("moe_layer_interval", 1)?);
    if interval == 0 {
        return Err(m.config.error("moe_layer_interval", "a number above 0").into());
    }
    // -1: the last.
    let last = m.config.get("moe_layer_end_index").and_then(|v| v.as_i64()).and_then(|n| usize::try_from(n).ok());
    for (i, layer) in decoder.layers.iter_mut().enumerate() {
        layer.experts = i >= first && last.is_none_or(|last| i <= last) && (i + 1).is_multiple_of(interval);
    }
    Ok(())
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder_with_experts(RopeStyle::Interleaved)?;
    if let Some(experts) = &mut decoder.experts {
        experts.normalise = true;
    }
    Ok(decoder)
}
