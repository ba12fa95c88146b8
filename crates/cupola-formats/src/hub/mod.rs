//! Models from the Hugging Face hub, fetched into the cache that other programs use too.
//!
//! Only the files that running the model needs are fetched; those that are there already are not fetched again, and a
//! transfer that broke is continued. The library reads no environment variable: what `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`
//! and `HF_HUB_OFFLINE` mean to say comes in [`HubOptions`].

mod error;
mod fetch;
mod files;
mod name;
mod watched;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

pub use error::HubError;
pub use name::HubModel;

/// Where and how to fetch.
#[derive(Clone)]
pub struct HubOptions {
    /// The cache's folder: `hub` in `HF_HOME`, that is `~/.cache/huggingface/hub` usually.
    pub cache: PathBuf,
    /// Address of the hub.
    pub endpoint: String,
    /// Access token, for private and gated models.
    pub token: Option<String>,
    /// Use what was fetched before and ask nobody.
    pub offline: bool,
    /// How often to try again what may succeed another time.
    pub retries: u32,
    /// How long to wait while nothing comes.
    pub stall_timeout: Duration,
}

impl HubOptions {
    /// The public hub, five retries, a minute's patience.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self {
            cache: cache.into(),
            endpoint: "https://huggingface.co".to_owned(),
            token: None,
            offline: false,
            retries: 5,
            stall_timeout: Duration::from_secs(60),
        }
    }
}

/// The token stays out of messages.
impl std::fmt::Debug for HubOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("HubOptions");
        debug.field("cache", &self.cache).field("endpoint", &self.endpoint).field("token", &self.token.is_some());
        debug.field("offline", &self.offline).field("retries", &self.retries).finish_non_exhaustive()
    }
}

/// How far fetching has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer<'a> {
    /// The file; empty while the hub is asked about the model.
    pub file: &'a str,
    /// Its number among the files, from 1; 0 if it is not known.
    pub number: usize,
    /// Number of files.
    pub count: usize,
    /// Bytes that are there.
    pub done: u64,
    /// Bytes of the whole file; 0 while they are not known.
    pub total: u64,
}

/// Sees every step, at least ten times a second also while nothing happens, and can stop the fetching by returning
/// [`ControlFlow::Break`].
pub type Watch<'a> = dyn FnMut(&Transfer<'_>) -> ControlFlow<()> + 'a;

/// Fetches a model, or finds it in the cache when offline. Gives the folder or GGUF file to open.
///
/// # Errors
/// See [`HubError`]. After an error or a stop the cache is usable; the next call continues where this one ended.
pub fn fetch(model: &HubModel, options: &HubOptions, watch: &mut Watch<'_>) -> Result<PathBuf, HubError> {
    if options.offline {
        return fetch::cached(model, options);
    }
    fetch::Fetch::new(model, options, watch)?.run()
}
