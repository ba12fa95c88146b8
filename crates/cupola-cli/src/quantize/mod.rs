//! From any checkpoint to a GGUF file in another format.

mod metadata;
mod names;
mod target;
mod vocabulary;
mod write;

pub use target::{Target, storable};

use crate::failure::{Failure, Result};
use crate::terminal;
use cupola_formats::gguf::{GgmlType, Gguf, GgufWriter, Value};
use cupola_formats::{Checkpoint, Config, Dtype, Tensor};
use cupola_quant::Format;
use names::Family;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use write::{Part, Source};

/// What is wanted.
pub struct Wishes {
    /// For all matrices, unless one of the others says more.
    pub target: Target,
    /// For the output matrix; of tied models, the embedding matrix.
    pub output: Option<Format>,
    /// For the embedding matrix.
    pub embedding: Option<Format>,
}

/// What was done, for the user.
pub struct Report {
    /// Bytes of tensors in each format.
    pub formats: BTreeMap<String, (usize, u64)>,
    /// What is not as one might expect.
    pub warnings: Vec<String>,
}

/// Writes `input` to `path`. The file is there when it is complete.
pub fn quantize(input: &Checkpoint, path: &Path, wishes: &Wishes, threads: NonZeroUsize) -> Result<Report> {
    let mut writer = GgufWriter::new();
    let mut warnings = vec![];
    let parts = match input.config() {
        Some(Config::Gguf(_)) => match input.gguf() {
            Some(gguf) => from_gguf(gguf, wishes, &mut writer, &mut warnings)?,
            None => return Err(Failure::new("the checkpoint has GGUF metadata but is no GGUF file")),
        },
        Some(Config::Hf(config)) => from_hugging_face(input, config, wishes, &mut writer, &mut warnings)?,
        None => {
            let message = format!("{} has no config.json: nothing says what model it is", input.path().display());
            return Err(Failure::new(message));
        }
    };
    write::declare(&parts, &mut writer)?;
    let mut out = writer.create(path)?;
    let progress = terminal::bytes_bar("Converting", parts.iter().map(Part::bytes).sum());
    write::write(&parts, &mut out, threads, &progress)?;
    progress.finish_and_clear();
    out.finish()?;
    let mut formats: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for part in &parts {
        let (block, bytes) = part.kind.block().unwrap_or((1, 0));
        let elements = part.shape.iter().map(|d| *d as u64).product::<u64>();
        let (count, total) = formats.entry(part.kind.to_string()).or_default();
        (*count, *total) = (*count + 1, *total + elements / block * bytes);
    }
    Ok(Report { formats, warnings })
}

/// Matrices whose values are few and matter much: routers, positions, convolutions of state-space models.
const KEPT: [&str; 6] = ["ffn_gate_inp", "position_embd", "token_types", "ssm_conv1d", "_norm", "rope_"];

/// A tensor of the model with its name in the file to be written.
struct Planned<'a> {
    name: String,
    tensor: Tensor<'a>,
    interleave: Option<usize>,
    add: f32,
}

/// The formats of all tensors.
struct Plan<'w> {
    wishes: &'w Wishes,
    layers: usize,
    tied: bool,
    /// Tensors that could not have the format wished for: the format that they got, how many, and their row length.
    fallen_back: BTreeMap<(Format, Format, usize), usize>,
    requantized: usize,
}

impl<'w> Plan<'w> {
    fn part<'a>(&mut self, planned: Planned<'a>) -> Result<Part<'a>> {
        let Planned { name, tensor, interleave, add } = planned;
        let shape = tensor.shape.to_vec();
        let from = match tensor.dtype {
            Dtype::Weight(format) => format,
            Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 | Dtype::F64 => {
                let kind = ggml_number(tensor.dtype);
                return Ok(Part { name, shape, kind, source: Source::Copy(tensor) });
            }
            _ => return Err(tensor.format().map(|_| ()).err().map_or(Failure::new("not a weight"), Failure::from)),
        };
        let to = self.format(&name, &shape);
        let kind = GgmlType::from(to);
        let source = match from == to && interleave.is_none() && add == 0.0 {
            true => Source::Copy(tensor),
            false => {
                self.requantized += usize::from(!from.is_float());
                Source::Convert { tensor, from, to, interleave, add }
            }
        };
        Ok(Part { name, shape, kind, source })
    }

    /// The format of a tensor: F32 for vectors and small things, otherwise what the user wishes, if the rows allow it.
    fn format(&mut self, name: &str, shape: &[usize]) -> Format {
        let matrix = shape.len() >= 2 && name.ends_with(".weight") && !KEPT.iter().any(|kept| name.contains(kept));
        if !matrix {
            return Format::F32;
        }
        let embedding = name == "token_embd.weight";
        let output = name == "output.weight" || (embedding && self.tied);
        let wish = self.wishes.output.filter(|_| output).or(self.wishes.embedding.filter(|_| embedding));
        let wish = wish.unwrap_or_else(|| self.wishes.target.format(name, self.layers, self.tied));
        let n_in = shape.last().copied().unwrap_or(1);
        let format = target::storable(wish, n_in);
        if format != wish {
            *self.fallen_back.entry((wish, format, n_in)).or_default() += 1;
        }
        format
    }

    fn warn(self, warnings: &mut Vec<String>) {
        for ((wish, format, n_in), count) in self.fallen_back {
            let block = wish.layout().block;
            warnings.push(format!(
                "{count} tensors are {format} instead of {wish}: their rows of {n_in} values are no multiple of {block}"
            ));
        }
        if self.requantized > 0 {
            warnings.push(format!(
                "{} tensors were quantised before, and lose a little each time: convert from the original if you can",
                self.requantized
            ));
        }
    }
}

fn ggml_number(dtype: Dtype) -> GgmlType {
    GgmlType(match dtype {
        Dtype::I8 => 24,
        Dtype::I16 => 25,
        Dtype::I32 => 26,
        Dtype::I64 => 27,
        _ => 28,
    })
}

fn from_gguf<'a>(
    gguf: &'a Gguf,
    wishes: &Wishes,
    writer: &mut GgufWriter,
    warnings: &mut Vec<String>,
) -> Result<Vec<Part<'a>>> {
    let metadata = gguf.metadata();
    for (key, _) in metadata.iter() {
        match key {
            FILE_TYPE => writer.set(key, Value::U32(wishes.target.file_type()))?,
            QUANTIZATION_VERSION => writer.set(key, Value::U32(2))?,
            // The writer has its own alignment, and writes one file.
            _ if key == "general.alignment" || key.starts_with("split.") => {}
            _ => writer.copy(metadata, key)?,
        }
    }
    set_file_type(writer, wishes)?;
    let blocks = metadata.optional_str("general.architecture")?.map(|a| format!("{a}.block_count"));
    let layers = blocks.map_or(Ok(None), |key| metadata.optional_u32(&key))?.unwrap_or(0) as usize;
    let tied = gguf.tensor("output.weight").is_none();
    let mut plan = Plan { wishes, layers, tied, fallen_back: BTreeMap::new(), requantized: 0 };
    let parts: Result<Vec<Part>> = gguf
        .tensors()
        .map(|tensor| plan.part(Planned { name: tensor.name.to_string(), tensor, interleave: None, add: 0.0 }))
        .collect();
    plan.warn(warnings);
    parts
}

fn from_hugging_face<'a>(
    input: &'a Checkpoint,
    config: &cupola_formats::config::HfConfig,
    wishes: &Wishes,
    writer: &mut GgufWriter,
    warnings: &mut Vec<String>,
) -> Result<Vec<Part<'a>>> {
    if let Some(quantized) = config.optional_section("quantization_config")? {
        let method = quantized.optional_str("quant_method")?.unwrap_or("an unnamed method").to_string();
        return Err(Failure::new(format!(
            "this checkpoint is quantised already ({method}); converting such weights is not supported, start from the \
             original checkpoint"
        )));
    }
    let family = Family::of(config.model_type()?).map_err(Failure::new)?;
    // What cannot be run here must not be handed on.
    cupola_models::build(input)?;
    let tied = config.optional_bool("tie_word_embeddings")?.unwrap_or(family.gguf.starts_with("gemma"));
    let mut planned = vec![];
    for tensor in input.tensors() {
        let Some(name) = family.tensor(tensor.name).map_err(Failure::new)? else { continue };
        if name == "output.weight" && tied {
            continue;
        }
        let rotated = [".attn_q.", ".attn_k."].iter().any(|part| name.contains(part));
        let interleave = (family.interleaved && rotated).then(|| config.head_dim()).transpose()?;
        if let Some(head_dim) = interleave.map(|d| d as usize)
            && (head_dim < 2
                || !head_dim.is_multiple_of(2)
                || !tensor.shape.first().is_some_and(|n| n.is_multiple_of(head_dim)))
        {
            let message = format!(
                "tensor `{}` has shape {:?}, which is no whole number of heads of {head_dim}",
                tensor.name, tensor.shape
            );
            return Err(Failure::new(message));
        }
        let add = if family.norm_plus_one && name.ends_with("_norm.weight") { 1.0 } else { 0.0 };
        planned.push(Planned { name, tensor, interleave: interleave.map(|d| d as usize), add });
    }
    // llama.cpp's own order: what is outside the layers, then layer by layer.
    planned.sort_by_key(|p| place(&p.name));
    let embedding = planned.iter().find(|p| p.name == "token_embd.weight");
    let rows = embedding.and_then(|p| p.tensor.shape.first().copied());
    let rows =
        rows.ok_or_else(|| Failure::new("the checkpoint has no embedding matrix (model.embed_tokens.weight)"))?;

    writer.set("general.architecture", Value::String(family.gguf.into()))?;
    writer.set("general.type", Value::String("model".into()))?;
    if let Some(name) = input.path().canonicalize().ok().as_deref().and_then(Path::file_name) {
        writer.set("general.name", Value::String(name.to_string_lossy().into_owned()))?;
    }
    set_file_type(writer, wishes)?;
    let extra = metadata::hyperparameters(family, config, rows, writer, warnings)?;
    if let Some(generation) = input.generation_config() {
        metadata::sampling(generation, writer)?;
    }
    let folder = input.folder().unwrap_or(input.path());
    if !metadata::tokenizer(folder, config, &input.stop_token_ids()?, rows, writer)? {
        warnings.push("there is no tokenizer.json: the file takes token ids only".into());
    }

    let mut plan =
        Plan { wishes, layers: config.usize("num_hidden_layers")?, tied, fallen_back: BTreeMap::new(), requantized: 0 };
    let mut parts = vec![];
    for (name, values) in extra {
        let (shape, kind) = (vec![values.len()], GgmlType::from(Format::F32));
        parts.push(Part { name: name.into(), shape, kind, source: Source::Values(values) });
    }
    for p in planned {
        parts.push(plan.part(p)?);
    }
    plan.warn(warnings);
    Ok(parts)
}

const FILE_TYPE: &str = "general.file_type";
const QUANTIZATION_VERSION: &str = "general.quantization_version";

/// Sets what is not set yet.
fn set_file_type(writer: &mut GgufWriter, wishes: &Wishes) -> Result<()> {
    for (key, value) in [(FILE_TYPE, wishes.target.file_type()), (QUANTIZATION_VERSION, 2)] {
        if !writer.has(key) {
            writer.set(key, Value::U32(value))?;
        }
    }
    Ok(())
}

/// Sorts tensors by layer; those outside come first.
fn place(name: &str) -> (u64, String) {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<u64>().ok());
    (layer.map_or(0, |l| l + 1), name.to_string())
}
