//! Errors of this crate: what was being read, what was expected, what was found.

use std::path::{Path, PathBuf};

use crate::config::JsonError;
use crate::gguf::GgufError;
use crate::safetensors::SafetensorsError;

/// A checkpoint, or one of its files, cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {kind}", path.display())]
pub struct FormatError {
    /// The file or folder at fault.
    pub path: PathBuf,
    /// What is wrong with it. Part of the message, so not a source besides.
    pub kind: Box<FormatErrorKind>,
}

/// What is wrong with a file or folder.
#[derive(Debug, thiserror::Error)]
pub enum FormatErrorKind {
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A rule of GGUF is broken.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A rule of safetensors is broken.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// A JSON file does not parse.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// A value of a config or of GGUF metadata is missing or has the wrong type.
    // The message without the file, which comes first anyway.
    #[error("`{}` should be {}, found {}", .0.key, .0.expected, .0.found)]
    Key(KeyError),
    /// The path leads to nothing that this crate reads.
    #[error("{0}")]
    NotACheckpoint(String),
}

impl FormatError {
    /// `kind` found at `path`.
    pub fn new(path: impl Into<PathBuf>, kind: impl Into<FormatErrorKind>) -> Self {
        FormatError { path: path.into(), kind: Box::new(kind.into()) }
    }
}

impl From<KeyError> for FormatError {
    fn from(error: KeyError) -> Self {
        FormatError { path: error.file.clone(), kind: Box::new(FormatErrorKind::Key(error)) }
    }
}

/// A value is missing from a config or from GGUF metadata, or is not what it has to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: `{key}` should be {expected}, found {found}", file.display())]
pub struct KeyError {
    /// The file that the value belongs to.
    pub file: PathBuf,
    /// The key, with the keys that lead to it (`rope_scaling.factor`).
    pub key: String,
    /// What was expected, as a noun phrase (`a whole number from 0 to 4294967295`).
    pub expected: String,
    /// What was there; `nothing` for a missing key.
    pub found: String,
}

impl KeyError {
    pub(crate) fn new(
        file: &Path,
        key: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        KeyError { file: file.into(), key: key.into(), expected: expected.into(), found: found.into() }
    }
}
