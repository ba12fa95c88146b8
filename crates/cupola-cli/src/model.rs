//! What a user means by MODEL, and how it becomes an engine.

use crate::args::{ComputeArgs, HubArgs, SamplingArgs};
use crate::failure::{Failure, Result};
use crate::{embedded, interrupt, terminal};
use cupola::{CancelToken, Engine, EngineError, EngineOptions, GenerateOptions, Sampling, SessionOptions};
use cupola_formats::Checkpoint;
use cupola_formats::hub::HubModel;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Model {
    /// In this program.
    Embedded,
    /// On disk.
    Path(PathBuf),
    /// On the hub.
    Hub(HubModel),
}

impl Model {
    /// What the text means. A path that exists comes first, then the embedded model's name, then names on the hub.
    pub fn named(name: &str) -> Result<Model> {
        let path = Path::new(name);
        if path.exists() {
            return Ok(Model::Path(path.into()));
        }
        if name == embedded::NAME {
            return Ok(Model::Embedded);
        }
        if let Some(model) = hub_name(name) {
            return Ok(Model::Hub(model));
        }
        Err(Failure::new(format!(
            "there is no file or folder \"{name}\". A model is a folder with a Hugging Face checkpoint, a GGUF file, a \
             name on the hub such as Qwen/Qwen3-0.6B, or \"{}\"",
            embedded::NAME
        )))
    }

    /// The checkpoint, fetched first if it is on the hub.
    pub fn open(&self, hub: &HubArgs) -> Result<Checkpoint> {
        match self {
            Model::Embedded => Ok(embedded::open()?),
            Model::Path(path) => Ok(Checkpoint::open(path)?),
            Model::Hub(name) => Ok(Checkpoint::open(hub.fetch(name)?)?),
        }
    }
}

/// Opens a checkpoint that must be on disk.
pub fn open_path(path: &Path) -> Result<Checkpoint> {
    if !path.exists() {
        return Err(Failure::new(format!("there is no file or folder {}", path.display())));
    }
    Ok(Checkpoint::open(path)?)
}

/// A name on the hub. Somebody who writes an extension means a file, and should be told that it is not there.
fn hub_name(text: &str) -> Option<HubModel> {
    let model: HubModel = text.parse().ok()?;
    let file = [".gguf", ".safetensors", ".json"].iter().any(|end| model.name.ends_with(end));
    Some(model).filter(|_| !file)
}

/// Work that takes longer than this shows how far it has come.
const QUIET: Duration = Duration::from_millis(400);

/// Loads a model onto its devices.
pub fn load(checkpoint: &Checkpoint, compute: &ComputeArgs, context: Option<usize>, profile: bool) -> Result<Engine> {
    let options = EngineOptions {
        device: compute.device.device.clone(),
        backend: compute.device.options(compute.threads, profile),
        packed: compute.device.packed_folder(),
        context,
        ..EngineOptions::default()
    };
    let start = Instant::now();
    let bar = terminal::bytes_bar("Loading", 0);
    let engine = Engine::load_checkpoint(checkpoint, &options, &mut |progress| {
        if start.elapsed() > QUIET {
            bar.set_length(progress.total);
            bar.set_position(progress.done);
        }
    });
    bar.finish_and_clear();
    let engine = engine?;
    for note in engine.loaded().iter().flat_map(|l| &l.notes) {
        terminal::note(&format!("note: {note}"));
    }
    Ok(engine)
}

/// Keeps a copy of the weights for the next start.
pub fn keep_packed(engine: &Engine) {
    let start = Instant::now();
    let bar = terminal::bytes_bar("Keeping packed weights for the next start", 0);
    let kept = engine.keep_packed(&interrupt::token(), &mut |progress| {
        if start.elapsed() > QUIET {
            bar.set_length(progress.total);
            bar.set_position(progress.done);
        }
    });
    bar.finish_and_clear();
    warn_of_packing(kept);
}

/// Does the same beside a conversation.
pub fn keep_packed_meanwhile(engine: &Engine) -> Packing {
    let (engine, cancel) = (engine.clone(), CancelToken::new());
    let token = cancel.clone();
    Packing { cancel, thread: std::thread::spawn(move || engine.keep_packed(&token, &mut |_| {})) }
}

/// Packed weights on their way to the disk.
pub struct Packing {
    cancel: CancelToken,
    thread: JoinHandle<std::result::Result<(), EngineError>>,
}

impl Packing {
    /// Gives up what is not finished.
    pub fn end(self) {
        self.cancel.cancel();
        if let Ok(kept) = self.thread.join() {
            warn_of_packing(kept);
        }
    }
}

/// That it fails is no reason to fail: everything that was asked for is done.
fn warn_of_packing(kept: std::result::Result<(), EngineError>) {
    if let Err(error) = kept {
        terminal::warning(&format!("{error}; --no-packed does without"));
    }
}

impl SamplingArgs {
    /// The model's recommendation with what the user changed.
    pub fn session(&self, recommended: &Sampling) -> SessionOptions {
        let mut sampling = recommended.clone();
        let set = |to: &mut f32, value: Option<f32>| *to = value.unwrap_or(*to);
        set(&mut sampling.temperature, self.temp);
        set(&mut sampling.top_p, self.top_p);
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.repetition_penalty, self.repeat_penalty);
        set(&mut sampling.presence_penalty, self.presence_penalty);
        set(&mut sampling.frequency_penalty, self.frequency_penalty);
        sampling.top_k = self.top_k.unwrap_or(sampling.top_k);
        sampling.logit_bias.extend(self.logit_bias.iter().copied());
        SessionOptions {
            sampling,
            seed: self.seed,
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            ..SessionOptions::default()
        }
    }

    /// What holds for one reply. Ctrl-C cancels it.
    pub fn generate(&self) -> GenerateOptions {
        GenerateOptions { max_tokens: self.max_tokens, cancel: interrupt::token(), ..GenerateOptions::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_hub() {
        for good in ["Qwen/Qwen3-0.6B", "a/b", "org/name.v2", "org/name-GGUF:Q4_K_M", "org/name:sub/x.gguf", "a/b@v1"] {
            assert!(matches!(Model::named(good), Ok(Model::Hub(_))), "{good}");
        }
        for bad in ["", "a", "/a", "a/", "a/b/c", "./a", "../a", "a b/c", "a/b.gguf", "~/a", "a\\b", "missing.gguf"] {
            assert!(Model::named(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_path_that_exists_comes_first() {
        let here = env!("CARGO_MANIFEST_DIR");
        assert_eq!(Model::named(here).unwrap(), Model::Path(here.into()));
        assert_eq!(Model::named("embedded").unwrap(), Model::Embedded);
    }
}
