//! Llama 1 to 3, and the many models that share their architecture (SmolLM2, TinyLlama, Yi, DeepSeek-LLM, ...).

use super::Family;
use crate::ModelError;
use crate::decoder::Decoder;
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_graph::RopeStyle;

pub(super) const FAMILY: Family =
    Family { name: "llama", model_types: &["llama"], hugging_face, gguf: Some((&["llama"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(&Defaults::LLAMA)?;
    let bias = m.flag("attention_bias")?;
    (decoder.attention.qkv_bias, decoder.attention.out_bias) = (bias, bias);
    decoder.mlp.bias = m.flag("mlp_bias")?;
    Ok(decoder)
}

/// GGUF files of this architecture also hold Mistral models, some of which have a window, and Mixtral. Rows of the query and key matrices are
/// in the order of the paper's pairs.
fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder_with_experts(RopeStyle::Interleaved)?;
    if let Some(experts) = &mut decoder.experts {
        experts.normalise = true;
    }
    let window = m.window()?;
    decoder.layers.iter_mut().for_each(|layer| layer.window = window);
    Ok(decoder)
}
