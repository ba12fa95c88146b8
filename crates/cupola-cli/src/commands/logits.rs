//! `cupola logits`.

use crate::args::{ComputeArgs, HubArgs};
use crate::failure::{Failure, Result, Within};
use crate::model::{self, Model};
use crate::{terminal, units};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use std::path::PathBuf;

/// Writes the logits after every token to a safetensors file, to compare engines with
///
/// The file holds `tokens` (i32), `logits` (f32, a row over the vocabulary for each token) and, with --greedy, `greedy`
/// (i32): the tokens that follow when the likeliest is taken each time.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cupola logits model.gguf --tokens 1,2,3 --out logits.safetensors
  cupola logits ./checkpoint --prompt \"Once upon a time\" --greedy 16 --exact --out logits.safetensors")]
pub struct Args {
    /// Folder, GGUF file, hub name or `embedded`
    #[arg(value_name = "MODEL")]
    model: String,

    /// Token ids, separated by commas
    #[arg(
        long,
        value_name = "IDS",
        value_delimiter = ',',
        required_unless_present = "prompt",
        conflicts_with = "prompt"
    )]
    tokens: Vec<u32>,

    /// A text; begin-of-text is added if the model wants it
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,

    /// Also choose the N following tokens greedily
    #[arg(long, value_name = "N")]
    greedy: Option<usize>,

    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,

    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    hub: HubArgs,
}

pub fn run(args: Args) -> Result<()> {
    super::refuse_non_file(&args.out)?;
    let checkpoint = Model::named(&args.model)?.open(&args.hub)?;
    // The model's own limit: a checkpoint is compared up to its last position.
    let engine = model::load(&checkpoint, &args.compute, Some(0), false)?;
    let tokens = match &args.prompt {
        Some(text) => engine.text()?.encode_prompt(text)?,
        None => args.tokens,
    };
    let logits = engine.logits(&tokens)?;
    let greedy = args.greedy.map(|n| engine.greedy(&tokens, n)).transpose()?;
    if greedy.as_ref().is_some_and(|g| Some(g.len()) != args.greedy) {
        return Err(Failure::new(format!(
            "the context of {} tokens ended before the greedy tokens did",
            engine.context()
        )));
    }

    let ids = |ids: &[u32]| -> Vec<u8> { ids.iter().flat_map(|id| id.to_le_bytes()).collect() };
    let floats: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
    let width = logits.len().checked_div(tokens.len()).unwrap_or(0);
    let token_bytes = ids(&tokens);
    let greedy_bytes = greedy.as_ref().map(|g| ids(g));
    let view = |dtype, shape, bytes| TensorView::new(dtype, shape, bytes);
    let mut tensors = vec![
        ("tokens", view(Dtype::I32, vec![tokens.len()], &token_bytes)?),
        ("logits", view(Dtype::F32, vec![tokens.len(), width], &floats)?),
    ];
    if let (Some(greedy), Some(bytes)) = (&greedy, &greedy_bytes) {
        tensors.push(("greedy", view(Dtype::I32, vec![greedy.len()], bytes)?));
    }
    serialize_to_file(tensors, None, &args.out).within(|| format!("cannot write {}", args.out.display()))?;
    let size = units::bytes(floats.len() as u64);
    terminal::note(&format!("{}: logits of {} tokens, {size}", args.out.display(), tokens.len()));
    Ok(())
}
