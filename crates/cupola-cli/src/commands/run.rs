//! `cupola run`.

use crate::args::{ComputeArgs, HubArgs, SamplingArgs};
use crate::failure::{Failure, Result, Within};
use crate::model::{self, Model};
use crate::reply::{self, Printer};
use crate::{embedded, interrupt, terminal};
use cupola::{Chat, Engine, FinishReason, Session, message};
use std::io::Read;
use std::ops::ControlFlow;
use std::time::Instant;

/// Answers one prompt, or continues a text
///
/// A model with a chat template answers the PROMPT as a user's message; --raw makes it continue the text instead, as
/// models without a template always do. The reply goes to standard output, everything else to standard error.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cupola run                                    the embedded model tells a story
  cupola run --prompt \"Write a story about a baker and a dragon.\"
  cupola run model.gguf \"Why is the sky blue?\"
  cupola run base-model.gguf --raw \"Once upon a time\" -n 100 --temp 0
  git diff | cupola run Qwen/Qwen3-0.6B - --system \"Write a commit message.\"
  cupola run model.gguf \"List three rivers\" --json")]
pub struct Args {
    /// Folder, GGUF file or hub name [default: the embedded model]
    #[arg(value_name = "MODEL")]
    model: Option<String>,

    /// What to answer or continue; - reads standard input [default, for the embedded model: asks for a story]
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,

    /// The prompt, where no MODEL comes before it
    #[arg(long = "prompt", value_name = "TEXT", conflicts_with = "prompt")]
    prompt_flag: Option<String>,

    /// Continue the text, even if the model has a chat template
    #[arg(long)]
    raw: bool,

    /// A system message before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,

    /// Tokens that prompt and reply may have together; 0: as many as the model can [default: the same, at most 8192]
    #[arg(short, long, value_name = "N")]
    context: Option<usize>,

    /// Print the whole reply as JSON when it is complete: text, tokens, finish reason, usage, timings
    #[arg(long)]
    json: bool,

    /// Tell what the reply took, on standard error
    #[arg(short, long)]
    verbose: bool,

    /// Measure every operation and print a table, on standard error
    #[arg(long)]
    profile: bool,

    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    hub: HubArgs,
}

pub fn run(args: Args) -> Result<()> {
    let model = args.model.as_deref().map_or(Ok(Model::Embedded), Model::named);
    let model = model.map_err(|e| hint_at_prompt(e, &args))?;
    let prompt = prompt(&args, &model)?;

    let start = Instant::now();
    let engine = model::load(&model.open(&args.hub)?, &args.compute, args.context, args.profile)?;
    let load = start.elapsed();
    let mut session = engine.session(args.sampling.session(engine.recommended_sampling()))?;
    interrupt::listen();

    let mut printer = Printer::new();
    let on_event = |event: cupola::Event<'_>| {
        if args.json { ControlFlow::Continue(()) } else { printer.event(event) }
    };
    let reply = answer(&args, &mut session, prompt, on_event)?;
    match args.json {
        true => terminal::json_line(&reply::json(&reply, session.seed(), load))?,
        false => printer.finish()?,
    }
    if args.verbose {
        terminal::quiet_note(&reply::timing(&reply.usage, reply.finish, session.seed()));
    }
    if args.profile {
        print_profile(&engine);
    }
    // After the reply, so that nobody waits for it.
    model::keep_packed(&engine);
    match reply.finish {
        FinishReason::Cancelled => Err(Failure::Interrupted),
        FinishReason::ContextFull if !args.json => {
            let advice = "; --context gives more, if the model can";
            terminal::warning(&format!("the context of {} tokens is full{advice}", engine.context()));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// More than any model's context holds: what an endless standard input may take of memory.
const LONGEST_PROMPT: u64 = 64 << 20;

/// The prompt: the second positional argument, the flag, or the default for the embedded model.
fn prompt(args: &Args, model: &Model) -> Result<String> {
    match args.prompt.as_deref().or(args.prompt_flag.as_deref()) {
        Some("-") => {
            let mut text = String::new();
            let read = std::io::stdin().take(LONGEST_PROMPT + 1).read_to_string(&mut text);
            if read.within(|| "cannot read standard input".into())? as u64 > LONGEST_PROMPT {
                return Err(Failure::new(format!("the prompt has more than {LONGEST_PROMPT} bytes; no context is so long")));
            }
            // The newline that ends the last line is not part of what was meant.
            text.truncate(text.trim_end_matches(['\r', '\n']).len());
            Ok(text)
        }
        Some(text) => Ok(text.into()),
        None if *model == Model::Embedded => Ok(embedded::PROMPT.into()),
        None => Err(Failure::Usage(
            "there is no prompt: give it after MODEL, or - to read standard input; \"cupola chat MODEL\" holds a conversation"
                .into(),
        )),
    }
}

/// Whoever gives one argument that is no model may have meant a prompt.
fn hint_at_prompt(failure: Failure, args: &Args) -> Failure {
    match (failure, &args.model, &args.prompt) {
        (Failure::Failed(mut chain), Some(text), None) => {
            if let Some(message) = chain.first_mut() {
                message.push_str(&format!(". For a prompt to the embedded model: cupola run --prompt {text:?}"));
            }
            Failure::Failed(chain)
        }
        (other, ..) => other,
    }
}

fn answer(
    args: &Args,
    session: &mut Session,
    prompt: String,
    on_event: impl FnMut(cupola::Event<'_>) -> ControlFlow<()>,
) -> Result<cupola::Reply> {
    let options = args.sampling.generate();
    let has_template = session.engine().text().is_ok_and(|text| !text.templates().is_empty());
    if args.raw || !has_template {
        if args.system.is_some() {
            return Err(Failure::Usage("--system needs a model with a chat template, which this one lacks".into()));
        }
        return Ok(session.generate(prompt, &options, on_event)?);
    }
    let system = args.system.iter().map(|text| message("system", text));
    let messages = system.chain([message("user", &prompt)]).collect();
    Ok(session.chat(&Chat::new(messages), &options, on_event)?)
}

fn print_profile(engine: &Engine) {
    for backend in engine.loaded().iter().flat_map(|l| &l.backends) {
        terminal::note(&format!("{}\n{}", backend.device(), backend.stats()));
    }
}
