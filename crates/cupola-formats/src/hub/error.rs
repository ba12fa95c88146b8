use std::path::PathBuf;

/// Why a model could not be fetched from the hub.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The text is no name of a model.
    #[error(
        "\"{name}\" is no name on the hub: {reason}. Names look like org/name, org/name@revision or org/name:Q4_K_M"
    )]
    Name {
        /// The text.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Offline, and the model was not fetched before.
    #[error("{model} is not in the cache {}, and fetching is off: fetch it once with a connection", cache.display())]
    NotCached {
        /// The model.
        model: String,
        /// The cache's folder.
        cache: PathBuf,
    },
    /// The hub wants a token, or does not know the model: it does not say which.
    #[error(
        "the hub refuses {model} (HTTP {status}): there is no such model (check the spelling), or it is private or gated{}",
        if *with_token { ", and the token does not give access to it" } else { " and needs an access token" }
    )]
    Refused {
        /// The model or file asked for.
        model: String,
        /// The status, 401 or 403.
        status: u16,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// The hub does not know the model, revision or file.
    #[error("the hub has no {what} (HTTP 404): check the spelling")]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// The repository holds nothing that can be run.
    #[error("{model} has neither a GGUF file nor config.json with safetensors; it has {files}")]
    NoModel {
        /// The model.
        model: String,
        /// Some of its files.
        files: String,
    },
    /// No GGUF file fits the selector.
    #[error("{model} has no GGUF file for \"{selector}\"; it has {files}")]
    NoSuchFile {
        /// The model.
        model: String,
        /// What was asked for.
        selector: String,
        /// The GGUF files that there are.
        files: String,
    },
    /// A selector fits several GGUF files.
    #[error("{model} has several GGUF files for \"{selector}\"; name one of {files}")]
    Ambiguous {
        /// The model.
        model: String,
        /// What was asked for; empty if nothing was.
        selector: String,
        /// The files that fit.
        files: String,
    },
    /// The hub answered with an error.
    #[error("fetching {what} from {endpoint}: HTTP {status}{}", if *status == 429 { ", too many requests: try again later" } else { "" })]
    Status {
        /// What was asked for.
        what: String,
        /// The hub.
        endpoint: String,
        /// The status.
        status: u16,
    },
    /// The hub could not be reached, or the connection broke more often than was allowed.
    #[error(
        "fetching {what} from {endpoint}: {reason}. Without a connection, what was fetched before can be used offline"
    )]
    Network {
        /// What was asked for.
        what: String,
        /// The hub.
        endpoint: String,
        /// What went wrong.
        reason: String,
    },
    /// Nothing came for a long time.
    #[error("fetching {what} from {endpoint}: nothing came for {seconds} s")]
    Stalled {
        /// What was asked for.
        what: String,
        /// The hub.
        endpoint: String,
        /// How long.
        seconds: u64,
    },
    /// A file came with another size than the hub announced.
    #[error("{file} came with {found} bytes instead of {expected}; it was thrown away")]
    Incomplete {
        /// The file.
        file: String,
        /// Bytes announced.
        expected: u64,
        /// Bytes received.
        found: u64,
    },
    /// The hub's answer would lead outside the cache or is otherwise not what a hub sends.
    #[error("{endpoint} does not answer as a hub does: {reason}")]
    Answer {
        /// The hub.
        endpoint: String,
        /// What is wrong.
        reason: String,
    },
    /// The cache could not be written or read.
    #[error("the cache at {}: {source}", path.display())]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The caller asked to stop. What came so far is kept and continued next time.
    #[error("fetching was cancelled")]
    Cancelled,
}
