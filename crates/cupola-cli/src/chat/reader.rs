//! Reads what the user types: with line editing on a terminal, plain lines otherwise.

use super::input::Input;
use crate::failure::{Result, Within};
use crate::terminal;
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};
use std::io::{self, BufRead, Read};
use std::path::PathBuf;

/// What came from the user.
pub enum Line {
    /// A message, perhaps of several lines.
    Message(String),
    /// Ctrl-C while a message was being typed: it is dropped.
    Dropped,
    /// Ctrl-D, Ctrl-C on an empty line twice, or the end of the input.
    End,
}

/// Where messages come from.
pub struct Reader {
    input: Input,
    source: Source,
    /// Whether the last thing was Ctrl-C on an empty line.
    interrupted: bool,
}

enum Source {
    Editor { editor: Box<DefaultEditor>, history: Option<PathBuf> },
    Lines,
}

/// More than any model's context holds: longer lines are cut into messages of this many bytes.
const LONGEST_LINE: u64 = 64 << 20;

const PROMPT: &str = "> ";
const CONTINUED: &str = "| ";

impl Reader {
    /// Of standard input.
    pub fn new() -> Result<Reader> {
        let source = match terminal::stdin_is_terminal() && terminal::stdout_is_terminal() {
            true => {
                let config = Config::builder().auto_add_history(false).max_history_size(1000)?.build();
                let mut editor = Box::new(DefaultEditor::with_config(config)?);
                let history = history_file();
                if let Some(path) = &history {
                    // Missing at first, and never worth an error.
                    let _ = editor.load_history(path);
                }
                Source::Editor { editor, history }
            }
            false => Source::Lines,
        };
        Ok(Reader { input: Input::default(), source, interrupted: false })
    }

    /// Whether somebody sits there and should be told what can be done.
    pub fn is_interactive(&self) -> bool {
        matches!(self.source, Source::Editor { .. })
    }

    /// The next message.
    pub fn next(&mut self) -> Result<Line> {
        loop {
            let line = match &mut self.source {
                Source::Editor { editor, .. } => {
                    match editor.readline(if self.input.is_open() { CONTINUED } else { PROMPT }) {
                        Ok(line) => line,
                        Err(ReadlineError::Interrupted) => return Ok(self.interrupt()),
                        Err(ReadlineError::Eof) => return Ok(Line::End),
                        Err(error) => return Err(error).within(|| "cannot read from the terminal".into()),
                    }
                }
                Source::Lines => {
                    let mut line = String::new();
                    let read = io::stdin().lock().take(LONGEST_LINE).read_line(&mut line);
                    if read.within(|| "cannot read standard input".into())? == 0 {
                        // A block that nobody ended is complete all the same.
                        return Ok(if self.input.is_open() { Line::Message(self.input.take()) } else { Line::End });
                    }
                    line.truncate(line.trim_end_matches(['\r', '\n']).len());
                    line
                }
            };
            self.interrupted = false;
            if let Some(message) = self.input.push(&line) {
                self.remember(&message);
                return Ok(Line::Message(message));
            }
        }
    }

    /// Ctrl-C: drops what was begun; on an empty line the second one in a row ends.
    fn interrupt(&mut self) -> Line {
        let end = self.interrupted && !self.input.is_open();
        self.input.take();
        self.interrupted = true;
        if end { Line::End } else { Line::Dropped }
    }

    fn remember(&mut self, message: &str) {
        if let Source::Editor { editor, history } = &mut self.source
            && !message.trim().is_empty()
        {
            // A history that cannot be kept is no reason to end a conversation.
            let _ = editor.add_history_entry(message);
            if let Some(path) = history {
                let _ = editor.append_history(path);
            }
        }
    }
}

/// `cupola/chat-history` in the platform's folder for data of programs. Absent if there is no such folder.
fn history_file() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let data = if cfg!(windows) {
        set("APPDATA")?
    } else if cfg!(target_os = "macos") {
        std::env::home_dir()?.join("Library/Application Support")
    } else {
        set("XDG_DATA_HOME").or_else(|| Some(std::env::home_dir()?.join(".local/share")))?
    };
    let folder = data.join("cupola");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join("chat-history"))
}
