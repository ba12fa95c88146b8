//! `cupola pull`.

use crate::args::HubArgs;
use crate::failure::Result;
use crate::terminal;
use cupola_formats::hub::HubModel;
use std::io::Write;

/// Fetches a model from the Hugging Face hub
///
/// Only what is needed to run it is fetched, into the cache that other programs share. What was fetched before is not
/// fetched again, and an interrupted download goes on where it stopped. The local path is printed.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cupola pull Qwen/Qwen3-0.6B
  cupola pull org/model-GGUF:Q4_K_M             the GGUF file of that type
  cupola pull org/private-model --hf-token hf_...
  cupola inspect \"$(cupola pull Qwen/Qwen3-0.6B)\"")]
pub struct Args {
    /// ORG/NAME, with :FILE or :TYPE for one of several GGUF files, and @REVISION
    #[arg(value_name = "NAME", value_parser = |name: &str| name.parse::<HubModel>())]
    model: HubModel,

    #[command(flatten)]
    hub: HubArgs,
}

pub fn run(args: Args) -> Result<()> {
    let path = args.hub.fetch(&args.model)?;
    let mut out = terminal::out();
    writeln!(out, "{}", path.display())?;
    Ok(out.flush()?)
}
