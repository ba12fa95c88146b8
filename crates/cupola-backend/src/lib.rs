//! The backend contract: who runs ops, how a program is divided among devices, and how they are found.
//!
//! A [`Backend`] is one device. It says which ops it [wants](Backend::wants) and why it declines the others, takes
//! weights once, and [compiles](Backend::compile) runs of consecutive ops into [`Executable`]s. The CPU backend takes
//! every op and is the fallback of every other. A [`Runner`] is a whole program on one or several devices. A
//! [`Registry`] finds devices at run time.

mod contract;
mod device;
mod error;
mod one_op;
mod partition;
mod registry;
mod runner;
mod source;
mod stats;

pub use contract::{Activations, Backend, DeviceWeight, Executable, HostValues, Options, PackedCopy, Segment};
pub use device::{Device, DeviceChoice};
pub use error::{BackendError, Decline, PackedCopyError, SourceError, UploadError, Verdict};
pub use one_op::{AttentionJob, MatmulJob, attention, matmul};
pub use partition::{Assignment, partition};
pub use registry::{Provider, Registry, SelectError, Selection};
pub use runner::{LoadError, Runner};
pub use source::{MemoryWeights, WeightSource};
pub use stats::{OpStats, Stats};
