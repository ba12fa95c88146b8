//! MiniMax-M2: experts that a sigmoid chooses, norms over all queries and all keys of a token.

use super::Family;
use crate::ModelError;
use crate::decoder::{Decoder, QkNorm};
use crate::experts::Experts;
use crate::hugging_face::FULL;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_graph::Scores;

pub(super) const FAMILY: Family = Family { name: "minimax_m2", model_types: &["minimax_m2"], hugging_face, gguf: None };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let defaults =
        Defaults { kv_heads: Some(8), head_dim: Some(128), theta: 5e6, context_length: 196608, ..Defaults::LLAMA };
    let mut decoder = m.decoder(&defaults)?;
    // Configs state the rotated elements in a key of their own.
    if let Some(dim) = m.config.optional_usize("rotary_dim")? {
        m.rotate(&mut decoder, FULL, defaults.theta, dim)?;
    }
    decoder.attention.qk_norm = QkNorm::Whole;
    let names = &mut decoder.names.layer.experts;
    names.router = "block_sparse_moe.gate";
    names.choice_bias = "block_sparse_moe.e_score_correction_bias";
    names.gate = "block_sparse_moe.experts.{e}.w1";
    names.up = "block_sparse_moe.experts.{e}.w3";
    names.down = "block_sparse_moe.experts.{e}.w2";
    let experts = Experts::new(m.experts(256)?, decoder.mlp.width, m.experts_per_token(8)?, decoder.mlp.activation);
    decoder.experts = Some(Experts { scores: Scores::Sigmoid, choice_bias: true, normalise: true, ..experts });
    decoder.layers.iter_mut().for_each(|layer| layer.experts = true);
    Ok(decoder)
}
