//! The parts of a conversation in the terminal.

mod command;
mod conversation;
mod input;
mod reader;

pub use command::{Command, HELP};
pub use conversation::Conversation;
pub use reader::{Line, Reader};
