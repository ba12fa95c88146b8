//! The program `cupola`.

#![deny(clippy::print_stdout, clippy::print_stderr)] // They panic when nobody reads: see `terminal`.

mod args;
mod bench;
mod chat;
mod commands;
mod embedded;
mod failure;
mod hub;
mod interrupt;
mod model;
mod perplexity;
mod quantize;
mod reply;
mod terminal;
mod units;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    match commands::dispatch(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
