//! The commands, one file each.

pub mod bench;
pub mod chat;
pub mod devices;
pub mod inspect;
pub mod logits;
pub mod perplexity;
pub mod pull;
pub mod quantize;
pub mod run;

use crate::args::Command;
use crate::failure::{Failure, Result};
use std::path::Path;

/// Runs a command.
pub fn dispatch(command: Command) -> Result<()> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Pull(args) => pull::run(args),
        Command::Quantize(args) => quantize::run(args),
        Command::Logits(args) => logits::run(args),
        Command::Perplexity(args) => perplexity::run(args),
    }
}

/// Refuses an output that is a folder, a device or a pipe: outputs are written aside and renamed, which would put a file
/// in their place.
fn refuse_non_file(out: &Path) -> Result<()> {
    if !out.exists() || out.is_file() {
        return Ok(());
    }
    let kind = if out.is_dir() { "a folder" } else { "a device or pipe" };
    Err(Failure::new(format!("{} is {kind}, not a file; name the file to write", out.display())))
}
