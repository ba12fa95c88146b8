//! Hugging Face configs: `config.json` and `generation_config.json`, as transformers 4 and 5 write them.

mod generation;
mod hf;
mod json;
mod rope;

pub use generation::GenerationConfig;
pub use hf::HfConfig;
pub use json::JsonError;
pub(crate) use json::read_json;
pub use rope::{LongRope, RopeKind, RopeParameters, Yarn};
