//! What can go wrong between a path and a reply.

use crate::sampler::SamplingError;
use cupola_backend::{BackendError, LoadError, PackedCopyError, SelectError};
use cupola_formats::FormatError;
use cupola_formats::template::TemplateError;
use cupola_formats::tokenizer::TokenizerError;
use cupola_models::ModelError;
use std::sync::Arc;

/// A model that could not be loaded, or a request that could not be carried out. After an error in a request the engine
/// and its sessions go on working.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The checkpoint could not be opened.
    #[error("{0}")]
    Checkpoint(#[source] Box<FormatError>),
    /// The checkpoint is not a model that this version runs.
    #[error("{0}")]
    Model(#[source] Box<ModelError>),
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] SelectError),
    /// The weights could not be put on the devices.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An option outside its range.
    #[error("{option} is {found}: it must be {expected}")]
    Option {
        /// The field of [`EngineOptions`](crate::EngineOptions).
        option: &'static str,
        /// What came.
        found: usize,
        /// In words.
        expected: String,
    },
    /// The checkpoint has no tokenizer that can be used.
    #[error("this model cannot read or write text: {reason}. Give token ids instead")]
    NoTokenizer {
        /// What is missing or broken.
        reason: String,
    },
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The checkpoint has no chat template.
    #[error(
        "this model has no chat template, so how it expects a conversation is not known. \
         It may be a base model: give it a text to continue, or take its instruction-tuned version"
    )]
    NoTemplate,
    /// The chat template failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The prompt has no tokens.
    #[error(
        "the prompt is empty: there is nothing to continue. Give at least one token, such as the begin-of-text token"
    )]
    EmptyPrompt,
    /// The prompt does not fit.
    #[error(
        "the prompt has {tokens} tokens, but the context holds {context}. Shorten it, or load the model with a larger \
         context if it allows one"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that the context holds.
        context: usize,
    },
    /// A token id that the model does not have.
    #[error("{place}: token {token} does not exist, the model has the tokens 0 to {}{}", vocab.saturating_sub(1), named(text))]
    Token {
        /// Where it came up: `prompt`, `stop token`.
        place: &'static str,
        /// The id.
        token: u32,
        /// Its text, where the tokenizer knows more tokens than the model.
        text: Option<String>,
        /// Tokens of the model.
        vocab: usize,
    },
    /// A stop string that would stop every reply before it begins.
    #[error("a stop string is empty: it would end every reply at once")]
    EmptyStopString,
    /// The next token could not be chosen.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The key-value cache is full of other sequences.
    #[error(
        "the key-value cache is full: sequences that are being generated hold all of its {limit} blocks of 32 tokens. \
         Run fewer at a time, or load the model with more cache tokens"
    )]
    CacheFull {
        /// Blocks of the cache.
        limit: usize,
    },
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A packed copy could not be written; nothing else depends on it.
    #[error(transparent)]
    PackedCopy(#[from] PackedCopyError),
}

/// A step that failed. Every sequence in it gets the same error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StepError {
    /// The device failed.
    #[error(transparent)]
    Backend(Arc<BackendError>),
    /// The model did not give what it should.
    #[error("the model gave {found} logits where {expected} were asked for; this is a fault of the program")]
    Logits {
        /// Logits asked for.
        expected: usize,
        /// Logits that came.
        found: usize,
    },
    /// An earlier step panicked.
    #[error("the engine is unusable since a step panicked; this is a fault of the program. Load the model again")]
    Broken,
}

impl From<FormatError> for EngineError {
    fn from(error: FormatError) -> EngineError {
        EngineError::Checkpoint(Box::new(error))
    }
}

impl From<ModelError> for EngineError {
    fn from(error: ModelError) -> EngineError {
        EngineError::Model(Box::new(error))
    }
}

impl From<BackendError> for StepError {
    fn from(error: BackendError) -> StepError {
        StepError::Backend(Arc::new(error))
    }
}

impl From<BackendError> for EngineError {
    fn from(error: BackendError) -> EngineError {
        EngineError::Step(error.into())
    }
}

fn named(text: &Option<String>) -> String {
    let advice = "its tokenizer has more tokens than the model and seems to belong to another";
    text.as_ref().map_or(String::new(), |t| format!(" (`{t}`; {advice})"))
}
