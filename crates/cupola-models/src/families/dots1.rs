//! dots.llm1: experts as in DeepSeek-V3, attention as in Qwen3.

use super::Family;
use super::glm4_moe::sigmoid_experts;
use crate::ModelError;
use crate::decoder::{Decoder, QkNorm};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_formats::config::HfConfig;
use cupola_graph::{RopeStyle, Scores};

pub(super) const FAMILY: Family =
    Family { name: "dots1", model_types: &["dots1"], hugging_face, gguf: Some((&["dots1"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(&Defaults { kv_heads: Some(32), ..Defaults::LLAMA })?;
    m.attention_bias(&mut decoder, false)?;
    decoder.attention.qk_norm = QkNorm::Heads;
    sigmoid_experts(m, &mut decoder, false)?;
    let window = m.setting("sliding_window", HfConfig::optional_usize, Some(4096))?;
    let first = m.config.optional_usize("max_window_layers")?.unwrap_or(62);
    m.windows(&mut decoder, window, |i| window.is_some() && i >= first)?;
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder_with_experts(RopeStyle::Halves)?;
    decoder.attention.qk_norm = QkNorm::Heads;
    if let Some(experts) = &mut decoder.experts {
        experts.scores = Scores::Sigmoid;
    }
    Ok(decoder)
}
