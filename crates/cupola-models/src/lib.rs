//! Architectures: config and tensor names to a program.
//!
//! [`build`] turns a checkpoint into a [`Model`]: the program that computes it, and where its parameters are. What
//! families of models differ in is data (a description of a decoder that each family's file fills in); the program is
//! written once.

mod decoder;
mod error;
mod experts;
mod families;
mod gguf;
mod hugging_face;
mod latent;
mod names;
mod parameters;
pub mod rope;
mod stored;

pub use error::ModelError;
pub use parameters::Parameters;

use cupola_formats::{Checkpoint, Config};
use cupola_graph::Program;
use families::{FAMILIES, Family};
use gguf::GgufModel;
use hugging_face::HuggingFace;

/// A model that can be loaded onto devices.
#[derive(Debug)]
pub struct Model<'c> {
    /// What it computes: token ids to logits `[wanted, vocab]`. Not fused yet.
    pub program: Program,
    /// The program's parameters.
    pub parameters: Parameters<'c>,
    /// Facts for people and for whoever runs it.
    pub info: ModelInfo,
}

/// Facts about a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// The architecture: `llama`, `gemma3`, ...
    pub architecture: &'static str,
    /// What its makers call it, or what its folder is called.
    pub name: Option<String>,
    /// Longest sequence, in tokens, that it is made for.
    pub context_length: usize,
    /// Tokens that it knows: rows of its embedding.
    pub vocab: usize,
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads of a layer.
    pub heads: usize,
    /// Key-value heads of a layer.
    pub kv_heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Number of parameters; a matrix that serves twice counts once.
    pub parameters: u64,
}

/// Makes a model of a checkpoint.
///
/// # Errors
///
/// The architecture or the way in which the weights are stored is not supported; a hyperparameter or tensor is missing
/// or does not fit; or a tensor is there that the model would leave out.
pub fn build(checkpoint: &Checkpoint) -> Result<Model<'_>, ModelError> {
    let (family, decoder, name) = match checkpoint.config() {
        Some(Config::Hf(config)) => {
            let model_type = config.model_type()?;
            let family = find(model_type, |f| f.model_types.contains(&model_type))?;
            let folder = checkpoint.path().file_name().map(|name| name.to_string_lossy().into_owned());
            (family, (family.hugging_face)(&HuggingFace { config, checkpoint })?, folder)
        }
        Some(Config::Gguf(metadata)) => {
            let architecture = metadata.str("general.architecture")?;
            let family = find(architecture, |f| f.gguf.is_some_and(|(names, _)| names.contains(&architecture)))?;
            let model = GgufModel { metadata, checkpoint, architecture, family: family.name };
            let (_, read) = family.gguf.ok_or_else(|| unknown(architecture))?;
            (family, read(&model)?, metadata.optional_str("general.name")?.map(String::from))
        }
        None => return Err(ModelError::NoConfig { path: checkpoint.path().display().to_string() }),
    };
    let (program, parameters) = decoder.build(checkpoint, family.name)?;
    let matrices = program.weights.iter().map(|w| w.n_out as u64 * w.n_in as u64);
    let info = ModelInfo {
        architecture: family.name,
        name,
        context_length: decoder.context_length,
        vocab: program.vocab,
        layers: decoder.layers.len(),
        hidden: decoder.hidden,
        heads: decoder.attention.heads,
        kv_heads: decoder.attention.kv_heads,
        head_dim: decoder.attention.key_dim,
        parameters: matrices.chain(program.vectors.iter().map(|v| v.len as u64)).sum(),
    };
    Ok(Model { program, parameters, info })
}

fn find(name: &str, matches: impl Fn(&Family) -> bool) -> Result<&'static Family, ModelError> {
    FAMILIES.iter().find(|family| matches(family)).ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> ModelError {
    let known: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
    ModelError::UnknownArchitecture { name: name.into(), known: known.join(", ") }
}
