//! `cupola chat`.

use crate::args::{ComputeArgs, HubArgs, SamplingArgs};
use crate::chat::{Command, Conversation, HELP, Line, Reader};
use crate::failure::{Failure, Result, Within};
use crate::model::{self, Model};
use crate::reply::{self, Printer};
use crate::{interrupt, terminal};
use cupola::{EngineError, FinishReason, Session};
use std::path::Path;

/// Holds a conversation
///
/// On a terminal: arrows edit and recall lines, Ctrl-C stops a reply but not the program, Ctrl-D ends, /help lists what
/// else can be done. Without a terminal, each line of standard input is a message.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cupola chat model.gguf
  cupola chat Qwen/Qwen3-0.6B --system \"Answer in one sentence.\"
  printf 'Name a river.\\nAnd another.\\n' | cupola chat model.gguf")]
pub struct Args {
    /// Folder, GGUF file or hub name [default: the embedded model]
    #[arg(value_name = "MODEL")]
    model: Option<String>,

    /// A system message before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// Tokens that the conversation may have; 0: as many as the model can [default: the same, at most 8192]
    #[arg(short, long, value_name = "N")]
    context: Option<usize>,

    /// Tell what each reply took, on standard error
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    hub: HubArgs,
}

pub fn run(args: Args) -> Result<()> {
    let model = args.model.as_deref().map_or(Ok(Model::Embedded), Model::named)?;
    let engine = model::load(&model.open(&args.hub)?, &args.compute, args.context, false)?;
    if engine.text()?.templates().is_empty() {
        return Err(EngineError::NoTemplate.into());
    }
    let mut session = engine.session(args.sampling.session(engine.recommended_sampling()))?;
    let mut conversation = Conversation::new(args.system.clone());
    let mut reader = Reader::new()?;
    if reader.is_interactive() {
        let name = engine.loaded().and_then(|l| l.info.name.clone()).unwrap_or_else(|| "the model".into());
        let context = engine.context();
        terminal::quiet_note(&format!(
            "{}, context of {context} tokens. /help lists commands.",
            terminal::printable(&name)
        ));
    }
    interrupt::listen();
    let packing = model::keep_packed_meanwhile(&engine);
    let ended = converse(&args, &mut session, &mut conversation, &mut reader);
    packing.end();
    ended
}

fn converse(args: &Args, session: &mut Session, conversation: &mut Conversation, reader: &mut Reader) -> Result<()> {
    loop {
        let message = match reader.next()? {
            Line::Message(message) if message.trim().is_empty() => continue,
            Line::Message(message) => message,
            Line::Dropped => {
                terminal::quiet_note("Ctrl-C again, Ctrl-D or /exit ends.");
                continue;
            }
            Line::End => return Ok(()),
        };
        match Command::parse(&message) {
            Some(Ok(Command::Exit)) => return Ok(()),
            Some(Ok(command)) => obey(command, conversation),
            Some(Err(reason)) => terminal::error(&reason),
            None => {
                let result = turn(args, session, conversation, &message);
                match result {
                    Err(Failure::Failed(messages)) if reader.is_interactive() => terminal::error(&messages.join(": ")),
                    other => other?,
                }
            }
        }
    }
}

fn obey(command: Command, conversation: &mut Conversation) {
    match command {
        Command::Help => terminal::note(HELP),
        Command::Clear => conversation.clear(),
        Command::System(text) => *conversation = Conversation::new(Some(text)),
        Command::Save(path) => match save(&path, conversation) {
            Ok(()) => terminal::note(&format!("written to {}", path.display())),
            Err(Failure::Failed(messages)) => terminal::error(&messages.join(": ")),
            Err(_) => {}
        },
        Command::Exit => {}
    }
}

fn save(path: &Path, conversation: &Conversation) -> Result<()> {
    let text = serde_json::to_string_pretty(&conversation.messages())?;
    std::fs::write(path, text + "\n").within(|| format!("cannot write {}", path.display()))
}

/// One message and the reply to it.
fn turn(args: &Args, session: &mut Session, conversation: &mut Conversation, message: &str) -> Result<()> {
    conversation.ask(message);
    let options = args.sampling.generate();
    options.cancel.reset();
    let mut printer = Printer::new();
    let reply = session.chat(&conversation.chat(), &options, |event| printer.event(event));
    let cancelled = options.cancel.is_cancelled();
    options.cancel.reset();
    let reply = reply.inspect_err(|error| {
        conversation.take_back();
        if let EngineError::PromptTooLong { .. } = error {
            terminal::warning("the conversation has become too long; /clear begins anew");
        }
    })?;
    printer.finish()?;
    // A reply that was stopped before it began leaves the question open.
    match reply.text.is_empty() && cancelled {
        true => conversation.take_back(),
        false => conversation.reply(&reply.text),
    }
    match reply.finish {
        FinishReason::Cancelled => terminal::quiet_note("[stopped]"),
        FinishReason::ContextFull => {
            let context = session.engine().context();
            terminal::warning(&format!("the context of {context} tokens is full; /clear begins anew"));
        }
        _ => {}
    }
    if args.verbose {
        terminal::quiet_note(&reply::timing(&reply.usage, reply.finish, session.seed()));
    }
    Ok(())
}
