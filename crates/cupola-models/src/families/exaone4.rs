//! EXAONE 4: norms after attention and feed-forward, and on each head. Of the larger models three of four layers have a window,
//! and the others do not rotate.

use super::Family;
use crate::ModelError;
use crate::decoder::{Decoder, Placement, QkNorm};
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_formats::config::HfConfig;

pub(super) const FAMILY: Family = Family { name: "exaone4", model_types: &["exaone4"], hugging_face, gguf: None };

/// Every fourth layer sees everything.
const PATTERN: usize = 4;

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let defaults = Defaults { kv_heads: Some(32), norm_eps: 1e-5, ..Defaults::LLAMA };
    let mut decoder = m.decoder(&defaults)?;
    decoder.attention.qk_norm = QkNorm::Heads;
    decoder.placement = Placement::After;
    if let Some(window) = m.setting("sliding_window", HfConfig::optional_usize, Some(4096))? {
        // A string such as "LLLG" in the published configs, which also list the layers.
        let pattern = m.config.get("sliding_window_pattern").and_then(|p| p.as_u64()).map_or(PATTERN, |p| p as usize);
        m.windows(&mut decoder, Some(window), |i| pattern == 0 || !(i + 1).is_multiple_of(pattern))?;
        decoder.layers.iter_mut().filter(|layer| layer.window.is_none()).for_each(|layer| layer.rope = None);
    }
    Ok(decoder)
}
