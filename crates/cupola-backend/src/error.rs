//! Declines and errors.

use cupola_graph::GraphError;
use std::path::PathBuf;

/// Whether a backend takes an op.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It does.
    Take,
    /// It does not.
    Decline(Decline),
}

/// Why a backend does not take an op or a weight. Not an error: the next backend in line takes it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Decline {
    /// No kernel for this kind of op.
    #[error("no kernel for {0}")]
    Op(String),
    /// No kernel for this weight format.
    #[error("no kernel for weights in {0}")]
    Format(String),
    /// A size that its kernels do not handle.
    #[error("{what} is {found}, its kernels need {needed}")]
    Shape {
        /// The size.
        what: String,
        /// What came.
        found: usize,
        /// In words: `a multiple of 64`.
        needed: String,
    },
    /// Too little work to be worth a dispatch.
    #[error("{0}")]
    TooSmall(String),
    /// Not enough memory on the device.
    #[error("{needed} bytes are needed, {available} are free")]
    Memory {
        /// Bytes that the weight or state takes.
        needed: u64,
        /// Bytes that the device has left.
        available: u64,
    },
    /// Not available in the mode that was asked for, such as exact mode.
    #[error("not available in {0}")]
    Mode(String),
}

/// Parameters that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {message}")]
pub struct SourceError {
    /// Of the weight or vector.
    pub name: String,
    /// What went wrong.
    pub message: String,
}

/// Why a weight is not on a device.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The device does not take it; another may.
    #[error(transparent)]
    Decline(#[from] Decline),
    /// It could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// A device that could not do what it had taken on.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// Memory ran out.
    #[error("{device}: out of memory: {needed} bytes are needed{}. {advice}", available.map_or(String::new(), |a| format!(", {a} are free")))]
    OutOfMemory {
        /// The device, as [`Device`](crate::Device) prints itself.
        device: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes that were left, where known.
        available: Option<u64>,
        /// What a user can do.
        advice: String,
    },
    /// The device is gone or refuses to work.
    #[error("{device}: {message}")]
    Device {
        /// The device, as [`Device`](crate::Device) prints itself.
        device: String,
        /// What it said.
        message: String,
    },
    /// A program or step that does not fit together.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// A packed copy could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot keep packed weights in {}: {reason}", path.display())]
pub struct PackedCopyError {
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    pub reason: String,
}
