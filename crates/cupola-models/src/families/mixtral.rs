//! Mixtral: Mistral with eight experts in place of the feed-forward. In GGUF it is a Llama with experts.

use super::Family;
use crate::ModelError;
use crate::decoder::Decoder;
use crate::experts::Experts;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_formats::config::HfConfig;

pub(super) const FAMILY: Family = Family { name: "mixtral", model_types: &["mixtral"], hugging_face, gguf: None };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let defaults = Defaults { norm_eps: 1e-5, theta: 1e6, context_length: 131072, ..Defaults::LLAMA };
    let mut decoder = m.decoder(&defaults)?;
    let window = m.setting("sliding_window", HfConfig::optional_usize, None)?;
    m.windows(&mut decoder, window, |_| window.is_some())?;
    let (count, top_k) = (m.experts(8)?, m.experts_per_token(2)?);
    let experts = Experts::new(count, decoder.mlp.width, top_k, decoder.mlp.activation);
    decoder.experts = Some(Experts { normalise: true, layout: m.layout(&decoder), ..experts });
    decoder.layers.iter_mut().for_each(|layer| layer.experts = true);
    let names = &mut decoder.names.layer.experts;
    names.router = "block_sparse_moe.gate";
    names.gate = "block_sparse_moe.experts.{e}.w1";
    names.up = "block_sparse_moe.experts.{e}.w3";
    names.down = "block_sparse_moe.experts.{e}.w2";
    Ok(decoder)
}
