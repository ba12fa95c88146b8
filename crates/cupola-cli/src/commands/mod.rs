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
use crate::failure::Result;

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
