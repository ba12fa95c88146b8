//! The command line: commands, and the flags that several of them share. Flags of one command are in its own file.

use crate::commands::{bench, chat, devices, inspect, logits, perplexity, pull, quantize, run};
use clap::builder::{FalseyValueParser, styling};
use clap::{Parser, Subcommand};
use cupola::PackedFolder;
use cupola_backend::{Activations, DeviceChoice, Options};
use cupola_graph::KvType;
use std::num::NonZeroUsize;
use std::path::PathBuf;

const STYLES: styling::Styles = styling::Styles::styled()
    .header(styling::AnsiColor::Yellow.on_default().bold())
    .usage(styling::AnsiColor::Yellow.on_default().bold())
    .literal(styling::AnsiColor::Green.on_default())
    .placeholder(styling::AnsiColor::Cyan.on_default());

/// Runs open language models on this machine
///
/// A MODEL is a folder with a Hugging Face checkpoint, a GGUF file, a name on the Hugging Face hub (ORG/NAME), or
/// `embedded`: the little story model that is part of this program.
#[derive(Parser)]
#[command(name = "cupola", version, styles = STYLES, max_term_width = 100, subcommand_required = true)]
#[command(
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted with Ctrl-C.
Colours: only on a terminal, and not if NO_COLOR is set.

Examples:
  cupola run                                      a story from the embedded model
  cupola run ./SmolLM2.gguf \"Why is the sky blue?\"
  cupola chat Qwen/Qwen3-0.6B                     fetched from the hub on first use
  cupola quantize ./Qwen3-0.6B qwen3.gguf --type Q4_K_M"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    Run(run::Args),
    Chat(chat::Args),
    Bench(bench::Args),
    Inspect(inspect::Args),
    Devices(devices::Args),
    Pull(pull::Args),
    Quantize(quantize::Args),
    Logits(logits::Args),
    Perplexity(perplexity::Args),
}

/// Where and how to compute, with one number of threads.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Computing")]
pub struct ComputeArgs {
    #[command(flatten)]
    pub device: DeviceArgs,

    /// CPU threads [default: one for each core]
    #[arg(short, long, value_name = "N", env = "CUPOLA_THREADS")]
    pub threads: Option<NonZeroUsize>,
}

/// Where and how to compute.
#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Computing")]
pub struct DeviceArgs {
    /// Where to run: auto, cpu, cuda, cuda:1, metal. A device that was named and cannot be used is an error
    #[arg(long, value_name = "DEVICE", default_value = "auto", env = "CUPOLA_DEVICE")]
    pub device: DeviceChoice,

    /// Compute in the one order that gives the same bits on every machine. Slower
    #[arg(long, env = "CUPOLA_EXACT", value_parser = FalseyValueParser::new())]
    pub exact: bool,

    /// Bits to which activations are rounded before they meet weights in blocks. 8 (16 still for the inputs of attention and of
    /// the last layer, where rounding shows most) reads prompts faster but may change answers; --exact does not round
    #[arg(long, value_name = "16|8", default_value = "16", env = "CUPOLA_ACTIVATIONS", value_parser = parse_activations)]
    pub activations: Activations,

    /// The highest CPU instruction set to use, by its name in `cupola devices`
    #[arg(long = "cpu", value_name = "TIER", env = "CUPOLA_CPU", hide_short_help = true)]
    pub cpu_tier: Option<String>,

    /// How keys and values of earlier tokens are stored: f32, f16, bf16, or q8_0, which takes 8 bits and a scale for
    /// each 32; --exact stores f32
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = parse_kv_type)]
    pub kv_type: KvType,

    /// Folder for copies of weights in the form that the CPU computes with, made by run and chat so that the next start is
    /// quick [default: cupola/packed in the cache folder]
    #[arg(long, value_name = "DIR", env = "CUPOLA_PACKED", conflicts_with = "no_packed", hide_short_help = true)]
    pub packed: Option<PathBuf>,

    /// Neither write nor use such copies
    #[arg(long, env = "CUPOLA_NO_PACKED", value_parser = FalseyValueParser::new(), hide_short_help = true)]
    pub no_packed: bool,
}

impl DeviceArgs {
    /// As the library wants them.
    pub fn options(&self, threads: Option<NonZeroUsize>, profile: bool) -> Options {
        Options {
            exact: self.exact,
            activations: self.activations,
            threads: threads.map(NonZeroUsize::get),
            kv_type: self.kv_type,
            cpu_tier: self.cpu_tier.clone(),
            packed: None,
            profile,
        }
    }

    /// Where packed copies are. Without a home folder there are none.
    pub fn packed_folder(&self) -> Option<PackedFolder> {
        let default = || Some(cache_folder()?.join("cupola").join("packed"));
        self.packed.clone().or_else(default).filter(|_| !self.no_packed).map(PackedFolder::new)
    }
}

/// Where programs of this system keep what they can make again.
fn cache_folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    if cfg!(windows) {
        return variable("LOCALAPPDATA");
    }
    let home = std::env::home_dir().filter(|folder| !folder.as_os_str().is_empty());
    if cfg!(target_os = "macos") {
        return Some(home?.join("Library").join("Caches"));
    }
    variable("XDG_CACHE_HOME").or_else(|| Some(home?.join(".cache")))
}

pub fn parse_activations(text: &str) -> Result<Activations, String> {
    match text {
        "16" => Ok(Activations::Bits16),
        "8" => Ok(Activations::Bits8),
        _ => Err("expected 16 or 8".into()),
    }
}

pub fn parse_kv_type(text: &str) -> Result<KvType, String> {
    match text.to_ascii_lowercase().as_str() {
        "f32" => Ok(KvType::F32),
        "f16" => Ok(KvType::F16),
        "bf16" => Ok(KvType::BF16),
        "q8_0" => Ok(KvType::Q8_0),
        _ => Err("expected f32, f16, bf16 or q8_0".into()),
    }
}

/// How the next token is chosen. What is not given comes from the model's own generation_config.
#[derive(clap::Args)]
#[command(next_help_heading = "Choosing tokens (defaults: the model's generation_config)")]
pub struct SamplingArgs {
    /// Temperature; 0 always takes the likeliest token
    #[arg(long, value_name = "T", value_parser = parse_not_negative)]
    pub temp: Option<f32>,

    /// Choose among the K likeliest tokens; 0: among all
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,

    /// Choose among the likeliest tokens that make up this probability; 1: among all
    #[arg(long, value_name = "P", value_parser = parse_share)]
    pub top_p: Option<f32>,

    /// Leave out tokens less likely than this share of the likeliest one's probability
    #[arg(long, value_name = "P", value_parser = parse_share)]
    pub min_p: Option<f32>,

    /// Make tokens that occurred, in the prompt or since, less likely; 1: off
    #[arg(long, value_name = "X", value_parser = parse_positive)]
    pub repeat_penalty: Option<f32>,

    /// Subtract this from the logits of tokens generated before
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_finite)]
    pub presence_penalty: Option<f32>,

    /// Subtract this from the logits of generated tokens, as often as they occurred
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = parse_finite)]
    pub frequency_penalty: Option<f32>,

    /// Add V to the logit of token ID (repeatable); -100 rules it out
    #[arg(long, value_name = "ID=V", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,

    /// Seed of the random choice; the same seed gives the same text [default: from the clock]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Stop after this many tokens [default: when the context is full]
    #[arg(short = 'n', long, value_name = "N")]
    pub max_tokens: Option<usize>,

    /// Stop before this text (repeatable)
    #[arg(long, value_name = "TEXT", value_parser = parse_stop)]
    pub stop: Vec<String>,

    /// Go on after the model's end-of-text token
    #[arg(long)]
    pub ignore_eos: bool,
}

fn parse_finite(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(x) if x.is_finite() => Ok(x),
        _ => Err("expected a number".into()),
    }
}

fn parse_not_negative(text: &str) -> Result<f32, String> {
    parse_finite(text).ok().filter(|x| *x >= 0.0).ok_or("expected a number, 0 or more".into())
}

fn parse_positive(text: &str) -> Result<f32, String> {
    parse_finite(text).ok().filter(|x| *x > 0.0).ok_or("expected a number above 0".into())
}

fn parse_share(text: &str) -> Result<f32, String> {
    parse_finite(text).ok().filter(|x| (0.0..=1.0).contains(x)).ok_or("expected a number from 0 to 1".into())
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let expected = || "expected a token id, = and a number, as in 42=-100".to_string();
    let (id, bias) = text.split_once('=').ok_or_else(expected)?;
    Ok((id.parse().map_err(|_| expected())?, parse_finite(bias).map_err(|_| expected())?))
}

fn parse_stop(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("an empty text would stop at once".into()) } else { Ok(text.into()) }
}

/// How models are fetched from the Hugging Face hub.
#[derive(clap::Args)]
#[command(next_help_heading = "Hugging Face hub")]
pub struct HubArgs {
    /// Branch, tag or commit (default: main, or what the name says after @)
    #[arg(long, value_name = "REV", hide_short_help = true)]
    pub revision: Option<String>,

    /// Use only what was fetched before
    #[arg(long, env = "HF_HUB_OFFLINE", value_parser = FalseyValueParser::new(), hide_short_help = true)]
    pub offline: bool,

    /// Access token, for gated and private models [default: the one of `hf auth login`]
    #[arg(long, value_name = "TOKEN", env = "HF_TOKEN", hide_env_values = true, hide_short_help = true)]
    pub hf_token: Option<String>,

    /// Folder of the cache [default: .cache/huggingface in the home folder]
    #[arg(long, value_name = "DIR", env = "HF_HOME", hide_short_help = true)]
    pub hf_home: Option<PathBuf>,

    /// Another server with the hub's interface
    #[arg(long, value_name = "URL", env = "HF_ENDPOINT", hide_short_help = true)]
    pub hf_endpoint: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for bad in ["-0.1", "1.1", "nan", "inf", "", "x"] {
            assert!(parse_share(bad).is_err(), "{bad}");
        }
        assert!(parse_not_negative("-1").is_err());
        assert!(parse_positive("0").is_err());
        assert_eq!(parse_bias("42=-100"), Ok((42, -100.0)));
        for bad in ["42", "-1=0", "4294967296=1", "1=nan", "=1", "1="] {
            assert!(parse_bias(bad).is_err(), "{bad}");
        }
    }
}
