//! DeepSeek-V2 and V3, and what is made like them (Moonlight, Kimi-K2): latent attention; experts in groups after layers without.

use super::Family;
use super::glm4_moe::sigmoid_experts;
use crate::ModelError;
use crate::decoder::Decoder;
use crate::hugging_face::{Defaults, FULL, HuggingFace};
use crate::latent::Latent;
use cupola_formats::config::RopeKind;
use cupola_graph::{Groups, RopeStyle, Scores};

pub(super) const FAMILY: Family =
    Family { name: "deepseek", model_types: &["deepseek_v2", "deepseek_v3", "kimi_k2"], hugging_face, gguf: None };

fn hugging_face(m: &HuggingFace) -> Result<Decoder, ModelError> {
    let defaults = Defaults { context_length: 4096, ..Defaults::LLAMA };
    let mut decoder = m.decoder(&defaults)?;
    m.refuse("attention_bias")?;
    let c = m.config;
    let (still, rope) = (c.usize("qk_nope_head_dim")?, c.usize("qk_rope_head_dim")?);
    let key_dim = still.checked_add(rope).ok_or_else(|| c.error("qk_nope_head_dim", "a smaller number"))?;
    let attention = &mut decoder.attention;
    attention.latent =
        Some(Latent { query: c.optional_usize("q_lora_rank")?, key_value: c.usize("kv_lora_rank")?, rope });
    // Each head has keys and values of its own, whatever the config says of key-value heads.
    attention.kv_heads = attention.heads;
    (attention.key_dim, attention.value_dim) = (key_dim, c.usize("v_head_dim")?);
    attention.scale = 1.0 / (key_dim as f32).sqrt();
    if c.optional_bool("rope_interleave")?.unwrap_or(true) {
        attention.rope_style = RopeStyle::Interleaved;
    }
    // The scores grow with the context that YaRN stretches.
    if let RopeKind::Yarn(yarn) = c.rope(FULL, defaults.theta)?.kind
        && let Some(mscale) = yarn.mscale_all_dim.filter(|mscale| *mscale != 0.0)
        && yarn.factor > 1.0
    {
        let m = 0.1 * mscale * yarn.factor.ln() + 1.0;
        attention.scale *= (m * m) as f32;
    }
    m.rotate(&mut decoder, FULL, defaults.theta, rope)?;

    let second = c.model_type()? == "deepseek_v2";
    sigmoid_experts(m, &mut decoder, !second)?;
    if second {
        let grouped = c.optional_str("topk_method")? == Some("group_limited_greedy");
        if let Some(experts) = &mut decoder.experts {
            (experts.scores, experts.choice_bias, experts.normalise) = (Scores::Softmax, false, false);
            experts.groups = experts.groups.filter(|_| grouped).map(|groups| Groups { best: 1, ..groups });
        }
    }
    decoder.draft_layers = true;
    Ok(decoder)
}
