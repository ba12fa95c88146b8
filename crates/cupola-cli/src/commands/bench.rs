//! `cupola bench`.

use crate::args::{DeviceArgs, HubArgs};
use crate::bench::{Phase, RandomWeights, Shape, Summary, Task, Trial, Work, peak_memory};
use crate::failure::{Failure, Result};
use crate::model::Model;
use crate::{interrupt, terminal, units};
use cupola_backend::{Activations, Backend, Options, Runner, WeightSource};
use cupola_cpu::Pool;
use cupola_cpu::ceilings::{Ceilings, ReadCeiling, measure_ceilings};
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
/// and values from memory, prompts by arithmetic: the first limit is measured after every repetition, the other after all
/// tests, each with as many threads, and the tests' shares of them are shown. Bytes and operations are those that the
/// model needs at least.
#[derive(clap::Args)]
#[command(after_help = "\
Shapes for --synthetic: 1b, llama3-1b, llama3-3b, llama3-8b, smollm2-135m, smollm2-1.7b, qwen3-0.6b, qwen3-1.7b,
qwen3-4b, qwen3-8b.

Examples:
  cupola bench model.gguf
  cupola bench model.gguf -p 128,512 -n 32 -r 3 --threads 1,2,4
  cupola bench model.gguf -p 0 --depth 0,4096 --batch 1,8
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

    /// Tokens already in the cache when a test begins, separated by commas
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', default_value = "0")]
    depth: Vec<usize>,

    /// Numbers of sequences that generate together, separated by commas; prompts are read one at a time
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', default_value = "1")]
    batch: Vec<NonZeroUsize>,

    /// How often each test is run
    #[arg(short, long, value_name = "N", default_value = "5")]
    repetitions: NonZeroUsize,

    /// Numbers of CPU threads, separated by commas [default: one for each core]
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', env = "CUPOLA_THREADS")]
    threads: Vec<NonZeroUsize>,

    /// Do not measure the machine's limits, which takes time, and memory of its own
    #[arg(long)]
    no_limits: bool,

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

/// Tokens that a test may have in the cache: room for them is taken at once.
const LONGEST: usize = 1 << 17;

pub fn run(args: Args) -> Result<()> {
    let tasks = tasks(&args)?;
    match &args.synthetic {
        Some(shape) => {
            let program = Arc::new(shape.program(args.format)?);
            let weights = RandomWeights::new(&program)?;
            let name = format!("{} with random weights", shape.name);
            bench(&args, &tasks, &name, &program, &weights)
        }
        None => {
            let model = args.model.as_deref().map_or(Ok(Model::Embedded), Model::named)?;
            let checkpoint = model.open(&args.hub)?;
            let built = cupola_models::build(&checkpoint)?;
            let name = built.info.name.unwrap_or_else(|| checkpoint.path().display().to_string());
            bench(&args, &tasks, &name, &Arc::new(fuse(built.program)), &built.parameters)
        }
    }
}

/// Every depth with the prompts, then the generations in every batch.
fn tasks(args: &Args) -> Result<Vec<Task>> {
    let mut tasks = vec![];
    for &depth in &args.depth {
        tasks.extend(args.prompt.iter().map(|n| Task { phase: Phase::Prompt(*n), depth, batch: 1 }));
        for batch in args.batch.iter().map(|n| n.get()) {
            tasks.extend(args.generate.iter().map(|n| Task { phase: Phase::Generation(*n), depth, batch }));
        }
    }
    tasks.retain(|t| t.tokens() > 0);
    if tasks.is_empty() {
        return Err(Failure::Usage("there is nothing to measure: all lengths are 0".into()));
    }
    if let Some(long) = tasks.iter().find(|t| t.cache_tokens() > LONGEST) {
        return Err(Failure::Usage(format!(
            "a test with {} tokens in the cache is too long; at most {LONGEST} are possible",
            long.cache_tokens()
        )));
    }
    Ok(tasks)
}

/// A task with its measurements.
struct Test {
    task: Task,
    /// Index into the thread counts.
    run: usize,
    seconds: Vec<f64>,
    /// 10^9 bytes per second that could be read right after each; empty if that is not wanted.
    reads: Vec<f64>,
}

/// What belongs to one number of threads.
struct Run {
    threads: Option<NonZeroUsize>,
    backends: Vec<Arc<dyn Backend>>,
    load_seconds: f64,
    weight_bytes: usize,
    /// Absent until they are measured.
    limits: Option<Ceilings>,
}

fn bench(args: &Args, tasks: &[Task], name: &str, program: &Arc<Program>, weights: &dyn WeightSource) -> Result<()> {
    let threads: Vec<Option<NonZeroUsize>> = match args.threads.as_slice() {
        [] => vec![None],
        list => list.iter().map(|n| Some(*n)).collect(),
    };
    interrupt::listen();
    let (mut runs, mut tests) = (vec![], vec![]);
    let mut memory = MemoryUse::default();
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
        let pool = Pool::new(threads.map_or_else(cupola_cpu::pool::default_threads, NonZeroUsize::get));
        for task in tasks {
            let label = label(*task);
            spinner.set_message(format!("{label}: preparing"));
            let trial = Trial::prepare(&mut runner, *task)?;
            trial.measure(&mut runner)?;
            let (mut seconds, mut reads) = (vec![], vec![]);
            for round in 1..=args.repetitions.get() {
                spinner.set_message(format!("{label}: {round}/{}", args.repetitions));
                seconds.push(trial.measure(&mut runner)?);
                if !args.no_limits {
                    reads.push(memory.read_ceiling(&pool)?.measure(&pool));
                }
            }
            tests.push(Test { task: *task, run: runs.len(), seconds, reads });
        }
        runs.push(Run { threads, backends, load_seconds, weight_bytes, limits: None });
    }
    let peak = memory.finish();
    if !args.no_limits {
        spinner.set_message("the machine's limits");
        for run in &mut runs {
            interrupt::check()?;
            let count = run.threads.map_or_else(cupola_cpu::pool::default_threads, NonZeroUsize::get);
            run.limits = Some(measure_ceilings(&Pool::new(count))?);
        }
    }
    spinner.finish_and_clear();

    let options = args.device.options(None, false);
    let results: Vec<Measured> = tests.iter().map(|t| Measured::of(program, t, &runs, &options)).collect();
    match args.json {
        true => terminal::json(&report_json(args, name, program, &runs, &tests, &results, peak)),
        false => report(name, program, &runs, &tests, &results, peak),
    }
}

/// The memory that the model takes at most, though measuring the limit of reading takes some too.
#[derive(Default)]
struct MemoryUse {
    /// Kept until the end, so that what it takes can be subtracted.
    reading: Option<ReadCeiling>,
    /// Before it was there.
    before: Option<u64>,
}

impl MemoryUse {
    fn read_ceiling(&mut self, pool: &Pool) -> Result<&ReadCeiling> {
        if self.reading.is_none() {
            self.before = peak_memory();
        }
        let reading = match self.reading.take() {
            Some(reading) => reading,
            None => ReadCeiling::new(pool)?,
        };
        Ok(self.reading.insert(reading))
    }

    fn finish(self) -> Option<u64> {
        match self.reading {
            None => peak_memory(),
            Some(_) => Some(peak_memory()?.saturating_sub(ReadCeiling::BYTES as u64).max(self.before?)),
        }
    }
}

/// A test's result, next to the limits where they were measured.
struct Measured {
    tokens_per_second: Summary,
    /// 10^9 per second, by the median time.
    gigabytes: f64,
    gigaops: f64,
    /// 10^9 bytes per second that could be read beside it: the median.
    reading: Option<f64>,
    /// The median of each repetition's share.
    share_of_reading: Option<f64>,
    arithmetic: &'static str,
    share_of_arithmetic: Option<f64>,
}

impl Measured {
    fn of(program: &Program, test: &Test, runs: &[Run], options: &Options) -> Measured {
        let rates: Vec<f64> = test.seconds.iter().map(|s| test.task.tokens() as f64 / s).collect();
        let work = Work::of(program, test.task, options.kv());
        let median = Summary::of(&test.seconds).median;
        let gigaops = work.operations / median / 1e9;
        let shares = test.seconds.iter().zip(&test.reads).map(|(s, read)| work.bytes / s / 1e9 / read);
        let shares: Vec<f64> = shares.collect();
        let median_of = |values: &[f64]| (!values.is_empty()).then(|| Summary::of(values).median);
        let (arithmetic, limit) = arithmetic_limit(program, options);
        Measured {
            tokens_per_second: Summary::of(&rates),
            gigabytes: work.bytes / median / 1e9,
            gigaops,
            reading: median_of(&test.reads),
            share_of_reading: median_of(&shares),
            arithmetic,
            share_of_arithmetic: runs[test.run].limits.map(|limits| gigaops / limit(&limits)),
        }
    }
}

/// The arithmetic that most of the program's weights take part in, and which of the limits is its.
fn arithmetic_limit(program: &Program, options: &Options) -> (&'static str, fn(&Ceilings) -> f64) {
    let mut bytes: BTreeMap<Format, usize> = BTreeMap::new();
    for weight in &program.weights {
        *bytes.entry(weight.format).or_default() += weight.bytes();
    }
    match bytes.into_iter().max_by_key(|(_, n)| *n).map(|(format, _)| format) {
        _ if options.exact => ("f32", |c| c.f32_gflops),
        Some(Format::BF16) if options.activations == Activations::Bits8 => ("bf16", |c| c.bf16_gflops),
        Some(format) if !format.is_float() => match options.activations {
            Activations::Bits16 => ("int16", |c| c.int16_gops),
            Activations::Bits8 => ("int8", |c| c.int8_gops),
        },
        _ => ("f32", |c| c.f32_gflops),
    }
}

/// As in `generate 8 x 128 at 4096`.
fn label(task: Task) -> String {
    let batch = if task.batch == 1 { String::new() } else { format!("{} x ", task.batch) };
    let depth = if task.depth == 0 { String::new() } else { format!(" at {}", task.depth) };
    let phase = if matches!(task.phase, Phase::Prompt(_)) { "prompt" } else { "generate" };
    format!("{phase} {batch}{}{depth}", task.phase.tokens())
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
    for run in runs {
        let Some(limit) = run.limits else { continue };
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
        "{:<26}{:>8}{:>20}{:>10}{:>8}{:>7}{:>9}{:>7}",
        "test", "threads", "tokens/s", "median", "GB/s", "share", "Gop/s", "share"
    )?;
    let percent = |share: Option<f64>| share.map_or("-".into(), |s| format!("{:.0}%", 100.0 * s));
    for (test, result) in tests.iter().zip(results) {
        let Summary { mean, deviation, median } = result.tokens_per_second;
        writeln!(
            out,
            "{:<26}{:>8}{:>20}{:>10.1}{:>8.1}{:>7}{:>9.1}{:>7}",
            label(test.task),
            threads_name(&runs[test.run]),
            format!("{mean:.1} \u{b1} {deviation:.1}"),
            median,
            result.gigabytes,
            percent(result.share_of_reading),
            result.gigaops,
            percent(result.share_of_arithmetic),
        )?;
    }
    Ok(out.flush()?)
}

fn report_json(
    args: &Args,
    name: &str,
    program: &Program,
    runs: &[Run],
    tests: &[Test],
    results: &[Measured],
    peak: Option<u64>,
) -> Json {
    let runs_json = runs.iter().map(|run| {
        let limits = run.limits.map(|limit| {
            json!({
                "read_gb_per_second": limit.read_gbs,
                "int8_gop_per_second": limit.int8_gops,
                "int16_gop_per_second": limit.int16_gops,
                "bf16_gop_per_second": limit.bf16_gflops,
                "f32_gop_per_second": limit.f32_gflops,
            })
        });
        json!({
            "threads": run.threads,
            "devices": run.backends.iter().map(|b| b.device().to_string()).collect::<Vec<_>>(),
            "load_seconds": run.load_seconds,
            "weight_bytes_on_devices": run.weight_bytes,
            "limits": limits,
        })
    });
    let tests_json = tests.iter().zip(results).map(|(test, result)| {
        let Summary { mean, deviation, median } = result.tokens_per_second;
        json!({
            "test": if matches!(test.task.phase, Phase::Prompt(_)) { "prompt" } else { "generate" },
            "tokens": test.task.phase.tokens(),
            "depth": test.task.depth,
            "batch": test.task.batch,
            "threads": runs[test.run].threads,
            "seconds": test.seconds,
            "tokens_per_second": { "mean": mean, "deviation": deviation, "median": median },
            "gb_per_second": result.gigabytes,
            "read_gb_per_second": result.reading,
            "share_of_reading": result.share_of_reading,
            "gop_per_second": result.gigaops,
            "share_of_arithmetic": result.share_of_arithmetic,
            "arithmetic": result.arithmetic,
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
