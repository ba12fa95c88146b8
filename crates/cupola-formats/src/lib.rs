//! Checkpoints on disk to typed views: GGUF, safetensors, Hugging Face configs, tokenizers, chat templates.

mod bytes;
pub mod checkpoint;
pub mod config;
mod error;
mod getters;
pub mod gguf;
#[cfg(feature = "hub")]
pub mod hub;
mod read;
pub mod safetensors;
mod tensor;

pub use checkpoint::{Checkpoint, CheckpointKind, Config};
pub use error::{FormatError, FormatErrorKind, KeyError};
pub use tensor::{Dtype, NotAWeight, Tensor};

pub mod template;
pub mod tokenizer;
