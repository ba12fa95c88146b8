//! The language model of Gemma 3: Gemma 2 with head norms in place of bounds; five of six layers have a window, and
//! rotate faster.

use super::Family;
use super::gemma2::{DEFAULTS, common, common_gguf};
use crate::decoder::{Decoder, QkNorm};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace, SLIDING};
use crate::{ModelError, rope};
use cupola_formats::config::{HfConfig, RopeKind, RopeParameters};
use std::sync::Arc;

pub(super) const FAMILY: Family =
    Family { name: "gemma3", model_types: &["gemma3_text", "gemma3"], hugging_face, gguf: Some((&["gemma3"], gguf)) };

/// Every sixth layer sees everything.
const PATTERN: usize = 6;
/// Base of the frequencies of layers with a window.
const LOCAL_THETA: f64 = 10000.0;

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let mut decoder = common(m, &Defaults { theta: 1e6, context_length: 131072, ..DEFAULTS })?;
    decoder.attention.qk_norm = QkNorm::Heads;
    decoder.attention.softcap = m.config.optional_f32("attn_logit_softcapping")?;
    decoder.logit_softcap = m.config.optional_f32("final_logit_softcapping")?;
    let pattern = m.config.optional_usize("sliding_window_pattern")?.unwrap_or(PATTERN);
    let window = m.setting("sliding_window", HfConfig::optional_usize, Some(4096))?;
    m.windows(&mut decoder, window, |i| pattern == 0 || !(i + 1).is_multiple_of(pattern))?;
    let local = m.rope(&mut decoder, SLIDING, LOCAL_THETA)?;
    for layer in decoder.layers.iter_mut().filter(|layer| layer.window.is_some()) {
        layer.rope = Some(local.clone());
    }
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    // 62 layers: the 27B model.
    let mut decoder = common_gguf(m, 62)?;
    decoder.attention.qk_norm = QkNorm::Heads;
    decoder.logit_softcap = m.optional_f32("final_logit_softcapping")?.filter(|cap| *cap != 0.0);
    if let Some(window) = m.window()? {
        m.windows(&mut decoder, window, PATTERN)?;
        let theta = m.optional_f64("rope.freq_base_swa")?.unwrap_or(LOCAL_THETA);
        let local = RopeParameters { theta, partial_rotary_factor: None, kind: RopeKind::Default };
        let local = Arc::new(rope::table(&local, m.rotary_dim(&decoder)?)?);
        for layer in decoder.layers.iter_mut().filter(|layer| layer.window.is_some()) {
            layer.rope = Some(local.clone());
        }
    }
    Ok(decoder)
}
