//! GGUF metadata from a Hugging Face checkpoint's configs.

use super::names::Family;
use super::vocabulary::Vocabulary;
use crate::failure::{Failure, Result, Within};
use cupola_formats::config::{GenerationConfig, HfConfig, RopeKind};
use cupola_formats::gguf::{GgufWriter, Value};
use cupola_formats::tokenizer::{Tokenizer, TokenizerConfig};
use std::path::Path;

/// A vector of F32 that stands for a part of the config.
pub type Extra = (&'static str, Vec<f32>);

/// Writes the hyperparameters. Gives tensors that GGUF stores in their stead.
pub fn hyperparameters(
    family: Family,
    config: &HfConfig,
    vocab: usize,
    out: &mut GgufWriter,
    warnings: &mut Vec<String>,
) -> Result<Vec<Extra>> {
    let a = family.gguf;
    let mut set = |key: &str, value: Value| out.set(&format!("{a}.{key}"), value);
    let heads = config.u32("num_attention_heads")?;
    let head_dim = config.head_dim()?;
    set("vocab_size", Value::U32(to_u32("vocab_size", vocab)?))?;
    let positions = config.u32("max_position_embeddings")?;
    let context = match config.rope("full_attention", default_theta(family))?.kind {
        // The frequencies are the plain ones up to here, and change with every token beyond, which GGUF cannot express.
        RopeKind::Dynamic { original_context, .. } => positions.min(original_context),
        _ => positions,
    };
    set("context_length", Value::U32(context))?;
    set("embedding_length", Value::U32(config.u32("hidden_size")?))?;
    set("block_count", Value::U32(config.u32("num_hidden_layers")?))?;
    set("feed_forward_length", Value::U32(config.u32("intermediate_size")?))?;
    set("attention.head_count", Value::U32(heads))?;
    set("attention.head_count_kv", Value::U32(config.optional_u32("num_key_value_heads")?.unwrap_or(heads)))?;
    set("attention.key_length", Value::U32(head_dim))?;
    set("attention.value_length", Value::U32(head_dim))?;
    set("attention.layer_norm_rms_epsilon", Value::F32(config.f32("rms_norm_eps")?))?;
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if let Some(cap) = config.optional_f32(key)? {
            set(key, Value::F32(cap))?;
        }
    }
    if let Some(window) = window(family, config)?.filter(|window| *window < context) {
        set("attention.sliding_window", Value::U32(window))?;
        if !family.gguf.starts_with("gemma") {
            warnings.push(format!(
                "llama.cpp ignores the sliding window of {} models: texts over {window} tokens differ there",
                family.gguf
            ));
        }
    }
    implied(family, config, head_dim)?;
    rope(family, config, head_dim, &mut set)
}

/// The tokens that attention sees, in the layers that do not see all.
fn window(family: Family, config: &HfConfig) -> Result<Option<u32>> {
    let window = config.optional_u32("sliding_window")?;
    // Llama has no windows, whatever its config says.
    if config.model_type()? == "llama" {
        return Ok(None);
    }
    if !family.gguf.starts_with("qwen") {
        return Ok(window);
    }
    // These have the key whether or not they use it; GGUF has no place for the layers that do.
    match (config.optional_bool("use_sliding_window")?, window) {
        (Some(true), Some(n)) => Err(Failure::new(format!(
            "GGUF's {} architecture cannot express a sliding window of {n} tokens",
            family.gguf
        ))),
        _ => Ok(None),
    }
}

/// The base of the frequencies where a config gives none.
fn default_theta(family: Family) -> f64 {
    if family.gguf == "gemma3" { 1e6 } else { 1e4 }
}

/// Rotary frequencies.
fn rope(
    family: Family,
    config: &HfConfig,
    head_dim: u32,
    set: &mut impl FnMut(&str, Value) -> std::result::Result<(), cupola_formats::gguf::WriteError>,
) -> Result<Vec<Extra>> {
    let rope = config.rope("full_attention", default_theta(family))?;
    let rotated = (f64::from(head_dim) * rope.partial_rotary_factor.unwrap_or(1.0)) as u32;
    set("rope.dimension_count", Value::U32(rotated))?;
    set("rope.freq_base", Value::F32(rope.theta as f32))?;
    if family.gguf == "gemma3" {
        set("rope.freq_base_swa", Value::F32(config.rope("sliding_attention", 1e4)?.theta as f32))?;
    }
    let mut scaling = |kind: &str, factor: f64| -> Result<()> {
        set("rope.scaling.type", Value::String(kind.into()))?;
        Ok(set("rope.scaling.factor", Value::F32(factor as f32))?)
    };
    Ok(match &rope.kind {
        RopeKind::Default | RopeKind::Dynamic { .. } => vec![],
        RopeKind::Linear { factor } => {
            scaling("linear", *factor)?;
            vec![]
        }
        RopeKind::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            let [low, high] = [low_freq_factor, high_freq_factor].map(|f| f64::from(*original_context) / f);
            vec![("rope_freqs.weight", llama3_divisors(rope.theta, rotated, *factor, low, high))]
        }
        RopeKind::Yarn(yarn) if yarn.mscale.is_none() && yarn.attention_factor.is_none() => {
            scaling("yarn", yarn.factor)?;
            set("rope.scaling.original_context_length", Value::U32(yarn.original_context))?;
            set("rope.scaling.yarn_beta_fast", Value::F32(yarn.beta_fast as f32))?;
            set("rope.scaling.yarn_beta_slow", Value::F32(yarn.beta_slow as f32))?;
            vec![]
        }
        RopeKind::LongRope(long) => {
            set("rope.scaling.original_context_length", Value::U32(long.original_context))?;
            set("rope.scaling.attn_factor", Value::F32(long.attention_factor() as f32))?;
            let divisors = |d: &[f64]| d.iter().map(|d| *d as f32).collect();
            vec![
                ("rope_factors_long.weight", divisors(&long.long)),
                ("rope_factors_short.weight", divisors(&long.short)),
            ]
        }
        other => return Err(Failure::new(format!("GGUF has no form for this kind of RoPE scaling: {other:?}"))),
    })
}

/// What Llama 3.1's scheme divides each frequency by: wavelengths above `low` by `factor`, below `high` by 1, with a
/// smooth transition between. Formula: the model's card and reference code.
fn llama3_divisors(theta: f64, rotated: u32, factor: f64, low: f64, high: f64) -> Vec<f32> {
    let divisor = |i: u32| {
        let wavelength = 2.0 * std::f64::consts::PI * theta.powf(f64::from(2 * i) / f64::from(rotated));
        // `keep` in terms of wavelengths: context / wavelength runs from low_freq_factor to high_freq_factor.
        let keep = ((1.0 / wavelength - 1.0 / low) / (1.0 / high - 1.0 / low)).clamp(0.0, 1.0);
        (1.0 / ((1.0 - keep) / factor + keep)) as f32
    };
    (0..rotated / 2).map(divisor).collect()
}

/// What llama.cpp takes for granted of an architecture: a checkpoint that differs would give other text there.
fn implied(family: Family, config: &HfConfig, head_dim: u32) -> Result<()> {
    let refuse = |what: String| Err(Failure::new(format!("GGUF's {} architecture cannot express {what}", family.gguf)));
    let layers = config.usize("num_hidden_layers")?;
    let pattern = match family.gguf {
        "gemma2" => Some(2),
        "gemma3" => Some(6),
        _ => None,
    };
    if let Some(pattern) = pattern {
        if let Some(types) = config.layer_types()?
            && let Some(odd) = (0..layers).find(|i| (types[*i] == "full_attention") != ((i + 1) % pattern == 0))
        {
            return refuse(format!("attention without a window in other layers than every {pattern}th (layer {odd})"));
        }
        let scalar = config.optional_f32("query_pre_attn_scalar")?.unwrap_or(head_dim as f32);
        let largest = layers == if pattern == 2 { 46 } else { 62 };
        let expected = match largest {
            true => config.u32("hidden_size")? as f32 / config.u32("num_attention_heads")? as f32,
            false => head_dim as f32,
        };
        if scalar != expected {
            return refuse(format!("query_pre_attn_scalar {scalar}; it is always {expected} there"));
        }
    }
    if family.gguf == "smollm3"
        && let Some(rope) = config.optional_u32s("no_rope_layers")?
        && let Some(odd) = (0..layers.min(rope.len())).find(|i| (rope[*i] == 0) != ((i + 1) % 4 == 0))
    {
        return refuse(format!("rotary positions in other layers than three of four (layer {odd})"));
    }
    Ok(())
}

/// Writes what the model's makers recommend for sampling.
pub fn sampling(generation: &GenerationConfig, out: &mut GgufWriter) -> Result<()> {
    // Greedy decoding is temperature 0 in these keys.
    let temperature = if generation.do_sample == Some(false) { Some(0.0) } else { generation.temperature };
    let floats = [
        ("temp", temperature),
        ("top_p", generation.top_p),
        ("min_p", generation.min_p),
        ("penalty_repeat", generation.repetition_penalty),
    ];
    for (key, value) in floats {
        if let Some(value) = value {
            out.set(&format!("general.sampling.{key}"), Value::F32(value))?;
        }
    }
    if let Some(k) = generation.top_k.and_then(|k| i32::try_from(k).ok()) {
        out.set("general.sampling.top_k", Value::I32(k))?;
    }
    Ok(())
}

/// Writes the tokenizer of a checkpoint's folder. Gives false if it has none.
pub fn tokenizer(
    folder: &Path,
    config: &HfConfig,
    stop_ids: &[u32],
    rows: usize,
    out: &mut GgufWriter,
) -> Result<bool> {
    let path = folder.join("tokenizer.json");
    // A link to nothing, a folder or a pipe is no model without a tokenizer, but an error, which loading it gives.
    if path.symlink_metadata().is_err() {
        out.set("tokenizer.ggml.model", Value::String("none".into()))?;
        return Ok(false);
    }
    let tokenizer = Tokenizer::from_dir(folder)?;
    let at = || path.display().to_string();
    let json = serde_json::from_slice(&std::fs::read(&path).within(at)?).within(at)?;
    let vocabulary = Vocabulary::new(&json, rows).map_err(|reason| Failure::new(reason).within(at()))?;
    let settings = TokenizerConfig::from_dir(folder)?;

    let mut set = |key: &str, value: Value| out.set(&format!("tokenizer.ggml.{key}"), value);
    set("model", Value::String(vocabulary.model.into()))?;
    set("pre", Value::String(vocabulary.pre.into()))?;
    set("tokens", Value::Strings(vocabulary.tokens))?;
    set("token_type", Value::I32s(vocabulary.kinds))?;
    if !vocabulary.scores.is_empty() {
        set("scores", Value::F32s(vocabulary.scores))?;
    }
    if !vocabulary.merges.is_empty() {
        set("merges", Value::Strings(vocabulary.merges))?;
    }
    if let Some(space) = vocabulary.add_space_prefix {
        set("add_space_prefix", Value::Bool(space))?;
    }
    let special = *tokenizer.special_tokens();
    let first = |key: &str| config.token_ids(key).map(|ids| ids.first().copied());
    let bos = special.bos.or(first("bos_token_id")?);
    let eos = special.eos.or(first("eos_token_id")?);
    // GGUF has places for three tokens that end a text.
    let mut ends = stop_ids.iter().copied().filter(|id| Some(*id) != eos);
    let ids = [
        ("bos", bos),
        ("eos", eos),
        ("eot", ends.next()),
        ("eom", ends.next()),
        ("unknown", special.unk),
        ("padding", special.pad.or(first("pad_token_id")?)),
    ];
    for (name, id) in ids {
        if let Some(id) = id.filter(|id| (*id as usize) < rows) {
            set(&format!("{name}_token_id"), Value::U32(id))?;
        }
    }
    set("add_bos_token", Value::Bool(bos.is_some() && tokenizer.prefix().first() == bos.as_ref()))?;
    set("add_eos_token", Value::Bool(eos.is_some() && tokenizer.suffix().last() == eos.as_ref()))?;
    for (name, template) in chat_templates(folder, &settings)? {
        let key = if name == "default" { String::new() } else { format!(".{name}") };
        out.set(&format!("tokenizer.chat_template{key}"), Value::String(template))?;
    }
    Ok(true)
}

/// Chat templates by name: a file of its own comes before what `tokenizer_config.json` says.
fn chat_templates(folder: &Path, settings: &TokenizerConfig) -> Result<Vec<(String, String)>> {
    let file = folder.join("chat_template.jinja");
    if file.is_file() {
        let text = std::fs::read_to_string(&file).within(|| file.display().to_string())?;
        return Ok(vec![("default".into(), text)]);
    }
    let named = |entry: &serde_json::Value| {
        Some((entry["name"].as_str()?.to_string(), entry["template"].as_str()?.to_string()))
    };
    Ok(match settings.chat_template() {
        Some(serde_json::Value::String(text)) => vec![("default".into(), text.clone())],
        Some(serde_json::Value::Array(list)) => list.iter().filter_map(named).collect(),
        _ => vec![],
    })
}

fn to_u32(what: &str, n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| Failure::new(format!("{what} is {n}, too large for GGUF")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama 3.2 1B: the values of `rope_freqs.weight` in published GGUF files begin with 1 and end with 32.
    #[test]
    fn llama3_divisors_run_from_1_to_the_factor() {
        let d = llama3_divisors(500000.0, 64, 32.0, 8192.0, 2048.0);
        assert_eq!(d.len(), 32);
        assert!(d[..15].iter().all(|d| *d == 1.0), "{d:?}");
        assert!(d[20..].iter().all(|d| *d == 32.0), "{d:?}");
        assert!(d.is_sorted());
        // A wavelength of 4096: 8192 / 4096 = 2, a third of the way from 1 to 4.
        let theta = 4096.0 / (2.0 * std::f64::consts::PI);
        let half_way = llama3_divisors(theta * theta, 4, 32.0, 8192.0, 2048.0)[1];
        assert!((half_way - 1.0 / (2.0 / 3.0 / 32.0 + 1.0 / 3.0) as f32).abs() < 1e-5, "{half_way}");
    }
}
