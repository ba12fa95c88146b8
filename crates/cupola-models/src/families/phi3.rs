//! Phi-3, Phi-3.5 and Phi-4: Llama with fused projections; the long-context ones use LongRoPE.

use super::Family;
use crate::ModelError;
use crate::decoder::{Decoder, Qkv};
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, FULL, HuggingFace};
use cupola_formats::config::RopeKind;
use cupola_graph::RopeStyle;

pub(super) const FAMILY: Family =
    Family { name: "phi3", model_types: &["phi3"], hugging_face, gguf: Some((&["phi3"], gguf)) };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let defaults = Defaults { norm_eps: 1e-5, context_length: 4096, ..Defaults::LLAMA };
    // The first Phi-3 configs say "yarn" and mean LongRoPE.
    if let RopeKind::Yarn(_) = m.config.rope(FULL, defaults.theta)?.kind {
        return Err(m.config.error("rope_scaling", "of type longrope").into());
    }
    let mut decoder = m.decoder(&defaults)?;
    fuse(&mut decoder);
    let window = m.config.optional_usize("sliding_window")?;
    m.windows(&mut decoder, window, |_| window.is_some())?;
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(RopeStyle::Halves)?;
    fuse(&mut decoder);
    let window = m.window()?;
    decoder.layers.iter_mut().for_each(|layer| layer.window = window);
    Ok(decoder)
}

fn fuse(decoder: &mut Decoder) {
    (decoder.attention.qkv, decoder.mlp.fused) = (Qkv::Stacked, true);
}
