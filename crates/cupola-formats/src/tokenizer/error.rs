//! What can be wrong with a tokenizer.

use std::path::PathBuf;

/// Why a tokenizer could not be loaded or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A folder holds no tokenizer that can be used.
    #[error("{} holds no tokenizer.json{hint}", folder.display())]
    Missing {
        /// The folder that was searched.
        folder: PathBuf,
        /// What was found instead and what to do about it; empty or starting with `;`.
        hint: String,
    },
    /// A tokenizer file does not say what it should.
    #[error("{what} is not usable: {reason}")]
    Invalid {
        /// The file or part of it.
        what: String,
        /// The rule it breaks.
        reason: String,
    },
    /// The tokenizer stored in GGUF metadata breaks a rule.
    #[error("the tokenizer in the GGUF metadata is not usable: {0}")]
    Gguf(String),
    /// A value of the GGUF metadata is missing or is not what it has to be.
    #[error(transparent)]
    Metadata(#[from] crate::error::KeyError),
    /// GGUF metadata names a tokenizer model that is not implemented.
    #[error("tokenizer.ggml.model is \"{name}\"; known are {known}")]
    UnknownModel {
        /// The name found.
        name: String,
        /// The names that would work.
        known: &'static str,
    },
    /// GGUF metadata names a pre-tokenizer that is not implemented. Guessing would give slightly wrong ids everywhere.
    #[error("tokenizer.ggml.pre is \"{name}\", which is not implemented; known are {known}")]
    UnknownPreTokenizer {
        /// The name found.
        name: String,
        /// The names that would work.
        known: String,
    },
    /// A token id from outside is not in the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size} tokens (ids 0 to {})", vocab_size.saturating_sub(1))]
    IdOutOfRange {
        /// The id.
        id: u32,
        /// Number of ids in the vocabulary.
        vocab_size: usize,
    },
    /// The text is longer than any context. Encoding takes about a hundred times its memory.
    #[error("the text has {bytes} bytes, more than the {limit} that can be tokenized at once; no context is so long")]
    TooLong {
        /// Of the text.
        bytes: usize,
        /// The most there may be.
        limit: usize,
    },
    /// The text could not be encoded.
    #[error("the text cannot be tokenized: {0}")]
    Encode(String),
}
