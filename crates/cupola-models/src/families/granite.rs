//! Granite 3: Llama with factors on embedding, residuals, scores and logits; some have experts, and one that every token uses.

use super::Family;
use crate::ModelError;
use crate::decoder::Decoder;
use crate::experts::{Experts, Layout, Shared};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_graph::{RopeStyle, Scores};

pub(super) const FAMILY: Family = Family {
    name: "granite",
    model_types: &["granite", "granitemoe", "granitemoeshared"],
    hugging_face,
    gguf: Some((&["granite", "granitemoe"], gguf)),
};

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(&Defaults::LLAMA)?;
    m.attention_bias(&mut decoder, false)?;
    decoder.mlp.bias = m.flag("mlp_bias")?;
    let factor = |key: &str| Ok::<_, ModelError>(m.config.optional_f32(key)?.unwrap_or(1.0));
    decoder.embed_scale = factor("embedding_multiplier")?;
    decoder.residual_scale = factor("residual_multiplier")?;
    decoder.attention.scale = factor("attention_multiplier")?;
    decoder.logit_scale = 1.0 / factor("logits_scaling")?;
    if m.config.model_type()? != "granite" {
        experts(m, &mut decoder)?;
    }
    Ok(decoder)
}

fn experts(m: &HuggingFace, decoder: &mut Decoder) -> Result<(), ModelError> {
    let names = &mut decoder.names.layer.experts;
    names.router = "block_sparse_moe.router.layer";
    names.gate_up_bank = "block_sparse_moe.input_linear.weight";
    names.down_bank = "block_sparse_moe.output_linear";
    names.shared_gate_up = "shared_mlp.input_linear";
    names.shared_down = "shared_mlp.output_linear";
    let experts = Experts::new(m.experts(8)?, decoder.mlp.width, m.experts_per_token(2)?, decoder.mlp.activation);
    let shared = m.config.optional_usize("shared_intermediate_size")?.filter(|width| *width > 0);
    decoder.experts = Some(Experts {
        scores: Scores::SoftmaxOfChosen,
        layout: Layout::GateUpBanks,
        shared: shared.map(|width| Shared { width, gated: false, fused: true }),
        ..experts
    });
    decoder.layers.iter_mut().for_each(|layer| layer.experts = true);
    Ok(())
}

/// As in Llama files, rows of the query and key matrices are in the order of the paper's pairs.
fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder_with_experts(RopeStyle::Interleaved)?;
    let factor = |key: &str| Ok::<_, ModelError>(m.optional_f32(key)?.filter(|factor| *factor != 0.0).unwrap_or(1.0));
    decoder.embed_scale = factor("embedding_scale")?;
    decoder.residual_scale = factor("residual_scale")?;
    decoder.logit_scale = 1.0 / factor("logit_scale")?;
    if let Some(experts) = &mut decoder.experts {
        experts.scores = Scores::SoftmaxOfChosen;
    }
    Ok(decoder)
}
