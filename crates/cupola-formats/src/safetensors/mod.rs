//! safetensors: tensors behind a JSON header, in one file or sharded with an index.
//!
//! Element types and header entries are those of the `safetensors` crate. The checks are made here, so that every
//! error names the tensor and the numbers, and so that no file makes a sum overflow.

mod error;
mod header;
mod index;

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

pub use error::SafetensorsError;
pub use header::{Header, HeaderTensor};
pub use index::Index;

use crate::bytes::Bytes;
use crate::error::{FormatError, FormatErrorKind};
use crate::tensor::{Tensor, TensorEntry, TensorTable};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Open safetensors files that form one checkpoint.
#[derive(Debug, Default)]
pub struct Safetensors {
    table: TensorTable,
    paths: Vec<PathBuf>,
    metadata: BTreeMap<String, String>,
}

impl Safetensors {
    /// Opens one file.
    ///
    /// # Errors
    /// Whatever rule of the format is broken.
    pub fn open(path: impl AsRef<Path>) -> Result<Safetensors, FormatError> {
        let mut opened = Safetensors::default();
        opened.add_file(path.as_ref())?;
        Ok(opened)
    }

    /// Opens the checkpoint of a folder: `model.safetensors`; or the shards that `model.safetensors.index.json` lists;
    /// or, without either, the only `.safetensors` file there is, or the complete set of shards `NAME-00001-of-00003`.
    ///
    /// # Errors
    /// There is no checkpoint, or more than one that could be meant; the index is broken, or points outside the folder;
    /// a shard is missing, or lacks a tensor that the index promises; a rule of the format is broken.
    pub fn open_folder(folder: impl AsRef<Path>) -> Result<Safetensors, FormatError> {
        let folder = folder.as_ref();
        let single = folder.join(SINGLE);
        if is_there(&single) {
            return Safetensors::open(single);
        }
        let index = folder.join(INDEX);
        if is_there(&index) {
            return Safetensors::open_index(&index);
        }
        let files = list(folder)?;
        let error = |message: String| FormatError::new(folder, FormatErrorKind::NotACheckpoint(message));
        match files.as_slice() {
            [] => Err(error("there is no .safetensors file in this folder".into())),
            [only] => Safetensors::open(only),
            several => {
                let shards = index::complete_set(several).ok_or_else(|| {
                    error(format!(
                        "there are {} .safetensors files in this folder, and neither {SINGLE} nor {INDEX} that says which make up the model",
                        several.len()
                    ))
                })?;
                Safetensors::open_shards(folder, &shards.map_err(|kind| FormatError::new(folder, kind))?)
            }
        }
    }

    /// Opens the shards that an index lists.
    ///
    /// # Errors
    /// As for [`Safetensors::open_folder`].
    pub fn open_index(path: impl AsRef<Path>) -> Result<Safetensors, FormatError> {
        let path = path.as_ref();
        let index = Index::read(path)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let opened = Safetensors::open_shards(folder, index.shards())?;
        // A name may lie in a shard other than the one the index gives.
        let mut places = HashSet::new();
        for entry in opened.table.entries() {
            places.insert((entry.name.as_str(), opened.paths[entry.file].file_name()));
        }
        for (tensor, shard) in index.tensors() {
            if !places.contains(&(tensor, Path::new(shard).file_name())) {
                let error = SafetensorsError::NotInShard { tensor: tensor.to_owned(), shard: shard.to_owned() };
                return Err(FormatError::new(path, error));
            }
        }
        Ok(opened)
    }

    fn open_shards(folder: &Path, shards: &[String]) -> Result<Safetensors, FormatError> {
        let mut opened = Safetensors::default();
        for shard in shards {
            let path = folder.join(shard);
            if !is_there(&path) {
                let error = SafetensorsError::MissingShard { shard: shard.clone(), count: shards.len() };
                return Err(FormatError::new(folder, error));
            }
            opened.add_file(&path)?;
        }
        Ok(opened)
    }

    fn add_file(&mut self, path: &Path) -> Result<(), FormatError> {
        let at = |error: SafetensorsError| FormatError::new(path, error);
        let bytes = Bytes::map(path)?;
        let header = Header::parse(&bytes).map_err(at)?;
        let file = self.table.add_file(bytes);
        self.paths.push(path.to_owned());
        for (key, value) in header.metadata {
            // Every shard repeats it.
            self.metadata.entry(key).or_insert(value);
        }
        for HeaderTensor { name, dtype, shape, range } in header.tensors {
            let entry = TensorEntry { name, dtype, shape, file, range };
            if let Err(taken) = self.table.add(entry) {
                let (tensor, first) = (taken.name.clone(), self.paths[taken.file].clone());
                return Err(at(SafetensorsError::DuplicateTensor { tensor, first }));
            }
        }
        Ok(())
    }

    /// The files, in the order in which they were opened.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The strings that the writer attached (`format`: `pt`); where shards differ, those of the first.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.table.get(name)
    }

    /// All tensors, shard by shard, in the order of their data.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.table.iter()
    }

    pub(crate) fn table(&self) -> &TensorTable {
        &self.table
    }
}

/// Whether the folder has an entry of this name. It may be a link to nothing, a folder or a pipe: the error of opening it
/// says so, which helps more than to hear that there is no model.
fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// The `.safetensors` files of a folder, sorted by name.
fn list(folder: &Path) -> Result<Vec<PathBuf>, FormatError> {
    let at = |error: std::io::Error| FormatError::new(folder, error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(at)? {
        let path = entry.map_err(at)?.path();
        if path.extension() == Some(OsStr::new("safetensors")) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
