//! Fetching the files of one model.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, Metadata};
use hf_hub::{Cache, Repo, RepoType};

use super::files::{Choice, choose};
use super::name::is_path;
use super::watched::{self, Stopped};
use super::{HubError, HubModel, HubOptions, Transfer, Watch};

/// First pause before another attempt; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(500);

/// A model being fetched.
pub(super) struct Fetch<'a> {
    model: &'a HubModel,
    options: &'a HubOptions,
    api: Api,
    repo: Repo,
    watch: &'a mut Watch<'a>,
}

impl<'a> Fetch<'a> {
    pub fn new(model: &'a HubModel, options: &'a HubOptions, watch: &'a mut Watch<'a>) -> Result<Self, HubError> {
        let api = ApiBuilder::from_cache(Cache::new(options.cache.clone()))
            .with_endpoint(options.endpoint.trim_end_matches('/').to_owned())
            .with_token(options.token.clone())
            .with_progress(false)
            .build()
            .map_err(|error| HubError::Answer { endpoint: options.endpoint.clone(), reason: error.to_string() })?;
        let repo = Repo::with_revision(model.id(), RepoType::Model, model.revision.clone());
        Ok(Self { model, options, api, repo, watch })
    }

    /// Fetches what is missing; gives the file or folder to open.
    pub fn run(&mut self) -> Result<PathBuf, HubError> {
        let what = self.model.to_string();
        let info = self.retried(&what, |fetch| {
            let (api, repo) = (fetch.api.clone(), fetch.repo.clone());
            fetch.watched(&Transfer::default(), &fetch.model.to_string(), move |_| api.repo(repo).info())
        })?;
        let files: Vec<String> = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        self.check(is_path(&info.sha) && !info.sha.contains('/'), || format!("the commit is {:?}", info.sha))?;
        let choice = choose(self.model, &files)?;
        let count = choice.files().len();
        for (index, file) in choice.files().iter().enumerate() {
            self.check(is_path(file), || format!("a file is named {file:?}"))?;
            let here = self.snapshot(&info.sha).join(file);
            if !here.exists() {
                let transfer = Transfer { file, number: index + 1, count, done: 0, total: 0 };
                self.retried(file, |fetch| fetch.file(file, &transfer))?;
            }
        }
        let cache = Cache::new(self.options.cache.clone()).repo(self.repo.clone());
        cache.create_ref(&info.sha).map_err(|source| self.cache_error(&self.options.cache, source))?;
        opened(&self.snapshot(&info.sha), &choice)
    }

    fn snapshot(&self, commit: &str) -> PathBuf {
        Cache::new(self.options.cache.clone()).repo(self.repo.clone()).pointer_path(commit)
    }

    /// One attempt at one file. What came so far is continued.
    fn file(&mut self, file: &str, transfer: &Transfer) -> Result<(), HubError> {
        let metadata = self.metadata(file, transfer)?;
        let size = metadata.size() as u64;
        let cache = Cache::new(self.options.cache.clone()).repo(self.repo.clone());
        let blob = cache.blob_path(metadata.etag());
        let pointer = cache.pointer_path(metadata.commit_hash()).join(file);
        // Another revision may have brought the same contents.
        if !pointer.exists() && length(&blob) == Some(size) {
            return self.link(&blob, &pointer);
        }
        let part = blob.with_extension("part");
        if length(&part).is_some_and(|length| length >= size) {
            std::fs::remove_file(&part).map_err(|source| self.cache_error(&part, source))?;
        }
        let (api, repo, name) = (self.api.clone(), self.repo.clone(), file.to_owned());
        self.watched(transfer, file, move |reporter| api.repo(repo).download_with_progress(&name, reporter))?;
        // A server that ignores ranges sends the whole file again, and the client appends it.
        let found = length(&pointer).unwrap_or(0);
        if found != size {
            for path in [&pointer, &blob] {
                std::fs::remove_file(path).map_err(|source| self.cache_error(path, source))?;
            }
            return Err(HubError::Incomplete { file: file.to_owned(), expected: size, found });
        }
        Ok(())
    }

    fn metadata(&mut self, file: &str, transfer: &Transfer) -> Result<Metadata, HubError> {
        let (api, url) = (self.api.clone(), self.api.repo(self.repo.clone()).url(file));
        let metadata = self.watched(transfer, file, move |_| api.metadata(&url))?;
        // Both become names in the cache.
        for name in [metadata.etag(), metadata.commit_hash()] {
            self.check(is_path(name) && !name.contains('/'), || format!("{file} has the tag or commit {name:?}"))?;
        }
        Ok(metadata)
    }

    fn link(&self, blob: &Path, pointer: &Path) -> Result<(), HubError> {
        let folder = pointer.parent().unwrap_or(pointer);
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::hard_link(blob, pointer).or_else(|_| std::fs::copy(blob, pointer).map(|_| ())))
            .map_err(|source| self.cache_error(pointer, source))
    }

    /// Runs a call of the client on a thread, with the caller watching, and gives its errors our meaning.
    fn watched<T: Send + 'static>(
        &mut self,
        transfer: &Transfer,
        what: &str,
        work: impl FnOnce(watched::Reporter<Result<T, ApiError>>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, HubError> {
        let watch = &mut *self.watch;
        let mut watch = |done, total| watch(&Transfer { done, total, ..*transfer });
        let stall = self.options.stall_timeout;
        match watched::run(stall, &mut watch, work) {
            Ok(result) => result.map_err(|error| self.meaning(what, error)),
            Err(Stopped::Cancelled) => Err(HubError::Cancelled),
            Err(Stopped::Stalled) => {
                let endpoint = self.options.endpoint.clone();
                Err(HubError::Stalled { what: what.to_owned(), endpoint, seconds: stall.as_secs() })
            }
            Err(Stopped::Broken) => Err(HubError::Answer {
                endpoint: self.options.endpoint.clone(),
                reason: format!("the client broke down over the answer about {what}"),
            }),
        }
    }

    fn meaning(&self, what: &str, error: ApiError) -> HubError {
        let (what, endpoint) = (what.to_owned(), self.options.endpoint.clone());
        match error {
            ApiError::RequestError(error) => match *error {
                ureq::Error::StatusCode(status @ (401 | 403)) => {
                    HubError::Refused { model: what, status, with_token: self.options.token.is_some() }
                }
                ureq::Error::StatusCode(404) => HubError::NotFound { what: self.full_name(&what) },
                ureq::Error::StatusCode(status) => HubError::Status { what, endpoint, status },
                ureq::Error::Json(error) => HubError::Answer { endpoint, reason: error.to_string() },
                other => HubError::Network { what, endpoint, reason: other.to_string() },
            },
            ApiError::IoError(error) => HubError::Network { what, endpoint, reason: error.to_string() },
            ApiError::LockAcquisition(path) => HubError::Cache {
                path,
                source: std::io::Error::new(std::io::ErrorKind::WouldBlock, "another program is fetching this file"),
            },
            other => HubError::Answer { endpoint, reason: other.to_string() },
        }
    }

    /// A file with its model, the model as it is.
    fn full_name(&self, what: &str) -> String {
        let model = self.model.to_string();
        if what == model { format!("model {model}") } else { format!("file {what} in {model}") }
    }

    fn cache_error(&self, path: &Path, source: std::io::Error) -> HubError {
        HubError::Cache { path: path.to_owned(), source }
    }

    fn check(&self, good: bool, reason: impl FnOnce() -> String) -> Result<(), HubError> {
        if good { Ok(()) } else { Err(HubError::Answer { endpoint: self.options.endpoint.clone(), reason: reason() }) }
    }

    /// Tries again after failures that may pass.
    fn retried<T>(
        &mut self,
        what: &str,
        mut attempt: impl FnMut(&mut Self) -> Result<T, HubError>,
    ) -> Result<T, HubError> {
        let mut pause = PAUSE;
        for _ in 0..self.options.retries {
            match attempt(self) {
                Err(error) if passes(&error) => self.sleep(what, pause)?,
                result => return result,
            }
            pause *= 2;
        }
        attempt(self)
    }

    fn sleep(&mut self, what: &str, pause: Duration) -> Result<(), HubError> {
        let start = Instant::now();
        while start.elapsed() < pause {
            std::thread::sleep(Duration::from_millis(20));
            let waiting = Transfer { file: what, ..Transfer::default() };
            if let ControlFlow::Break(()) = (self.watch)(&waiting) {
                return Err(HubError::Cancelled);
            }
        }
        Ok(())
    }
}

/// Whether another attempt may succeed.
fn passes(error: &HubError) -> bool {
    match error {
        HubError::Network { .. } | HubError::Stalled { .. } | HubError::Incomplete { .. } => true,
        HubError::Status { status, .. } => *status == 429 || *status >= 500,
        _ => false,
    }
}

fn length(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|metadata| metadata.len())
}

/// What to open of a snapshot.
fn opened(snapshot: &Path, choice: &Choice) -> Result<PathBuf, HubError> {
    match choice {
        Choice::Folder(_) => Ok(snapshot.to_owned()),
        Choice::Gguf(parts) => Ok(parts.first().map_or(snapshot.to_owned(), |first| snapshot.join(first))),
    }
}

/// What was fetched before, without asking the hub.
pub(super) fn cached(model: &HubModel, options: &HubOptions) -> Result<PathBuf, HubError> {
    let missing = || HubError::NotCached { model: model.to_string(), cache: options.cache.clone() };
    let repo = Repo::with_revision(model.id(), RepoType::Model, model.revision.clone());
    let cache = Cache::new(options.cache.clone()).repo(repo.clone());
    let reference = options.cache.join(repo.folder_name()).join("refs").join(&model.revision);
    let commit = std::fs::read_to_string(&reference).unwrap_or_else(|_| model.revision.clone());
    let commit = commit.trim();
    if !is_path(commit) || commit.contains('/') {
        return Err(missing());
    }
    let snapshot = cache.pointer_path(commit);
    let mut files = Vec::new();
    list(&snapshot, "", 0, &mut files).map_err(|_| missing())?;
    files.sort();
    if files.is_empty() {
        return Err(missing());
    }
    opened(&snapshot, &choose(model, &files)?)
}

/// The files below a folder, as paths of the hub.
fn list(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<String>) -> std::io::Result<()> {
    const MAX_DEPTH: usize = 8;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = format!("{prefix}{name}");
        if entry.file_type()?.is_dir() {
            if depth < MAX_DEPTH {
                list(&entry.path(), &format!("{name}/"), depth + 1, files)?;
            }
        } else if entry.path().exists() {
            files.push(name);
        }
    }
    Ok(())
}
