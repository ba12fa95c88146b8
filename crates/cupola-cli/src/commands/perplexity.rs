//! `cupola perplexity`.

use crate::args::{ComputeArgs, HubArgs, parse_activations, parse_kv_type};
use crate::failure::{Failure, Result, Within};
use crate::model::{self, Model};
use crate::perplexity::{MIN_CONTEXT, Scores, Windows, score};
use crate::{interrupt, terminal};
use cupola::Engine;
use cupola_backend::{Activations, DeviceChoice};
use cupola_formats::tokenizer::Specials;
use cupola_graph::KvType;
use serde_json::{Value as Json, json};
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Instant;

/// Measures how well a model foretells a text, and how far it is from another one on it
///
/// The text is cut into windows of --context tokens; in each, the tokens of the second half are scored by what comes
/// before them in the window, as llama.cpp's llama-perplexity does. With --stride, windows overlap.
///
/// --kl BASE also evaluates BASE on the same windows, and measures the Kullback-Leibler divergence from it. BASE runs
/// with the same options unless a --kl option says otherwise. Without BASE, those options apply to MODEL itself:
/// --kl-exact alone shows what the faster arithmetic costs.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cupola perplexity model-Q4_K_M.gguf book.txt
  cupola perplexity model-Q4_K_M.gguf book.txt --kl model-F16.gguf --chunks 20 --json
  cupola perplexity model-Q4_K_M.gguf book.txt --kl-exact")]
pub struct Args {
    /// Folder, GGUF file, hub name or `embedded`
    #[arg(value_name = "MODEL")]
    model: String,

    /// The text, in UTF-8
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Tokens of a window
    #[arg(short, long, value_name = "N", default_value = "512", value_parser = parse_context)]
    context: usize,

    /// Begin a window every N tokens and score its last N; windows get N/2 tokens more. Without this, windows do not overlap
    #[arg(long, value_name = "N")]
    stride: Option<NonZeroUsize>,

    /// Score only the first N windows
    #[arg(long, value_name = "N")]
    chunks: Option<NonZeroUsize>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    base: BaseArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    hub: HubArgs,
}

/// What to compare with.
#[derive(clap::Args)]
#[command(next_help_heading = "Comparison")]
struct BaseArgs {
    /// Measure the divergence from this model. With another --kl option and without this one: from MODEL itself
    #[arg(long, value_name = "BASE")]
    kl: Option<String>,

    /// Run the base with --exact
    #[arg(long)]
    kl_exact: bool,

    /// Run the base with this --device
    #[arg(long, value_name = "DEVICE")]
    kl_device: Option<DeviceChoice>,

    /// Run the base with these --activations
    #[arg(long, value_name = "16|8", value_parser = parse_activations)]
    kl_activations: Option<Activations>,

    /// Run the base with this --kv-type
    #[arg(long, value_name = "TYPE", value_parser = parse_kv_type)]
    kl_kv_type: Option<KvType>,

    /// Run the base with this --cpu
    #[arg(long = "kl-cpu", value_name = "TIER", hide_short_help = true)]
    kl_cpu_tier: Option<String>,
}

impl BaseArgs {
    fn wanted(&self) -> bool {
        let options =
            self.kl_exact || self.kl_device.is_some() || self.kl_activations.is_some() || self.kl_kv_type.is_some();
        self.kl.is_some() || options || self.kl_cpu_tier.is_some()
    }

    /// The options of the model with what is different for the base.
    fn compute(&self, model: &ComputeArgs) -> ComputeArgs {
        let mut compute = model.clone();
        let device = &mut compute.device;
        device.exact |= self.kl_exact;
        device.device = self.kl_device.clone().unwrap_or(device.device.clone());
        device.activations = self.kl_activations.unwrap_or(device.activations);
        device.kv_type = self.kl_kv_type.unwrap_or(device.kv_type);
        device.cpu_tier = self.kl_cpu_tier.clone().or(device.cpu_tier.take());
        compute
    }
}

fn parse_context(text: &str) -> std::result::Result<usize, String> {
    text.parse().ok().filter(|n| *n >= MIN_CONTEXT).ok_or(format!("expected a number, {MIN_CONTEXT} or more"))
}

pub fn run(args: Args) -> Result<()> {
    let stride = args.stride.map(NonZeroUsize::get);
    if stride.is_some_and(|s| s > args.context) {
        let message = format!("--stride is more than --context, {}: tokens would be left out", args.context);
        return Err(Failure::Usage(message));
    }
    let file = args.file.display();
    let text = std::fs::read(&args.file).within(|| format!("cannot read {file}"))?;
    let text = String::from_utf8(text).within(|| format!("{file} is not a text in UTF-8"))?;
    interrupt::listen();

    let length = Windows::length_for(args.context, stride);
    let load = |name: &str, compute: &ComputeArgs| -> Result<Engine> {
        model::load(&Model::named(name)?.open(&args.hub)?, compute, Some(length), false)
    };
    let model = load(&args.model, &args.compute)?;
    let base_name = args.base.kl.as_deref().unwrap_or(&args.model);
    let base = args.base.wanted().then(|| load(base_name, &args.base.compute(&args.compute))).transpose()?;
    if let Some(base) = &base {
        check_vocabularies(&model, base)?;
    }

    let tokenizer = model.tokenizer()?;
    let mut tokens = tokenizer.encode(&text, Specials::Plain)?;
    drop(text);
    let prefix = tokenizer.prefix();
    tokens.splice(0..0, prefix.iter().copied());
    let windows = Windows::new(&tokens, prefix, args.context, stride, args.chunks.map(NonZeroUsize::get));
    if windows.count() == 0 {
        return Err(Failure::new(format!(
            "{file} has {} tokens, but a window takes {length}: give a longer text or a smaller --context",
            tokens.len()
        )));
    }

    let start = Instant::now();
    let bar = terminal::steps_bar("Scoring", windows.count() as u64);
    let scores = score(&model, base.as_ref(), &windows, |scores| {
        bar.inc(1);
        let kl = scores.divergence.mean().map_or(String::new(), |kl| format!(", divergence {kl:.5}"));
        bar.set_message(format!("perplexity {:.4}{kl}", scores.model.perplexity().0));
    });
    bar.finish_and_clear();
    let scores = scores?;
    let seconds = start.elapsed().as_secs_f64();
    let base_name = base.as_ref().map(|_| base_name);
    if args.json {
        return terminal::json(&json(&args, &tokens, windows.count(), base_name, &scores, seconds));
    }
    report(&args, &tokens, windows.count(), base_name, &scores)
}

/// Divergences between models that count tokens differently mean nothing.
fn check_vocabularies(model: &Engine, base: &Engine) -> Result<()> {
    let (of_model, of_base) = (model.vocab(), base.vocab());
    if of_model != of_base {
        return Err(Failure::new(format!(
            "the model gives logits for {of_model} tokens and the base for {of_base}: only models with the same vocabulary \
             can be compared"
        )));
    }
    let (Ok(of_model), Ok(of_base)) = (model.tokenizer(), base.tokenizer()) else { return Ok(()) };
    for id in 0..model.vocab() as u32 {
        let (a, b) = (of_model.id_to_token(id), of_base.id_to_token(id));
        if a != b {
            let name = |token: Option<String>| token.map_or("nothing".into(), |t| format!("{t:?}"));
            return Err(Failure::new(format!(
                "token {id} is {} in the model and {} in the base: only models with the same vocabulary can be compared",
                name(a),
                name(b)
            )));
        }
    }
    Ok(())
}

fn report(args: &Args, tokens: &[u32], windows: usize, base: Option<&str>, scores: &Scores) -> Result<()> {
    let mut out = terminal::out();
    let pair = |(value, error): (f64, f64), digits: usize| match error.is_nan() {
        true => format!("{value:.digits$}"),
        false => format!("{value:.digits$} \u{b1} {error:.digits$}"),
    };
    let Args { model, file, context, .. } = args;
    let file = file.display();
    let stride = args.stride.map_or(String::new(), |s| format!(", stride {s}"));
    let count = scores.model.count();
    writeln!(out, "model            {model}")?;
    writeln!(out, "text             {file}: {} tokens", tokens.len())?;
    writeln!(out, "windows          {windows}, context {context}{stride}, {count} tokens scored")?;
    writeln!(out, "perplexity       {}", pair(scores.model.perplexity(), 4))?;
    writeln!(out, "nats per token   {}", pair(scores.model.nll(), 5))?;
    if let (Some(base), Some(s)) = (base, scores.divergence.summary()) {
        let percent = |(value, error): (f64, f64)| (100.0 * value, 100.0 * error);
        writeln!(out)?;
        writeln!(out, "base             {base}")?;
        writeln!(out, "perplexity       {}", pair(scores.base.perplexity(), 4))?;
        writeln!(out, "KL divergence    mean {}", pair(s.mean, 8))?;
        writeln!(
            out,
            "                 median {:.8}, 99 % {:.8}, largest {:.8}",
            s.median, s.percentile_99, s.largest
        )?;
        writeln!(out, "same best token  {} %", pair(percent(s.agreement), 2))?;
        writeln!(
            out,
            "probabilities    differ by {:.3} % (root mean square, of the text's tokens)",
            100.0 * s.rms_difference
        )?;
    }
    Ok(out.flush()?)
}

fn json(args: &Args, tokens: &[u32], windows: usize, base: Option<&str>, scores: &Scores, seconds: f64) -> Json {
    let pair = |(value, error): (f64, f64)| json!({ "value": value, "error": error });
    let kl = scores.divergence.summary().map(|s| {
        json!({
            "mean": pair(s.mean),
            "median": s.median,
            "percentile_99": s.percentile_99,
            "largest": s.largest,
            "same_best_token": pair(s.agreement),
            "rms_probability_difference": s.rms_difference,
        })
    });
    let base = base.map(|name| {
        let perplexity = pair(scores.base.perplexity());
        json!({ "name": name, "perplexity": perplexity, "nll": pair(scores.base.nll()), "kl_divergence": kl })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": args.model,
        "text": args.file,
        "tokens": tokens.len(),
        "context": args.context,
        "stride": args.stride,
        "windows": windows,
        "scored_tokens": scores.model.count(),
        "perplexity": pair(scores.model.perplexity()),
        "nll": pair(scores.model.nll()),
        "base": base,
        "seconds": seconds,
    })
}
