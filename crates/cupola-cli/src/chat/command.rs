//! What a user can ask for between messages.

use std::path::PathBuf;

/// A line that begins with a slash.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    Help,
    Clear,
    System(String),
    Save(PathBuf),
    Exit,
}

/// The answer to `/help`.
pub const HELP: &str = "\
/clear         forget the conversation, but not the system message
/system TEXT   set the system message (without TEXT: none) and start anew
/save FILE     write the conversation as JSON
/help          this list
/exit          end; so does Ctrl-D
\\ at the end   continue the message on the next line
\"\"\"            begin and end a message of several lines
Ctrl-C         stop the reply; at the prompt: drop the line, twice: end";

impl Command {
    /// The command in this message; absent if it is a message for the model.
    pub fn parse(message: &str) -> Option<Result<Command, String>> {
        let text = message.trim();
        let rest = text.strip_prefix('/')?;
        // A message of several lines, or a path, is none of ours.
        if message.contains('\n') || rest.split_whitespace().next().is_some_and(|word| word.contains('/')) {
            return None;
        }
        let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let argument = argument.trim();
        let none = |command| match argument {
            "" => Ok(command),
            _ => Err(format!("/{name} takes nothing after it")),
        };
        Some(match name {
            "help" | "?" => none(Command::Help),
            "clear" => none(Command::Clear),
            "system" => Ok(Command::System(argument.into())),
            "save" if argument.is_empty() => Err("/save needs the name of a file".into()),
            "save" => Ok(Command::Save(argument.into())),
            "exit" | "quit" | "bye" => none(Command::Exit),
            _ => Err(format!("there is no command /{name}; /help lists them")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_messages() {
        assert_eq!(Command::parse("/help"), Some(Ok(Command::Help)));
        assert_eq!(Command::parse(" /system  Be brief. "), Some(Ok(Command::System("Be brief.".into()))));
        assert_eq!(Command::parse("/system"), Some(Ok(Command::System(String::new()))));
        assert_eq!(Command::parse("/save a b.json"), Some(Ok(Command::Save("a b.json".into()))));
        for wrong in ["/save", "/clear now", "/nope", "/"] {
            assert!(matches!(Command::parse(wrong), Some(Err(_))), "{wrong}");
        }
        for message in ["hello", "", "/usr/bin is a folder", "/clear\nthis", "1/2"] {
            assert_eq!(Command::parse(message), None, "{message}");
        }
    }
}
