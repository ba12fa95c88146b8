//! `cupola bench`.

use crate::args::{DeviceArgs, HubArgs};
use crate::bench::{Phase, RandomWeights, Shape, Summary, Work, measure, peak_memory};
use crate::failure::{Failure, Result};
use crate::model::Model;
use crate::{interrupt, terminal, units};
use cupola_backend::{Activations, Backend, Options, Runner, WeightSource};
use cupola_cpu::ceilings::{Ceilings, measure_ceilings};
use cupola_graph::{Program, fuse};
use cupola_quant::Format;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

/// Measures the speed of prompts and of generation, next to the machine's limits
///
/// Each test is run once to warm up, then as often as --repetitions says. Generation is bound by reading weights, keys
/// and values from memory, prompts by arithmetic: both limits are measured right after the tests, with as many threads,
/// and the tests' shares of them are shown. Bytes and operations are those that the model needs at least.
#[derive(clap::Args)]
#[command(after_help = "\
Shapes for --synthetic: 1b, llama3-1b, llama3-3b, llama3-8b, smollm2-135m, smollm2-1.7b, qwen3-0.6b, qwen3-1.7b,
qwen3-4b, qwen3-8b.

Examples:
  cupola bench model.gguf
  cupola bench model.gguf -p 128,512 -n 32 -r 3 --threads 1,2,4
  cupola bench --synthetic llama3-8b --format Q4_K -p 0 --json")]
pub struct Args {
    /// Folder, GGUF file or hub name [default: the embedded model]
    #[arg(value_name = "MODEL")]
    model: Option<String>,

    /// A model of this shape with random weights, made in memory
    #[arg(long, value_name = "SHAPE", value_parser = Shape::named, conflicts_with = "model")]
    synthetic: Option<Shape>,

    /// Format of the random weights
    #[arg(long, value_name = "TYPE", default_value = "Q4_K", value_parser = parse_format)]
    format: Format,

    /// Lengths of prompts, separated by commas; 0: none
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', default_value = "512")]
    prompt: Vec<usize>,

    /// Numbers of tokens to generate, separated by commas; 0: none
    #[arg(short = 'n', long, value_name = "N,...", value_delimiter = ',', default_value = "128")]
    generate: Vec<usize>,

    /// How often each test is run
    #[arg(short, long, value_name = "N", default_value = "5")]
    repetitions: NonZeroUsize,

    /// Numbers of CPU threads, separated by commas [default: one for each core]
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', env = "CUPOLA_THREADS")]
    threads: Vec<NonZeroUsize>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    hub: HubArgs,
}

fn parse_format(text: &str) -> std::result::Result<Format, String> {
    Format::from_name(text)
        .ok_or_else(|| format!("unknown format; known are {}", Format::ALL.map(|f| f.name()).join(", ")))
}

/// The longest test: key-value blocks for it are taken at once.
const LONGEST: usize = 1 << 17;

pub fn run(args: Args) -> Result<()> {
    let phases = phases(&args)?;
    match &args.synthetic {
        Some(shape) => {
            let program = Arc::new(shape.program(args.format)?);
            let weights = RandomWeights::new(&program)?;
            let name = format!("{} with random weights", shape.name);
            bench(&args, &phases, &name, &program, &weights)
        }
        None => {
            let model = args.model.as_deref().map_or(Ok(Model::Embedded), Model::named)?;
            let checkpoint = model.open(&args.hub)?;
            let built = cupola_models::build(&checkpoint)?;
            let name = built.info.name.unwrap_or_else(|| checkpoint.path().display().to_string());
            bench(&args, &phases, &name, &Arc::new(fuse(built.program)), &built.parameters)
        }
    }
}

fn phases(args: &Args) -> Result<Vec<Phase>> {
    let prompts = args.prompt.iter().map(|n| Phase::Prompt(*n));
    let generations = args.generate.iter().map(|n| Phase::Generation(*n));
    let phases: Vec<Phase> = prompts.chain(generations).filter(|p| p.tokens() > 0).collect();
    if phases.is_empty() {
        return Err(Failure::Usage("there is nothing to measure: all lengths are 0".into()));
    }
    if let Some(long) = phases.iter().find(|p| p.tokens() > LONGEST) {
        return Err(Failure::Usage(format!(
            "a test of {} tokens is too long; at most {LONGEST} are possible",
            long.tokens()
        )));
    }
    Ok(phases)
}

/// A phase with its measurements.
struct Test {
    phase: Phase,
    /// Index into the thread counts.
    run: usize,
    seconds: Vec<f64>,
}

/// What belongs to one number of threads.
struct Run {
    threads: Option<NonZeroUsize>,
    backends: Vec<Arc<dyn Backend>>,
    load_seconds: f64,
    weight_bytes: usize,
}

fn bench(args: &Args, phases: &[Phase], name: &str, program: &Arc<Program>, weights: &dyn WeightSource) -> Result<()> {
    let threads: Vec<Option<NonZeroUsize>> = match args.threads.as_slice() {
        [] => vec![None],
        list => list.iter().map(|n| Some(*n)).collect(),
    };
    interrupt::listen();
    let (mut runs, mut tests) = (vec![], vec![]);
    let spinner = terminal::spinner("Measuring");
    for threads in threads {
        interrupt::check()?;
        spinner.set_message("loading");
        let options = args.device.options(threads, false);
        let selection = cupola::registry().select(&args.device.device, &options)?;
        for note in &selection.notes {
            spinner.suspend(|| terminal::note(&format!("note: {note}")));
        }
        let backends = selection.backends;
        let start = Instant::now();
        let mut runner = Runner::load(program.clone(), backends.clone(), weights, &mut |_| {})?;
        let (load_seconds, weight_bytes) = (start.elapsed().as_secs_f64(), runner.weight_bytes());
        for phase in phases {
            let mut seconds = vec![];
            for round in 0..=args.repetitions.get() {
                spinner.set_message(format!("{} {round}/{}", label(*phase), args.repetitions));
                seconds.push(measure(&mut runner, *phase)?);
            }
            // The first warms up.
            tests.push(Test { phase: *phase, run: runs.len(), seconds: seconds.split_off(1) });
        }
        runs.push(Run { threads, backends, load_seconds, weight_bytes });
    }
    // Measuring the limits takes memory of its own.
    let peak = peak_memory();
    spinner.set_message("the machine's limits");
    let mut limits = vec![];
    for run in &runs {
        interrupt::check()?;
        let count = run.threads.map_or_else(cupola_cpu::pool::default_threads, NonZeroUsize::get);
        limits.push(measure_ceilings(&cupola_cpu::Pool::new(count))?);
    }
    spinner.finish_and_clear();

    let options = args.device.options(None, false);
    let results: Vec<Measured> = tests.iter().map(|t| Measured::of(program, t, &limits, &options)).collect();
    match args.json {
        true => terminal::json(&report_json(args, name, program, &runs, &limits, &tests, &results, peak)),
        false => report(name, program, &runs, &limits, &tests, &results, peak),
    }
}

/// A test's result, next to the limits.
struct Measured {
    tokens_per_second: Summary,
    /// 10^9 per second, by the median time.
    gigabytes: f64,
    gigaops: f64,
    share_of_reading: f64,
    share_of_arithmetic: f64,
}

impl Measured {
    fn of(program: &Program, test: &Test, limits: &[Ceilings], options: &Options) -> Measured {
        let rates: Vec<f64> = test.seconds.iter().map(|s| test.phase.tokens() as f64 / s).collect();
        let work = Work::of(program, test.phase, options.kv());
        let median = Summary::of(&test.seconds).median;
        let (gigabytes, gigaops) = (work.bytes / median / 1e9, work.operations / median / 1e9);
        let limit = &limits[test.run];
        Measured {
            tokens_per_second: Summary::of(&rates),
            gigabytes,
            gigaops,
            share_of_reading: gigabytes / limit.read_gbs,
            share_of_arithmetic: gigaops / arithmetic_limit(program, limit, options).1,
        }
    }
}

/// The limit of the arithmetic that most of the program's weights take part in, with its name.
fn arithmetic_limit(program: &Program, limits: &Ceilings, options: &Options) -> (&'static str, f64) {
    let mut bytes: BTreeMap<Format, usize> = BTreeMap::new();
    for weight in &program.weights {
        *bytes.entry(weight.format).or_default() += weight.bytes();
    }
    match bytes.into_iter().max_by_key(|(_, n)| *n).map(|(format, _)| format) {
        _ if options.exact => ("f32", limits.f32_gflops),
        Some(Format::BF16) if options.activations == Activations::Bits8 => ("bf16", limits.bf16_gflops),
        Some(format) if !format.is_float() => match options.activations {
            Activations::Bits16 => ("int16", limits.int16_gops),
            Activations::Bits8 => ("int8", limits.int8_gops),
        },
        _ => ("f32", limits.f32_gflops),
    }
}

fn label(phase: Phase) -> String {
    match phase {
        Phase::Prompt(n) => format!("prompt {n}"),
        Phase::Generation(n) => format!("generate {n}"),
    }
}

fn formats(program: &Program) -> String {
    let mut names: Vec<&str> = program.weights.iter().map(|w| w.format.name()).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

fn parameters(program: &Program) -> u64 {
    let matrices = program.weights.iter().map(|w| w.n_out as u64 * w.n_in as u64);
    matrices.chain(program.vectors.iter().map(|v| v.len as u64)).sum()
}

fn threads_name(run: &Run) -> String {
    run.threads.map_or_else(|| "all".into(), |n| n.to_string())
}

fn report(
    name: &str,
    program: &Program,
    runs: &[Run],
    limits: &[Ceilings],
    tests: &[Test],
    results: &[Measured],
    peak: Option<u64>,
) -> Result<()> {
    let mut out = terminal::out();
    let size = units::bytes(program.weight_bytes() as u64);
    writeln!(out, "model    {name}: {} parameters, {size}, {}", units::count(parameters(program)), formats(program))?;
    if let Some(device) = runs.first().and_then(|r| r.backends.first()).map(|b| b.device()) {
        writeln!(out, "device   {device}")?;
    }
    for (run, limit) in runs.iter().zip(limits) {
        writeln!(
            out,
            "limits   threads {}: reading {:.1} GB/s, int8 {:.0} Gop/s, int16 {:.0} Gop/s, bf16 {:.0} Gop/s, f32 {:.0} Gop/s",
            threads_name(run),
            limit.read_gbs,
            limit.int8_gops,
            limit.int16_gops,
            limit.bf16_gflops,
            limit.f32_gflops
        )?;
    }
    if let Some(peak) = peak {
        writeln!(out, "memory   {} at most", units::bytes(peak))?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "{:<14}{:>8}{:>20}{:>10}{:>8}{:>7}{:>9}{:>7}",
        "test", "threads", "tokens/s", "median", "GB/s", "share", "Gop/s", "share"
    )?;
    for (test, result) in tests.iter().zip(results) {
        let Summary { mean, deviation, median } = result.tokens_per_second;
        writeln!(
            out,
            "{:<14}{:>8}{:>20}{:>10.1}{:>8.1}{:>6.0}%{:>9.1}{:>6.0}%",
            label(test.phase),
            threads_name(&runs[test.run]),
            format!("{mean:.1} \u{b1} {deviation:.1}"),
            median,
            result.gigabytes,
            100.0 * result.share_of_reading,
            result.gigaops,
            100.0 * result.share_of_arithmetic,
        )?;
    }
    Ok(out.flush()?)
}

#[allow(clippy::too_many_arguments)] // Everything that was found out, in one place.
fn report_json(
    args: &Args,
    name: &str,
    program: &Program,
    runs: &[Run],
    limits: &[Ceilings],
    tests: &[Test],
    results: &[Measured],
    peak: Option<u64>,
) -> Json {
    let runs_json = runs.iter().zip(limits).map(|(run, limit)| {
        json!({
            "threads": run.threads,
            "devices": run.backends.iter().map(|b| b.device().to_string()).collect::<Vec<_>>(),
            "load_seconds": run.load_seconds,
            "weight_bytes_on_devices": run.weight_bytes,
            "limits": {
                "read_gb_per_second": limit.read_gbs,
                "int8_gop_per_second": limit.int8_gops,
                "int16_gop_per_second": limit.int16_gops,
                "bf16_gop_per_second": limit.bf16_gflops,
                "f32_gop_per_second": limit.f32_gflops,
            },
        })
    });
    let tests_json = tests.iter().zip(results).map(|(test, result)| {
        let Summary { mean, deviation, median } = result.tokens_per_second;
        json!({
            "test": if matches!(test.phase, Phase::Prompt(_)) { "prompt" } else { "generate" },
            "tokens": test.phase.tokens(),
            "threads": runs[test.run].threads,
            "seconds": test.seconds,
            "tokens_per_second": { "mean": mean, "deviation": deviation, "median": median },
            "gb_per_second": result.gigabytes,
            "share_of_reading": result.share_of_reading,
            "gop_per_second": result.gigaops,
            "share_of_arithmetic": result.share_of_arithmetic,
            "arithmetic": arithmetic_limit(program, &limits[test.run], &args.device.options(None, false)).0,
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": {
            "name": name,
            "parameters": parameters(program),
            "bytes": program.weight_bytes(),
            "formats": formats(program),
        },
        "exact": args.device.exact,
        "activation_bits": if args.device.activations == Activations::Bits8 { 8 } else { 16 },
        "peak_memory_bytes": peak,
        "runs": runs_json.collect::<Vec<_>>(),
        "tests": tests_json.collect::<Vec<_>>(),
    })
}
