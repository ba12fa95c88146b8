//! A checkpoint: whatever is on disk, behind one interface.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::config::{GenerationConfig, HfConfig};
use crate::error::{FormatError, FormatErrorKind};
use crate::gguf::{Gguf, Metadata};
use crate::safetensors::Safetensors;
use crate::tensor::{Tensor, TensorTable};

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";

/// An open checkpoint.
///
/// Opening reads headers and configs only; weights are mapped and read when touched.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    contents: Contents,
    generation: Option<GenerationConfig>,
}

#[derive(Debug)]
enum Contents {
    Gguf(Gguf),
    Safetensors { files: Safetensors, config: Option<HfConfig> },
}

/// The containers that a checkpoint can be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckpointKind {
    /// One GGUF file, or a split one.
    Gguf,
    /// safetensors files.
    Safetensors,
}

impl std::fmt::Display for CheckpointKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CheckpointKind::Gguf => "GGUF",
            CheckpointKind::Safetensors => "safetensors",
        })
    }
}

/// The description of the model, in the terms of the container.
#[derive(Clone, Copy, Debug)]
pub enum Config<'a> {
    /// `config.json`.
    Hf(&'a HfConfig),
    /// GGUF metadata.
    Gguf(&'a Metadata),
}

impl Checkpoint {
    /// Opens what is at `path`: a GGUF file (of a split one, the first), a safetensors file, or a folder with either
    /// and, for safetensors, the configs beside them.
    ///
    /// # Errors
    /// There is nothing to open, or more than one thing, or it is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint, FormatError> {
        let path = path.as_ref();
        let metadata = std::fs::metadata(path).map_err(|error| FormatError::new(path, error))?;
        if metadata.is_dir() { Checkpoint::open_folder(path) } else { Checkpoint::open_file(path) }
    }

    /// Opens a GGUF checkpoint that is part of the program. `name` stands for its path in messages.
    ///
    /// # Errors
    /// The bytes are damaged.
    pub fn from_static(bytes: &'static [u8], name: &str) -> Result<Checkpoint, FormatError> {
        Checkpoint::of_gguf(name.into(), Gguf::from_static(bytes, name)?)
    }

    fn of_gguf(path: PathBuf, gguf: Gguf) -> Result<Checkpoint, FormatError> {
        let generation = GenerationConfig::from_gguf(gguf.metadata())?;
        Ok(Checkpoint { path, contents: Contents::Gguf(gguf), generation })
    }

    /// A file by itself: the configs beside a safetensors file are not read, since nothing says that they belong to it.
    fn open_file(path: &Path) -> Result<Checkpoint, FormatError> {
        let contents = match path.extension().and_then(OsStr::to_str) {
            Some("safetensors") => Contents::Safetensors { files: Safetensors::open(path)?, config: None },
            _ if path.to_str().is_some_and(|name| name.ends_with(".safetensors.index.json")) => {
                Contents::Safetensors { files: Safetensors::open_index(path)?, config: None }
            }
            // Whatever its name: the file itself says that it is GGUF.
            _ => return Checkpoint::of_gguf(path.into(), Gguf::open(path)?),
        };
        Ok(Checkpoint { path: path.into(), contents, generation: None })
    }

    fn open_folder(folder: &Path) -> Result<Checkpoint, FormatError> {
        let Listing { gguf, safetensors, pickled } = Listing::read(folder)?;
        let error = |message: String| FormatError::new(folder, FormatErrorKind::NotACheckpoint(message));
        match gguf.as_slice() {
            // With a config, a GGUF file beside it is an extra.
            found if safetensors && (found.is_empty() || optional_file(folder, CONFIG).is_some()) => {}
            [only] => {
                return Checkpoint::of_gguf(folder.into(), Gguf::open(only)?);
            }
            [] if pickled => {
                return Err(error(
                    "the weights in this folder are pickled (.bin, .pt, .pth); such files can run programs when read \
                     and are not supported: convert them to safetensors"
                        .into(),
                ));
            }
            [] => return Err(error("there is neither a .gguf nor a .safetensors file in this folder".into())),
            several => {
                let names: Vec<_> = several.iter().take(5).filter_map(|path| path.file_name()?.to_str()).collect();
                return Err(error(format!(
                    "there are {} models in this folder; name one of them: {}{}",
                    several.len(),
                    names.join(", "),
                    if several.len() > names.len() { ", ..." } else { "" },
                )));
            }
        }
        let files = Safetensors::open_folder(folder)?;
        let config = optional_file(folder, CONFIG).map(HfConfig::read).transpose()?;
        let generation = optional_file(folder, GENERATION_CONFIG).map(GenerationConfig::read).transpose()?;
        Ok(Checkpoint { path: folder.into(), contents: Contents::Safetensors { files, config }, generation })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder in which companions of the weights (`tokenizer.json`) are looked for: the one that was opened, if it
    /// was one. A file stands for itself.
    pub fn folder(&self) -> Option<&Path> {
        match &self.contents {
            Contents::Safetensors { config: Some(_), .. } => Some(&self.path),
            _ => None,
        }
    }

    /// The container.
    pub fn kind(&self) -> CheckpointKind {
        match self.contents {
            Contents::Gguf(_) => CheckpointKind::Gguf,
            Contents::Safetensors { .. } => CheckpointKind::Safetensors,
        }
    }

    /// The description of the model; `None` for safetensors without `config.json`, which can only be looked at.
    pub fn config(&self) -> Option<Config<'_>> {
        match &self.contents {
            Contents::Gguf(gguf) => Some(Config::Gguf(gguf.metadata())),
            Contents::Safetensors { config, .. } => config.as_ref().map(Config::Hf),
        }
    }

    /// The GGUF file, if it is one.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.contents {
            Contents::Gguf(gguf) => Some(gguf),
            Contents::Safetensors { .. } => None,
        }
    }

    /// The safetensors files, if they are.
    pub fn safetensors(&self) -> Option<&Safetensors> {
        match &self.contents {
            Contents::Gguf(_) => None,
            Contents::Safetensors { files, .. } => Some(files),
        }
    }

    /// What `generation_config.json`, or GGUF metadata in its stead, says; `None` if neither does.
    pub fn generation_config(&self) -> Option<&GenerationConfig> {
        self.generation.as_ref()
    }

    /// Every token that ends a text, according to any of the files, sorted: `eos_token_id` of `generation_config.json`
    /// and `config.json`, or the `eos`, `eot` and `eom` ids of GGUF metadata. A tokenizer may know another.
    ///
    /// # Errors
    /// A value is not a token id.
    pub fn stop_token_ids(&self) -> Result<Vec<u32>, FormatError> {
        let mut ids = self.generation.as_ref().map_or(Vec::new(), |generation| generation.eos_token_ids.clone());
        match self.config() {
            Some(Config::Hf(config)) => ids.extend(config.token_ids("eos_token_id")?),
            Some(Config::Gguf(metadata)) => {
                for name in ["eos", "eot", "eom"] {
                    ids.extend(metadata.optional_u32(&format!("tokenizer.ggml.{name}_token_id"))?);
                }
            }
            None => {}
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.table().get(name)
    }

    /// All tensors, in the order of the files.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.table().iter()
    }

    /// Bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        self.tensors().map(|tensor| tensor.bytes.len() as u64).sum()
    }

    /// Elements of all tensors. For formats that pack values into integers this is not the number of parameters.
    pub fn total_elements(&self) -> u64 {
        self.tensors().map(|tensor| tensor.elements() as u64).fold(0, u64::saturating_add)
    }

    /// A line for each file of weights with its path, size and time: what is made from a checkpoint can be kept under it and
    /// used as long as it is the same. Absent for a checkpoint that is part of the program.
    pub fn identity(&self) -> Option<String> {
        let files = self.table().identities()?;
        Some(files.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    }

    fn table(&self) -> &TensorTable {
        match &self.contents {
            Contents::Gguf(gguf) => gguf.table(),
            Contents::Safetensors { files, .. } => files.table(),
        }
    }
}

fn optional_file(folder: &Path, name: &str) -> Option<PathBuf> {
    // Also a link to nothing: better an error that names it than a model without its config.
    Some(folder.join(name)).filter(|path| path.symlink_metadata().is_ok())
}

/// What a folder holds, as far as it matters.
struct Listing {
    /// GGUF models, sorted by name: of a split one only the first file, without vision projectors.
    gguf: Vec<PathBuf>,
    safetensors: bool,
    pickled: bool,
}

impl Listing {
    fn read(folder: &Path) -> Result<Listing, FormatError> {
        let at = |error: std::io::Error| FormatError::new(folder, error);
        let mut listing = Listing { gguf: Vec::new(), safetensors: false, pickled: false };
        for entry in std::fs::read_dir(folder).map_err(at)? {
            let path = entry.map_err(at)?.path();
            match path.extension().and_then(OsStr::to_str) {
                Some("gguf") => {
                    let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
                    if is_first_part(name) && !name.starts_with("mmproj") {
                        listing.gguf.push(path);
                    }
                }
                Some("safetensors") => listing.safetensors = true,
                Some("bin" | "pt" | "pth") => listing.pickled = true,
                _ => {}
            }
        }
        listing.gguf.sort();
        Ok(listing)
    }
}

/// Whether a file stem is that of a first part, or of a file that is not split.
fn is_first_part(stem: &str) -> bool {
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    match stem.rsplit_once("-of-").map(|(rest, count)| (rest.rsplit_once('-'), count)) {
        Some((Some((_, number)), count)) if is_number(number) && is_number(count) => number == "00001",
        _ => true,
    }
}
