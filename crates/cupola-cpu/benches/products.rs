//! Speed of packing and of matrix products for every format, next to the limits of the machine measured in the same run.
//!
//! `cargo bench -p cupola-cpu --bench products -- [threads=N] [tier=NAME] [rows=N] [shape=OUTxIN] [FORMAT...]`

use cupola_cpu::ceilings::{ReadCeiling, measure_ceilings};
use cupola_cpu::products::{Activations, Job, Matrix, Mode, Scratch, products};
use cupola_cpu::{Pool, Tier, pool::default_threads};
use cupola_quant::Format;
use std::time::Instant;

/// Packed weights read by a measurement of one row, so that they come from memory and not from a cache.
const WEIGHT_BYTES: usize = 384 << 20;

struct Settings {
    pool: Pool,
    tier: Tier,
    rows: usize,
    n_out: usize,
    n_in: usize,
    formats: Vec<Format>,
}

fn settings() -> Result<Settings, String> {
    let (mut threads, mut tier, mut rows, mut shape) = (default_threads(), Tier::detect(), 512, (2048, 2048));
    let mut formats = Vec::new();
    let number = |v: &str| v.parse::<usize>().map_err(|e| format!("{v:?}: {e}"));
    for arg in std::env::args().skip(1).filter(|a| a != "--bench") {
        match arg.split_once('=') {
            Some(("threads", v)) => threads = number(v)?,
            Some(("tier", v)) => tier = v.parse().map_err(|e| format!("{e}"))?,
            Some(("rows", v)) => rows = number(v)?,
            Some(("shape", v)) => {
                let (o, i) = v.split_once('x').ok_or("a shape is OUTxIN")?;
                shape = (number(o)?, number(i)?);
            }
            _ => formats.push(Format::from_name(&arg).ok_or_else(|| format!("unknown argument {arg:?}"))?),
        }
    }
    if formats.is_empty() {
        formats = Format::ALL.to_vec();
    }
    Ok(Settings { pool: Pool::new(threads), tier, rows, n_out: shape.0, n_in: shape.1, formats })
}

/// Pseudo-random bytes; what they mean does not change the speed, as long as no scale is a subnormal number.
fn random_rows(format: Format, n: usize) -> Vec<u8> {
    let mut state = 88172645463325252u64;
    let mut bytes = vec![0; format.row_bytes(n).unwrap_or(0)];
    for b in &mut bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *b = 0x20 | (state >> 32) as u8 & 0x9f;
    }
    bytes
}

/// Median seconds of a call; short calls, so that a busy machine disturbs few of them.
fn time(calls: usize, mut f: impl FnMut(usize)) -> f64 {
    f(0);
    let mut times: Vec<f64> = (0..calls)
        .map(|i| {
            let start = Instant::now();
            f(i);
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[calls / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Settings { pool, tier, rows, n_out, n_in, formats } = settings()?;
    let ceilings = measure_ceilings(&pool)?;
    let read = ReadCeiling::new(&pool)?;
    println!("{} threads, {tier}, weights {n_out} x {n_in}, {ceilings:.1?}", pool.threads());
    println!(
        "{:7} {:>6} {:>8} | {:>18} | {:>18} | {:>18} | {:>18} | {:>18} | {:>18}",
        "",
        "pack",
        "ceiling",
        "1 row, 16 bits",
        "1 row, 8 bits",
        "1 row, exact",
        format!("{rows} rows, 16 bits"),
        format!("{rows} rows, 8 bits"),
        format!("{rows} rows, exact")
    );
    println!(
        "{:7} {:>6} {:>8} | {:>18} | {:>18} | {:>18} | {:>18} | {:>18} | {:>18}",
        "", "G/s", "GB/s", "GB/s", "GB/s", "GB/s", "GOP/s", "GOP/s", "GOP/s"
    );
    for format in formats {
        let source = random_rows(format, n_out * n_in);
        let mut matrices = vec![Matrix::pack(format, n_out, n_in, &source, &pool)?];
        let count = WEIGHT_BYTES.div_ceil(matrices[0].packed_bytes());
        let start = Instant::now();
        for _ in 1..=count {
            matrices.push(Matrix::pack(format, n_out, n_in, &source, &pool)?);
        }
        let packed = (count * n_out * n_in) as f64 / start.elapsed().as_secs_f64() / 1e9;
        let bytes = source.len() as f64 / 1e9;

        let x: Vec<f32> = (0..rows * n_in).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect();
        let mut y = vec![0.0; rows * n_out];
        let mut scratch = Scratch::new();
        let mut run = |mode, rows: usize, matrix: &Matrix| {
            let mut jobs = [Job::new(matrix, &mut y[..rows * n_out])];
            products(&pool, tier, mode, &x[..rows * n_in], &[rows], &mut jobs, &mut scratch)
        };
        let mut one = |mode| bytes / time(3 * count, |i| run(mode, 1, &matrices[i % (count + 1)]).unwrap());
        let (wide, narrow) = (Mode::Fast(Activations::Bits16), Mode::Fast(Activations::Bits8));
        let one_wide = one(wide);
        let ceiling = read.measure(&pool);
        let (one_narrow, one_exact) = (one(narrow), one(Mode::Exact));
        let operations = 2e-9 * (rows * n_in * n_out) as f64;
        let mut many = |mode| operations / time(9, |_| run(mode, rows, &matrices[0]).unwrap());
        let (many_wide, many_narrow, many_exact) = (many(wide), many(narrow), many(Mode::Exact));
        let (wide_peak, narrow_peak) = match format {
            Format::BF16 => (ceilings.f32_gflops, ceilings.bf16_gflops),
            _ if format.is_float() => (ceilings.f32_gflops, ceilings.f32_gflops),
            _ => (ceilings.int16_gops, ceilings.int8_gops),
        };
        let share = |value: f64, of: f64| format!("{value:9.1} = {:3.0} %", 100.0 * value / of);
        println!(
            "{:7} {packed:6.2} {ceiling:8.1} | {:>18} | {:>18} | {:>18} | {:>18} | {:>18} | {:>18}",
            format.name(),
            share(one_wide, ceiling),
            share(one_narrow, ceiling),
            share(one_exact, ceiling),
            share(many_wide, wide_peak),
            share(many_narrow, narrow_peak),
            share(many_exact, ceilings.f32_gflops),
        );
    }
    Ok(())
}
