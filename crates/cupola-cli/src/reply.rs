//! Replies as they come, and what they took.

use crate::failure::Result;
use crate::terminal;
use cupola::{Event, FinishReason, Reply, Usage};
use serde_json::{Value as Json, json};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::time::Duration;

/// Writes a reply to standard output piece by piece, and stops it when nobody reads any more.
pub struct Printer {
    /// Whether a person reads.
    terminal: bool,
    ends_with_newline: bool,
    error: Option<io::Error>,
}

impl Printer {
    /// For one reply.
    pub fn new() -> Printer {
        Printer { terminal: terminal::stdout_is_terminal(), ends_with_newline: true, error: None }
    }

    /// Takes an event of the reply.
    pub fn event(&mut self, event: Event<'_>) -> ControlFlow<()> {
        let Event::Text(text) = event else { return ControlFlow::Continue(()) };
        match self.write(text) {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                self.error = Some(e);
                ControlFlow::Break(())
            }
        }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.ends_with_newline = text.ends_with('\n');
        let mut out = io::stdout().lock();
        match self.terminal {
            true => out.write_all(terminal::printable(text).as_bytes())?,
            false => out.write_all(text.as_bytes())?,
        }
        out.flush()
    }

    /// Ends the last line; gives the error that stopped the reply, if one did.
    pub fn finish(mut self) -> Result<()> {
        if self.error.is_none() && !self.ends_with_newline {
            self.error = self.write("\n").err();
        }
        Ok(self.error.map_or(Ok(()), Err)?)
    }
}

/// The reason as JSON and timing lines name it.
pub fn finish_name(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::StopString => "stop_string",
        FinishReason::Length => "length",
        FinishReason::ContextFull => "context_full",
        FinishReason::Cancelled => "cancelled",
    }
}

/// A reply for programs.
pub fn json(reply: &Reply, seed: u64, load: Duration) -> Json {
    let Usage { prompt_tokens, cached_tokens, reply_tokens, prompt_time, reply_time } = reply.usage;
    json!({
        "text": reply.text,
        "tokens": reply.tokens,
        "finish_reason": finish_name(reply.finish),
        "seed": seed,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "cached_tokens": cached_tokens,
            "reply_tokens": reply_tokens,
        },
        "timings": {
            "load_seconds": load.as_secs_f64(),
            "prompt_seconds": prompt_time.as_secs_f64(),
            "reply_seconds": reply_time.as_secs_f64(),
            "prompt_tokens_per_second": rate(prompt_tokens - cached_tokens, prompt_time),
            "reply_tokens_per_second": rate(reply_tokens, reply_time),
        },
    })
}

/// A reply's times in a line.
pub fn timing(usage: &Usage, finish: FinishReason, seed: u64) -> String {
    let speed = |tokens, time| rate(tokens, time).map_or(String::new(), |r| format!(" at {r:.1}/s"));
    let cached =
        if usage.cached_tokens > 0 { format!(", {} from the cache", usage.cached_tokens) } else { String::new() };
    format!(
        "[prompt: {} tokens{}{cached}; reply: {} tokens{}; ended by {}; seed {seed}]",
        usage.prompt_tokens,
        speed(usage.prompt_tokens - usage.cached_tokens, usage.prompt_time),
        usage.reply_tokens,
        speed(usage.reply_tokens, usage.reply_time),
        finish_name(finish),
    )
}

/// Tokens per second; absent if that would not be a number.
fn rate(tokens: usize, time: Duration) -> Option<f64> {
    let seconds = time.as_secs_f64();
    (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds)
}
