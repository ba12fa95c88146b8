//! SmolLM3: Llama with layers in which positions play no role.

use super::Family;
use crate::ModelError;
use crate::decoder::Decoder;
use crate::gguf::GgufModel;
use crate::hugging_face::{Defaults, HuggingFace};
use cupola_graph::RopeStyle;

pub(super) const FAMILY: Family =
    Family { name: "smollm3", model_types: &["smollm3"], hugging_face, gguf: Some((&["smollm3"], gguf)) };

/// Every fourth layer does not rotate.
const INTERVAL: usize = 4;

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let defaults = Defaults { kv_heads: Some(4), theta: 2e6, context_length: 32768, tied: true, ..Defaults::LLAMA };
    let mut decoder = m.decoder(&defaults)?;
    let bias = m.flag("attention_bias")?;
    (decoder.attention.qkv_bias, decoder.attention.out_bias) = (bias, bias);
    decoder.mlp.bias = m.flag("mlp_bias")?;
    let layers = decoder.layers.len();
    // In spite of its name, the list has a 1 for layers that rotate.
    match m.config.optional_u32s("no_rope_layers")? {
        Some(rotates) if rotates.len() == layers => {
            skip_rope(&mut decoder, |i| rotates[i] == 0);
        }
        Some(_) => return Err(m.config.error("no_rope_layers", format!("a list of {layers} numbers, 0 or 1")).into()),
        None => {
            let interval = m.config.optional_usize("no_rope_layer_interval")?.unwrap_or(INTERVAL);
            if interval == 0 {
                return Err(m.config.error("no_rope_layer_interval", "a number above 0").into());
            }
            skip_rope(&mut decoder, |i| (i + 1).is_multiple_of(interval));
        }
    }
    let window = match m.flag("use_sliding_window")? {
        true => m.config.optional_usize("sliding_window")?,
        false => None,
    };
    let rotates: Vec<bool> = decoder.layers.iter().map(|layer| layer.rope.is_some()).collect();
    m.windows(&mut decoder, window, |i| window.is_some() && !rotates[i])?;
    Ok(decoder)
}

fn gguf(m: &GgufModel) -> Result<Decoder, ModelError> {
    let mut decoder = m.decoder(RopeStyle::Interleaved)?;
    skip_rope(&mut decoder, |i| (i + 1).is_multiple_of(INTERVAL));
    Ok(decoder)
}

fn skip_rope(decoder: &mut Decoder, skips: impl Fn(usize) -> bool) {
    let layers = decoder.layers.iter_mut().enumerate();
    layers.filter(|(i, _)| skips(*i)).for_each(|(_, layer)| layer.rope = None);
}
