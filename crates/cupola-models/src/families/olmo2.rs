//! OLMo 2 and 3: norms after attention and feed-forward, and over all queries and all keys of a token. OLMo 3 has windows.

use super::Family;
use crate::decoder::{Decoder, Placement, QkNorm};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace, SLIDING};
use crate::{ModelError, rope};
use cupola_formats::config::{HfConfig, RopeKind, RopeParameters};
use cupola_graph::RopeStyle;
use std::sync::Arc;

pub(super) const FAMILY: Family =
    Family { name: "olmo2", model_types: &["olmo2", "olmo3"], hugging_face, gguf: Some((&["olmo2"], gguf)) };

/// Every fourth layer of OLMo 3 sees everything.
const PATTERN: usize = 4;

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let third = m.config.model_type()? == "olmo3";
    let theta = if third { 500000.0 } else { 10000.0 };
    let mut decoder = m.decoder(&Defaults { norm_eps: 1e-5, theta, ..Defaults::LLAMA })?;
    m.attention_bias(&mut decoder, false)?;
    decoder.attention.qk_norm = QkNorm::Whole;
    decoder.placement = Placement::After;
    if third {
        let window = m.setting("sliding_window", HfConfig::optional_usize, Some(4096))?;
        m.windows(&mut decoder, window, |i| !(i + 1).is_multiple_of(PATTERN))?;
        let local = m.rope(&mut decoder, SLIDING, theta)?;
        for layer in decoder.layers.iter_mut().filter(|layer| layer.window.is_some()) {
            layer.rope = Some(local.clone());
        }
    }
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(RopeStyle::Halves)?;
    decoder.attention.qk_norm = QkNorm::Whole;
    decoder.placement = Placement::After;
    if let Some(window) = m.window()? {
        m.windows(&mut decoder, window, PATTERN)?;
        // What stretches the context holds for the other layers only.
        let theta = m.optional_f64("rope.freq_base")?.unwrap_or(10000.0);
        let local = RopeParameters { theta, partial_rotary_factor: None, kind: RopeKind::Default };
        let local = Arc::new(rope::table(&local, m.rotary_dim(&decoder)?)?);
        for layer in decoder.layers.iter_mut().filter(|layer| layer.window.is_some()) {
            layer.rope = Some(local.clone());
        }
    }
    Ok(decoder)
}
