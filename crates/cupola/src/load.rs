//! From a checkpoint to an engine.

use crate::packed::PackedFolder;
use crate::sampler::Sampling;
use crate::text::Text;
use crate::{Engine, EngineError, EngineOptions, EngineParts};
use cupola_backend::{Assignment, Backend, Options, Registry, Runner};
use cupola_formats::Checkpoint;
use cupola_formats::config::GenerationConfig;
use cupola_graph::{Program, fuse};
use cupola_models::ModelInfo;
use std::path::Path;
use std::sync::Arc;

/// How far loading has come, in bytes of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// On their devices.
    pub done: u64,
    /// In all.
    pub total: u64,
}

/// What an engine was loaded from, and where it runs.
pub struct Loaded {
    /// Facts about the model.
    pub info: ModelInfo,
    /// What is computed.
    pub program: Arc<Program>,
    /// The devices, best first.
    pub backends: Vec<Arc<dyn Backend>>,
    /// Which of them runs each op, and why others do not.
    pub assignments: Vec<Assignment>,
    /// For the user: better devices that could not be used, and why; oddities of the tokenizer.
    pub notes: Vec<String>,
    /// Bytes of weights on the devices.
    pub weight_bytes: usize,
    /// Where a copy of the weights may be kept.
    pub(crate) packed: Option<PackedFolder>,
}

/// Every kind of device that this build knows.
pub fn registry() -> Registry {
    Registry::new(vec![Box::new(cupola_cpu::CpuProvider)])
}

impl Engine {
    /// Loads the model at `path`: a folder with a checkpoint, or a GGUF file.
    pub fn load(path: impl AsRef<Path>, options: &EngineOptions) -> Result<Engine, EngineError> {
        Engine::load_checkpoint(&Checkpoint::open(path)?, options, &mut |_| {})
    }

    /// Loads a GGUF model that is part of the program.
    pub fn from_static(bytes: &'static [u8], name: &str, options: &EngineOptions) -> Result<Engine, EngineError> {
        Engine::load_checkpoint(&Checkpoint::from_static(bytes, name)?, options, &mut |_| {})
    }

    /// Loads an open checkpoint, which is not needed afterwards. `progress` hears how far it has come.
    ///
    /// A checkpoint without a tokenizer that can be used still loads: it takes and gives token ids.
    pub fn load_checkpoint(
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Engine, EngineError> {
        let model = cupola_models::build(checkpoint)?;
        let program = Arc::new(fuse(model.program));
        let packed = options.packed.as_ref().and_then(|folder| folder.copy(checkpoint));
        if let (Some(folder), Some(copy)) = (&options.packed, &packed) {
            folder.touch(copy);
        }
        let selection = registry().select(&options.device, &Options { packed, ..options.backend.clone() })?;
        let mut at = Progress { done: 0, total: program.weight_bytes() as u64 };
        progress(at);
        let runner = Runner::load(program.clone(), selection.backends, &model.parameters, &mut |bytes| {
            at.done += bytes as u64;
            progress(at);
        })?;
        progress(Progress { done: at.total, ..at });

        let text = Text::of(checkpoint).map_err(|error| error.to_string());
        let mut notes = selection.notes;
        let mut stop_tokens = checkpoint.stop_token_ids()?;
        if let Ok(text) = &text {
            let special = text.tokenizer().special_tokens();
            stop_tokens.extend([special.eos, special.eot, special.eom].into_iter().flatten());
            stop_tokens.sort_unstable();
            stop_tokens.dedup();
            notes.extend_from_slice(text.tokenizer().warnings());
        }
        let loaded = Loaded {
            info: model.info,
            program,
            backends: runner.backends().to_vec(),
            assignments: runner.assignments().to_vec(),
            notes,
            weight_bytes: runner.weight_bytes(),
            packed: options.packed.clone(),
        };
        let parts = EngineParts {
            runner: Box::new(runner),
            text,
            stop_tokens,
            sampling: checkpoint.generation_config().map_or_else(Sampling::default, recommended),
            context: loaded.info.context_length,
        };
        Engine::assemble(parts, Some(loaded), options)
    }
}

/// The makers' recommendation. What it leaves open, and values out of range, are as in the default.
fn recommended(config: &GenerationConfig) -> Sampling {
    let mut sampling = Sampling::default();
    let mut set = |field: fn(&mut Sampling) -> &mut f32, value: Option<f32>| {
        let mut changed = sampling.clone();
        *field(&mut changed) = value.unwrap_or(f32::NAN);
        if changed.check(0).is_ok() {
            sampling = changed;
        }
    };
    let temperature = if config.do_sample == Some(false) { Some(0.0) } else { config.temperature };
    set(|s| &mut s.temperature, temperature);
    set(|s| &mut s.top_p, config.top_p);
    set(|s| &mut s.min_p, config.min_p);
    set(|s| &mut s.repetition_penalty, config.repetition_penalty);
    Sampling { top_k: config.top_k.map_or(0, |k| k as usize), ..sampling }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recommendations_are_taken_where_they_make_sense() {
        let none = GenerationConfig::default();
        assert_eq!(recommended(&none), Sampling::default());
        let some = GenerationConfig {
            do_sample: Some(true),
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            min_p: Some(-1.0),
            repetition_penalty: Some(1.1),
            ..none.clone()
        };
        let expected =
            Sampling { temperature: 0.6, top_k: 20, top_p: 0.95, repetition_penalty: 1.1, ..Sampling::default() };
        assert_eq!(recommended(&some), expected);
        let greedy = GenerationConfig { do_sample: Some(false), temperature: Some(0.6), ..none };
        assert_eq!(recommended(&greedy).temperature, 0.0);
    }
}
