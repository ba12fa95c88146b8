//! Why a checkpoint is not a model that can be run.

use crate::rope::RopeError;
use cupola_formats::{Dtype, KeyError};
use cupola_graph::GraphError;

/// A checkpoint that this version cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// No such architecture here.
    #[error("architecture \"{name}\" is not supported; supported are {known}")]
    UnknownArchitecture {
        /// As the checkpoint names it.
        name: String,
        /// Every name that would do.
        known: String,
    },
    /// Weights alone do not say what model they are.
    #[error(
        "{path} has no config.json beside its weights, so that nothing says what model it is; open the folder that has both"
    )]
    NoConfig {
        /// What was opened.
        path: String,
    },
    /// The config says that the weights are quantised in a way that is not supported.
    #[error(
        "the weights are quantised with {method}, which is not supported yet; use an unquantised or a GGUF checkpoint"
    )]
    Quantized {
        /// As the config names it.
        method: String,
    },
    /// A tensor that the architecture needs is not there.
    #[error("tensor `{tensor}` is missing; every {family} model has it. Is the checkpoint complete?")]
    MissingTensor {
        /// Its name.
        tensor: String,
        /// The architecture.
        family: &'static str,
    },
    /// A tensor that is not as large as the hyperparameters say.
    #[error("tensor `{tensor}` has shape {found:?}, the model's configuration makes it {expected:?}")]
    Shape {
        /// Its name.
        tensor: String,
        /// Outermost dimension first.
        expected: Vec<usize>,
        /// Outermost dimension first.
        found: Vec<usize>,
    },
    /// A tensor in a type that cannot be used as a weight.
    #[error("tensor `{tensor}` is stored as {dtype}, which is not supported yet as a weight of {columns} columns")]
    Format {
        /// Its name.
        tensor: String,
        /// How it is stored.
        dtype: Dtype,
        /// Length of a row.
        columns: usize,
    },
    /// A tensor that belongs to the model but that this version would not use: its answers would be wrong.
    #[error(
        "tensor `{tensor}` has no place in a {family} model as configured; running without it would give wrong answers"
    )]
    Unused {
        /// Its name.
        tensor: String,
        /// The architecture.
        family: &'static str,
    },
    /// A hyperparameter outside its range, or two that contradict each other.
    #[error("{key} should be {expected}, found {found}")]
    Hyperparameter {
        /// As the checkpoint names it.
        key: String,
        /// What it has to be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A hyperparameter that is missing or of the wrong type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Rotary embedding parameters out of range.
    #[error(transparent)]
    Rope(#[from] RopeError),
    /// Parts that do not fit together.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl ModelError {
    pub(crate) fn hyperparameter(key: impl Into<String>, expected: impl Into<String>, found: impl ToString) -> Self {
        ModelError::Hyperparameter { key: key.into(), expected: expected.into(), found: found.to_string() }
    }
}
