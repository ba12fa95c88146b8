//! Run open models locally.

mod cancel;
mod engine;
mod error;
pub mod kv;
mod load;
mod rng;
mod runner;
pub mod sampler;
mod scheduler;
mod session;
mod stop;
mod text;

pub use cancel::CancelToken;
pub use engine::{DEFAULT_CONTEXT, Engine, EngineOptions, EngineParts};
pub use error::{EngineError, StepError};
pub use load::{Loaded, Progress, registry};
pub use rng::Rng;
pub use runner::{RunnerShape, StepRunner};
pub use sampler::{Sampling, SamplingError};
pub use session::{Event, FinishReason, GenerateOptions, Prompt, Reply, Session, SessionOptions, Usage};
pub use stop::StopStrings;
pub use text::{Chat, Text, message};
