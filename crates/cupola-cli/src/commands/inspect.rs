//! `cupola inspect`.

use crate::args::{DeviceArgs, HubArgs};
use crate::failure::{Failure, Result};
use crate::model::Model;
use crate::{terminal, units};
use cupola_backend::{Assignment, Backend, partition};
use cupola_formats::gguf::{Metadata, MetadataValue};
use cupola_formats::tokenizer::Tokenizer;
use cupola_formats::{Checkpoint, Config, Tensor};
use cupola_graph::{KvType, Program, fuse};
use cupola_models::ModelInfo;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// Shows what is in a checkpoint, whether or not it can be run
///
/// PATH is a folder, a GGUF or safetensors file, a hub name, or `embedded`. Nothing is loaded: only headers and configs
/// are read.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cupola inspect model.gguf
  cupola inspect model.gguf --metadata --tensors
  cupola inspect ./checkpoint --program
  cupola inspect model.gguf --json | jq .memory")]
pub struct Args {
    /// Folder, file, hub name or `embedded`
    #[arg(value_name = "PATH")]
    path: String,

    /// Show all metadata: of GGUF files its keys, of others config.json
    #[arg(short, long)]
    metadata: bool,

    /// List all tensors
    #[arg(short = 'T', long)]
    tensors: bool,

    /// Show the program that the model becomes: each operation with shapes, formats and bytes, the device that takes it
    /// and why others do not
    #[arg(short, long)]
    program: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    hub: HubArgs,
}

pub fn run(args: Args) -> Result<()> {
    let model = Model::named(&args.path)?;
    let checkpoint = match model.open(&args.hub) {
        Ok(checkpoint) => checkpoint,
        Err(failure) => {
            if let Model::Path(path) = &model {
                show_what_is_left(path)?;
            }
            return Err(failure);
        }
    };
    let runnable = Runnable::of(&checkpoint, &args);
    match args.json {
        true => terminal::json(&describe_json(&checkpoint, &runnable, &args)),
        false => describe(&checkpoint, &runnable, &args),
    }
}

/// Of a checkpoint that cannot be opened, the config may be readable all the same.
fn show_what_is_left(path: &Path) -> Result<()> {
    if let Ok(config) = cupola_formats::config::HfConfig::read(path.join("config.json"))
        && let Ok(kind) = config.model_type()
    {
        let mut out = terminal::out();
        writeln!(out, "{:<16}{}", "architecture", terminal::printable(kind))?;
        out.flush()?;
    }
    Ok(())
}

/// The model that a checkpoint becomes.
struct Runnable {
    /// Or why there is none.
    model: std::result::Result<(Arc<Program>, ModelInfo), String>,
    /// Or why there is none.
    tokenizer: std::result::Result<Tokenizer, String>,
    /// Where it would run, if that was asked for; or why nowhere.
    devices: Option<std::result::Result<Devices, String>>,
}

struct Devices {
    backends: Vec<Arc<dyn Backend>>,
    assignments: Vec<Assignment>,
}

impl Runnable {
    fn of(checkpoint: &Checkpoint, args: &Args) -> Runnable {
        let model =
            cupola_models::build(checkpoint).map(|m| (Arc::new(fuse(m.program)), m.info)).map_err(|e| e.to_string());
        let tokenizer = Tokenizer::from_checkpoint(checkpoint).map_err(|e| e.to_string());
        let devices = model.as_ref().ok().filter(|_| args.program).map(|(program, _)| {
            let selected = cupola::registry().select(&args.device.device, &args.device.options(None, false));
            let selection = selected.map_err(|e| e.to_string())?;
            let assignments = partition(program, &selection.backends);
            Ok(Devices { backends: selection.backends, assignments })
        });
        Runnable { model, tokenizer, devices }
    }
}

/// Parameters by format: number of tensors, elements, bytes.
fn formats(checkpoint: &Checkpoint) -> BTreeMap<String, (u64, u64, u64)> {
    let mut formats: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        let entry = formats.entry(tensor.dtype.to_string()).or_default();
        *entry = (entry.0 + 1, entry.1.saturating_add(tensor.elements() as u64), entry.2 + tensor.bytes.len() as u64);
    }
    formats
}

fn architecture(checkpoint: &Checkpoint) -> Option<String> {
    match checkpoint.config()? {
        Config::Hf(config) => config.model_type().ok().map(String::from),
        Config::Gguf(metadata) => metadata.optional_str("general.architecture").ok().flatten().map(String::from),
    }
}

/// The container, with its version.
fn kind(checkpoint: &Checkpoint) -> String {
    match checkpoint.gguf() {
        Some(gguf) => format!("GGUF version {}", gguf.version()),
        None => checkpoint.kind().to_string(),
    }
}

fn has_chat_template(checkpoint: &Checkpoint) -> bool {
    let sources = cupola_formats::template::TemplateSources::from_checkpoint(checkpoint);
    sources.is_ok_and(|s| !s.is_empty())
}

fn describe(checkpoint: &Checkpoint, runnable: &Runnable, args: &Args) -> Result<()> {
    let mut out = terminal::out();
    let mut line = |name: &str, value: &str| writeln!(out, "{name:<16}{}", terminal::printable(value));
    line("path", &checkpoint.path().display().to_string())?;
    line("kind", &kind(checkpoint))?;
    if let Some(architecture) = architecture(checkpoint) {
        line("architecture", &architecture)?;
    }
    if let Ok((_, info)) = &runnable.model {
        if let Some(name) = &info.name {
            line("name", name)?;
        }
        line("layers", &format!("{} of width {}", info.layers, info.hidden))?;
        line(
            "heads",
            &format!("{} over {} of keys and values, each {} wide", info.heads, info.kv_heads, info.head_dim),
        )?;
        line("vocabulary", &format!("{} tokens", info.vocab))?;
        line("context", &format!("{} tokens", info.context_length))?;
        line("parameters", &units::count(info.parameters))?;
    }
    let tensors = checkpoint.tensors().len();
    line("tensors", &format!("{tensors}, {}", units::bytes(checkpoint.total_bytes())))?;
    for (format, (count, elements, bytes)) in formats(checkpoint) {
        let count = format!("{count} tensors, {} elements, {}", units::count(elements), units::bytes(bytes));
        line(&format!("  {format}"), &count)?;
    }
    if let Ok((program, info)) = &runnable.model {
        let per_thousand = |kv| units::bytes(1000 * program.token_kv_bytes(kv) as u64);
        let full = info.context_length as u64 * program.token_kv_bytes(args.device.kv_type) as u64;
        line("memory", &format!("{} of weights", units::bytes(program.weight_bytes() as u64)))?;
        line(
            "",
            &format!(
                "{} for keys and values of 1000 tokens as f16, {} as q8_0, {} as f32",
                per_thousand(KvType::F16),
                per_thousand(KvType::Q8_0),
                per_thousand(KvType::F32)
            ),
        )?;
        line("", &format!("{} for a full context", units::bytes(full)))?;
    }
    match &runnable.tokenizer {
        Ok(tokenizer) => {
            line("tokenizer", &format!("{} tokens", tokenizer.vocab_size()))?;
            for warning in tokenizer.warnings() {
                line("", warning)?;
            }
        }
        Err(reason) => line("tokenizer", &format!("none: {reason}"))?,
    }
    line("chat template", if has_chat_template(checkpoint) { "yes" } else { "no" })?;
    match &runnable.model {
        Ok(_) => line("runs here", "yes")?,
        Err(reason) => line("runs here", &format!("no: {reason}"))?,
    }
    if args.metadata {
        writeln!(out)?;
        print_metadata(checkpoint, &mut out)?;
    }
    if args.tensors {
        writeln!(out)?;
        let shape = |t: &Tensor| format!("{:?}", t.shape);
        for t in checkpoint.tensors() {
            let bytes = units::bytes(t.bytes.len() as u64);
            writeln!(
                out,
                "{:<48} {:<8} {:<20} {bytes:>12}",
                terminal::printable(t.name),
                t.dtype.to_string(),
                shape(&t)
            )?;
        }
    }
    if args.program {
        writeln!(out)?;
        print_program(runnable, &mut out)?;
    }
    Ok(out.flush()?)
}

fn print_metadata(checkpoint: &Checkpoint, out: &mut impl Write) -> Result<()> {
    match checkpoint.config() {
        Some(Config::Gguf(metadata)) => {
            for (key, value) in metadata.iter() {
                writeln!(
                    out,
                    "{:<44} {:<7} {}",
                    terminal::printable(key),
                    value.kind().to_string(),
                    terminal::printable(&value.to_string())
                )?;
            }
        }
        Some(Config::Hf(config)) => {
            for (key, value) in config.values() {
                writeln!(out, "{:<44} {}", terminal::printable(key), terminal::printable(&value.to_string()))?;
            }
        }
        None => writeln!(out, "no config.json: nothing says what these tensors are")?,
    }
    Ok(())
}

fn print_program(runnable: &Runnable, out: &mut impl Write) -> Result<()> {
    let (program, _) = match &runnable.model {
        Ok(model) => model,
        Err(reason) => return Err(Failure::new(format!("there is no program: {reason}"))),
    };
    let devices = match &runnable.devices {
        Some(Ok(devices)) => devices,
        Some(Err(reason)) => return Err(Failure::new(reason)),
        None => return Ok(()),
    };
    for (op, assignment) in program.ops.iter().zip(&devices.assignments) {
        let name = |b: usize| devices.backends.get(b).map_or("nobody", |b| b.device().kind.as_str());
        writeln!(
            out,
            "{:<6} {}",
            assignment.backend.map_or("nobody", name),
            terminal::printable(&program.describe(op))
        )?;
        for (b, reason) in &assignment.declines {
            writeln!(out, "       not {}: {reason}", name(*b))?;
        }
    }
    Ok(())
}

fn describe_json(checkpoint: &Checkpoint, runnable: &Runnable, args: &Args) -> Json {
    let formats = formats(checkpoint).into_iter().map(|(name, (tensors, elements, bytes))| {
        (name, json!({ "tensors": tensors, "elements": elements, "bytes": bytes }))
    });
    let mut whole = json!({
        "path": checkpoint.path().display().to_string(),
        "kind": kind(checkpoint),
        "architecture": architecture(checkpoint),
        "tensors": checkpoint.tensors().len(),
        "bytes": checkpoint.total_bytes(),
        "formats": formats.collect::<serde_json::Map<_, _>>(),
        "chat_template": has_chat_template(checkpoint),
        "tokenizer": match &runnable.tokenizer {
            Ok(t) => json!({ "tokens": t.vocab_size(), "warnings": t.warnings() }),
            Err(reason) => json!({ "reason": reason }),
        },
        "runs": runnable.model.is_ok(),
    });
    match &runnable.model {
        Ok((program, info)) => {
            whole["model"] = json!({
                "name": info.name, "layers": info.layers, "hidden": info.hidden, "heads": info.heads,
                "kv_heads": info.kv_heads, "head_dim": info.head_dim, "vocabulary": info.vocab,
                "context": info.context_length, "parameters": info.parameters,
            });
            whole["memory"] = json!({
                "weights": program.weight_bytes(),
                "kv_per_token_f16": program.token_kv_bytes(KvType::F16),
                "kv_per_token_q8_0": program.token_kv_bytes(KvType::Q8_0),
                "kv_per_token_f32": program.token_kv_bytes(KvType::F32),
            });
        }
        Err(reason) => whole["reason"] = json!(reason),
    }
    if args.metadata {
        whole["metadata"] = match checkpoint.config() {
            Some(Config::Gguf(metadata)) => gguf_json(metadata),
            Some(Config::Hf(config)) => Json::Object(config.values().clone()),
            None => Json::Null,
        };
    }
    if args.tensors {
        let tensor = |t: Tensor| json!({ "name": t.name, "dtype": t.dtype.to_string(), "shape": t.shape, "bytes": t.bytes.len() });
        whole["tensor_list"] = checkpoint.tensors().map(tensor).collect();
    }
    if let (Ok((program, _)), Some(devices)) = (&runnable.model, &runnable.devices) {
        whole["program"] = match devices {
            Ok(devices) => program_json(program, devices),
            Err(reason) => json!({ "reason": reason }),
        };
    }
    whole
}

/// Arrays over this length are cut short: a vocabulary helps nobody.
const LONGEST: usize = 16;

fn gguf_json(metadata: &Metadata) -> Json {
    fn value(v: &MetadataValue) -> Json {
        match v {
            MetadataValue::String(bytes) => String::from_utf8_lossy(bytes).into(),
            MetadataValue::Bool(b) => (*b).into(),
            MetadataValue::Array(a) if a.len() > LONGEST => {
                let first: Vec<Json> = a.elements().take(LONGEST).map(|e| value(&e)).collect();
                json!({ "length": a.len(), "type": a.kind().to_string(), "first": first })
            }
            MetadataValue::Array(a) => a.elements().map(|e| value(&e)).collect(),
            other => match other.as_integer() {
                Some(n) => i64::try_from(n).map_or_else(|_| json!(n.to_string()), |n| json!(n)),
                None => other.as_float().map_or(Json::Null, |x| json!(x)),
            },
        }
    }
    metadata.iter().map(|(key, v)| (key.to_string(), value(&v))).collect::<serde_json::Map<_, _>>().into()
}

fn program_json(program: &Program, devices: &Devices) -> Json {
    let kind = |b: usize| devices.backends.get(b).map(|b| b.device().kind.clone());
    let op = |(op, assignment): (&cupola_graph::Op, &Assignment)| {
        let declines =
            assignment.declines.iter().map(|(b, reason)| json!({ "device": kind(*b), "reason": reason.to_string() }));
        let bytes: usize = op.weights().iter().map(|w| program.weight(*w).bytes()).sum();
        json!({
            "op": op.name(),
            "text": program.describe(op),
            "weight_bytes": bytes,
            "device": assignment.backend.and_then(kind),
            "declines": declines.collect::<Vec<_>>(),
        })
    };
    program.ops.iter().zip(&devices.assignments).map(op).collect()
}
