//! Command R, R+ and R7B: attention and feed-forward read the same norm; pairs of neighbours rotate. R7B has windows, and layers that see everything do not rotate.

use super::Family;
use crate::ModelError;
use crate::decoder::{Decoder, Placement};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_formats::config::HfConfig;
use cupola_graph::RopeStyle;

pub(super) const FAMILY: Family = Family {
    name: "cohere",
    model_types: &["cohere", "cohere2"],
    hugging_face,
    gguf: Some((&["command-r", "cohere2"], gguf)),
};

/// Every fourth layer of R7B sees everything.
const PATTERN: usize = 4;

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let second = m.config.model_type()? == "cohere2";
    let theta = if second { 10000.0 } else { 500000.0 };
    let mut decoder = m.decoder(&Defaults { theta, context_length: 8192, tied: true, ..Defaults::LLAMA })?;
    m.attention_bias(&mut decoder, false)?;
    m.refuse("use_qk_norm")?;
    m.layer_norm(&mut decoder, "layer_norm_eps", false)?;
    decoder.attention.rope_style = RopeStyle::Interleaved;
    decoder.placement = Placement::Parallel { own_norm: false };
    decoder.logit_scale = m.config.optional_f32("logit_scale")?.unwrap_or(0.0625);
    if second {
        let window = m.setting("sliding_window", HfConfig::optional_usize, Some(4096))?;
        let pattern = m.config.optional_usize("sliding_window_pattern")?.unwrap_or(PATTERN);
        m.windows(&mut decoder, window, |i| pattern == 0 || !(i + 1).is_multiple_of(pattern))?;
        decoder.layers.iter_mut().filter(|layer| layer.window.is_none()).for_each(|layer| layer.rope = None);
    }
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(RopeStyle::Interleaved)?;
    m.layer_norm(&mut decoder)?;
    decoder.placement = Placement::Parallel { own_norm: false };
    decoder.logit_scale = m.optional_f32("logit_scale")?.unwrap_or(0.0625);
    if m.architecture == "cohere2" {
        m.windows(&mut decoder, m.window()?.unwrap_or(4096), PATTERN)?;
        decoder.layers.iter_mut().filter(|layer| layer.window.is_none()).for_each(|layer| layer.rope = None);
    }
    Ok(decoder)
}
