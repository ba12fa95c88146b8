//! What can be wrong with a chat template.

use std::path::PathBuf;

/// Why a chat template could not be loaded or rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// A template file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// `chat_template` of a configuration has a form that nobody writes.
    #[error("chat_template in {origin} is {found}; expected a string or a list of {{\"name\", \"template\"}}")]
    Form {
        /// The file.
        origin: String,
        /// What it holds.
        found: String,
    },
    /// The model has no template of that name.
    #[error("the model has no chat template named \"{name}\"; it has {known}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The template is longer than any real one.
    #[error("the chat template has {size} {unit}, more than the {limit} allowed")]
    TooLong {
        /// Its size.
        size: usize,
        /// Bytes or lines.
        unit: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The template is not valid.
    #[error("chat template, line {line}: {reason}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// The template refused the conversation: the text that it gave to `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    Raised {
        /// The template's words.
        message: String,
    },
    /// Rendering failed: mostly a conversation in a form that the template does not handle.
    #[error("chat template, line {line}: {reason}")]
    Render {
        /// Line, from 1; 0 when unknown.
        line: usize,
        /// What went wrong there.
        reason: String,
    },
    /// Rendering took more steps or memory than any real template needs.
    #[error("the chat template was stopped at line {line}: it does more work than any real template needs")]
    Endless {
        /// Line, from 1; 0 when unknown.
        line: usize,
    },
    /// A value of GGUF metadata is not what it has to be.
    #[error(transparent)]
    Metadata(#[from] crate::error::KeyError),
    /// The tokenizer could not search a message for special tokens.
    #[error(transparent)]
    Tokenizer(#[from] crate::tokenizer::TokenizerError),
}
