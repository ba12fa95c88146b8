//! Run open models locally.
//!
//! An [`Engine`] is a loaded model. A [`Session`] replies to prompts and conversations with it; there can be any number,
//! on any threads, and those that generate at the same time share the steps of the model. Text streams through a
//! callback, which can stop the reply, as can a [`CancelToken`] from another thread.
//!
//! ```no_run
//! use cupola::{Chat, Engine, EngineOptions, Event, GenerateOptions, SessionOptions, message};
//! use std::ops::ControlFlow;
//!
//! let engine = Engine::load("path/to/model.gguf", &EngineOptions::default())?;
//! let mut session = engine.session(SessionOptions::default())?;
//! let chat = Chat::new(vec![message("user", "Why is the sky blue?")]);
//! let reply = session.chat(&chat, &GenerateOptions::default(), |event| {
//!     if let Event::Text(text) = event {
//!         print!("{text}");
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! println!("\n{} tokens, ended by {:?}", reply.tokens.len(), reply.finish);
//! # Ok::<(), cupola::EngineError>(())
//! ```
//!
//! What is promised:
//!
//! - The same prompt, settings and seed give the same reply, whatever runs beside it and whatever is in the cache.
//! - Nothing is cut silently: a prompt that is too long is an error, a full context ends the reply and says so.
//! - The library never prints, never reads the environment, and never ends the process.

mod cancel;
mod engine;
mod error;
mod kv;
mod load;
mod packed;
mod rng;
mod runner;
pub mod sampler;
mod scheduler;
mod session;
mod stop;
mod text;

pub use cancel::CancelToken;
pub use engine::{CacheUse, DEFAULT_CONTEXT, Engine, EngineOptions, EngineParts, Evaluation};
pub use error::{EngineError, StepError};
pub use load::{Loaded, Progress, registry};
pub use packed::PackedFolder;
pub use rng::Rng;
pub use runner::{RunnerShape, StepRunner};
pub use sampler::{Sampling, SamplingError};
pub use session::{Event, FinishReason, GenerateOptions, Prompt, Reply, Session, SessionOptions, Usage};
pub use stop::StopStrings;
pub use text::{Chat, Text, message};
