//! GLM-4.5: small experts that a sigmoid chooses, after layers without; part of each head rotates.

use super::Family;
use crate::ModelError;
use crate::decoder::{Decoder, QkNorm};
use crate::experts::{Experts, Shared};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_graph::{Groups, RopeStyle, Scores};

pub(super) const FAMILY: Family =
    Family { name: "glm4_moe", model_types: &["glm4_moe"], hugging_face, gguf: Some((&["glm4moe"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let defaults =
        Defaults { kv_heads: Some(8), norm_eps: 1e-5, context_length: 131072, rotary: 0.5, ..Defaults::LLAMA };
    let mut decoder = m.decoder(&defaults)?;
    decoder.attention.qkv_bias = m.flag("attention_bias")?;
    if m.flag("use_qk_norm")? {
        decoder.attention.qk_norm = QkNorm::Heads;
    }
    sigmoid_experts(m, &mut decoder, true)?;
    decoder.draft_layers = true;
    Ok(decoder)
}

/// Experts as DeepSeek-V3 has them: a sigmoid and a bias choose, in groups; shared ones serve every token; the first layers have
/// none.
pub(super) fn sigmoid_experts(m: &HuggingFace, decoder: &mut Decoder, normalise: bool) -> Result<(), ModelError> {
    let width = m.config.optional_usize("moe_intermediate_size")?.unwrap_or(1408);
    let (count, top_k) = (m.experts(128)?, m.experts_per_token(8)?);
    let groups = m.config.optional_usize("n_group")?.filter(|n| *n > 1);
    let groups = match groups {
        Some(count) => Some(Groups { count, top_k: m.config.usize("topk_group")?, best: 2 }),
        None => None,
    };
    let shared = m.config.optional_usize("n_shared_experts")?.filter(|n| *n > 0);
    let shared = match shared.map(|n| n.checked_mul(width)) {
        Some(None) => return Err(m.config.error("n_shared_experts", "a smaller number").into()),
        Some(width) => width.map(|width| Shared { width, gated: false, fused: false }),
        None => None,
    };
    let names = &mut decoder.names.layer.experts;
    names.shared_gate = "mlp.shared_experts.gate_proj";
    names.shared_up = "mlp.shared_experts.up_proj";
    names.shared_down = "mlp.shared_experts.down_proj";
    let layout = m.layout(decoder);
    decoder.experts = Some(Experts {
        scores: Scores::Sigmoid,
        choice_bias: true,
        groups,
        normalise: m.config.optional_bool("norm_topk_prob")?.unwrap_or(normalise),
        scale: m.config.optional_f32("routed_scaling_factor")?.unwrap_or(1.0),
        layout,
        shared,
        ..Experts::new(count, width, top_k, decoder.mlp.activation)
    });
    let dense = m.config.optional_usize("first_k_dense_replace")?.unwrap_or(usize::from(normalise));
    decoder.layers.iter_mut().skip(dense).for_each(|layer| layer.experts = true);
    Ok(())
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder_with_experts(RopeStyle::Halves)?;
    // Not all of these models have them.
    if m.has_in_first_layer(decoder.names.layer.q_norm) {
        decoder.attention.qk_norm = QkNorm::Heads;
    }
    decoder.names.layer.mlp_norm = "post_attention_norm";
    if let Some(experts) = &mut decoder.experts {
        experts.scores = Scores::Sigmoid;
    }
    Ok(decoder)
}
