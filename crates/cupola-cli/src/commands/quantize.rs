//! `cupola quantize`.

use crate::failure::{Failure, Result};
use crate::model;
use crate::quantize::{Target, Wishes, quantize};
use crate::{interrupt, terminal, units};
use cupola_quant::Format;
use serde_json::json;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Instant;

/// Writes a checkpoint as a GGUF file in another format
///
/// IN is a folder with safetensors and config.json, or a GGUF file. The result runs here and in llama.cpp.
///
/// A type such as Q4_K is used for every matrix, the embedding and output matrices included; a mixture such as Q4_K_M
/// gives the more sensitive matrices a larger format, as llama.cpp does. Norms, biases and other vectors stay F32.
/// Rows that are no multiple of a format's block get a format with smaller blocks: Q2_K and Q3_K become Q4_0, Q4_K
/// becomes Q5_0, Q5_K Q5_1, Q6_K Q8_0, and what still does not fit F16; this is reported.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cupola quantize ./Qwen3-0.6B qwen3-0.6b-q4_k_m.gguf --type Q4_K_M
  cupola quantize big-f16.gguf small.gguf --type Q4_0 --output-type Q8_0")]
pub struct Args {
    /// What to convert
    #[arg(value_name = "IN")]
    input: PathBuf,

    /// The file to write
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, or a mixture: Q3_K_S, Q3_K_M,
    /// Q3_K_L, Q4_K_S, Q4_K_M, Q5_K_S, Q5_K_M
    #[arg(short = 'T', long = "type", value_name = "TYPE")]
    target: Target,

    /// Another type for the output matrix; for the embedding matrix, where the model has one for both
    #[arg(long, value_name = "TYPE", value_parser = parse_format)]
    output_type: Option<Format>,

    /// Another type for the embedding matrix
    #[arg(long, value_name = "TYPE", value_parser = parse_format)]
    embedding_type: Option<Format>,

    /// Replace OUT if it exists
    #[arg(short, long)]
    force: bool,

    /// Threads [default: one for each core]
    #[arg(short, long, value_name = "N", env = "CUPOLA_THREADS")]
    threads: Option<NonZeroUsize>,

    /// Print what was written as JSON
    #[arg(long)]
    json: bool,
}

fn parse_format(text: &str) -> std::result::Result<Format, String> {
    let known = || {
        let all = Format::ALL.iter().filter(|f| f.has_encoder());
        all.map(|f| f.name()).collect::<Vec<_>>().join(", ")
    };
    Format::from_name(text).filter(|f| f.has_encoder()).ok_or_else(|| format!("unknown type; known are {}", known()))
}

pub fn run(args: Args) -> Result<()> {
    interrupt::listen();
    let checkpoint = model::open_path(&args.input)?;
    check_output(&args)?;
    let wishes = Wishes { target: args.target, output: args.output_type, embedding: args.embedding_type };
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let start = Instant::now();
    let report = quantize(&checkpoint, &args.output, &wishes, args.threads.unwrap_or(cores))?;
    for warning in &report.warnings {
        terminal::warning(warning);
    }
    let size = std::fs::metadata(&args.output).map_or(0, |m| m.len());
    if args.json {
        let formats = report
            .formats
            .iter()
            .map(|(name, (tensors, bytes))| (name.clone(), json!({ "tensors": tensors, "bytes": bytes })));
        return terminal::json(&json!({
            "path": args.output, "type": args.target.to_string(), "bytes": size,
            "formats": formats.collect::<serde_json::Map<_, _>>(), "warnings": report.warnings,
            "seconds": start.elapsed().as_secs_f64(),
        }));
    }
    let one =
        |(name, (tensors, bytes)): (&String, &(usize, u64))| format!("{tensors} x {name} ({})", units::bytes(*bytes));
    let formats = report.formats.iter().map(one).collect::<Vec<_>>().join(", ");
    terminal::note(&format!(
        "{}: {}, {formats}, {:.1} s",
        args.output.display(),
        units::bytes(size),
        start.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// The output must not be the input, nor replace a file by accident.
fn check_output(args: &Args) -> Result<()> {
    let out = args.output.display();
    super::refuse_non_file(&args.output)?;
    if !args.output.exists() {
        return Ok(());
    }
    if let (Ok(a), Ok(b)) = (args.input.canonicalize(), args.output.canonicalize())
        && a == b
    {
        return Err(Failure::Usage(format!("{out} is the input itself; give the output another name")));
    }
    if args.force { Ok(()) } else { Err(Failure::new(format!("{out} exists; --force replaces it"))) }
}
