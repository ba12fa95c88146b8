//! Prints hashes of the logits of a prompt over instruction sets, threads, chunks and batches: in exact mode one hash for
//! each model, in default mode one for each model and instruction set.
//!
//! ```sh
//! cargo run --release -p cupola-models --example logit_hashes -- [--tokens N] [--tiers NAME,...] CHECKPOINT...
//! ```
//!
//! Without options, prompts have 40 tokens, and all instruction sets of the machine take part.

#[path = "../tests/common/logit_hashes.rs"]
mod logit_hashes;

use cupola_cpu::Tier;
use logit_hashes::{BATCHES, CHUNKS, Error, THREADS, hashes};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> Result<ExitCode, Error> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut option = |name: &str| {
        let at = args.iter().position(|a| a == name).filter(|at| at + 1 < args.len())?;
        args.drain(at..at + 2).nth(1)
    };
    let length = option("--tokens").map_or(Ok(40), |n| n.parse())?;
    let tiers = match option("--tiers") {
        Some(names) => names.split(',').map(str::to_string).collect(),
        None => Tier::available().iter().map(Tier::to_string).collect::<Vec<_>>(),
    };
    if args.is_empty() || length == 0 {
        eprintln!("usage: logit_hashes [--tokens N] [--tiers NAME,...] CHECKPOINT...");
        return Ok(ExitCode::from(2));
    }
    println!("Prompts of {length} tokens; threads {THREADS:?}, chunks {CHUNKS:?}, sequences together {BATCHES:?}.\n");
    println!("| model | mode | instruction set | runs | hashes |\n|---|---|---|---|---|");
    let mut same = true;
    for path in args.iter().map(PathBuf::from) {
        let mut exact = BTreeSet::new();
        for tier in &tiers {
            exact.extend(row(&path, length, true, tier)?);
        }
        same &= exact.len() == 1;
        for tier in &tiers {
            same &= row(&path, length, false, tier)?.len() == 1;
        }
    }
    println!("\n{}", if same { "No run differs that should not." } else { "RUNS DIFFER" });
    Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints a row; gives its hashes.
fn row(path: &Path, length: usize, exact: bool, tier: &str) -> Result<BTreeSet<u64>, Error> {
    let mut count = 0;
    let mut different = BTreeSet::new();
    for threads in THREADS {
        let found = hashes(path, length, exact, tier, threads)?;
        count += found.len();
        different.extend(found);
    }
    let name = path.file_stem().unwrap_or(path.as_os_str()).display();
    let list: Vec<String> = different.iter().map(|hash| format!("{hash:016x}")).collect();
    println!("| {name} | {} | {tier} | {count} | {} |", if exact { "exact" } else { "default" }, list.join(", "));
    Ok(different)
}
