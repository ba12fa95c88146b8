//! GGUF: the container of llama.cpp, versions 2 and 3, little-endian, in one file or split.
//!
//! A file is a header (metadata, then a directory of tensors) followed by the tensors' bytes. Everything is checked
//! at [`Gguf::open`]: after that, every value and every tensor lies inside its file. Nothing is copied but names.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod error;
mod ggml_type;
mod header;
mod metadata;
mod reader;
mod split;
mod value;
mod writer;

use std::path::Path;

pub use error::GgufError;
pub use ggml_type::GgmlType;
pub use header::{Header, TensorInfo};
pub use metadata::Metadata;
pub use value::{Array, MetadataValue, ValueType};
pub use writer::{GgufTensors, GgufWriter, Value, WriteError};

use crate::bytes::Bytes;
use crate::error::FormatError;
use crate::tensor::{Tensor, TensorEntry, TensorTable};

/// An open GGUF checkpoint.
#[derive(Debug)]
pub struct Gguf {
    version: u32,
    alignment: u32,
    metadata: Metadata,
    /// In file order, as in `table`.
    infos: Vec<TensorInfo>,
    table: TensorTable,
}

impl Gguf {
    /// Opens a file, or the first file of a split checkpoint together with the others, which lie beside it.
    ///
    /// # Errors
    /// Whatever rule of the format is broken, a file is too short for its tensors, or a part of the split is
    /// missing or belongs to another checkpoint.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf, FormatError> {
        let path = path.as_ref();
        let mut gguf = Gguf::from_file(Bytes::map(path)?, path)?;
        split::open_rest(&mut gguf, path)?;
        Ok(gguf)
    }

    /// Opens a checkpoint that is part of the program. `name` stands for its path in messages.
    ///
    /// # Errors
    /// As for [`Gguf::open`]; a split checkpoint is refused.
    pub fn from_static(bytes: &'static [u8], name: &str) -> Result<Gguf, FormatError> {
        let gguf = Gguf::from_file(Bytes::Static(bytes), Path::new(name))?;
        split::refuse(&gguf, Path::new(name))?;
        Ok(gguf)
    }

    fn from_file(bytes: Bytes, path: &Path) -> Result<Gguf, FormatError> {
        let Header { version, alignment, entries, tensors } =
            Header::parse(&bytes).map_err(|error| FormatError::new(path, error))?;
        let mut table = TensorTable::default();
        let file = table.add_file(bytes);
        let metadata = Metadata::new(path, table.file(file).clone(), entries);
        let mut gguf = Gguf { version, alignment, metadata, infos: Vec::new(), table };
        gguf.add_tensors(file, tensors).map_err(|error| FormatError::new(path, error))?;
        Ok(gguf)
    }

    fn add_tensors(&mut self, file: usize, tensors: Vec<TensorInfo>) -> Result<(), GgufError> {
        for info in tensors {
            let entry = TensorEntry {
                name: info.name.clone(),
                dtype: info.kind.dtype(),
                shape: info.shape(),
                file,
                range: info.range.clone(),
            };
            self.table.add(entry).map_err(|taken| GgufError::DuplicateTensor { tensor: taken.name.clone() })?;
            self.infos.push(info);
        }
        Ok(())
    }

    /// Version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of tensor data in bytes.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// The metadata; of a split checkpoint, that of its first file.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensor directory in file order.
    pub fn infos(&self) -> &[TensorInfo] {
        &self.infos
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.table.get(name)
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.table.iter()
    }

    pub(crate) fn table(&self) -> &TensorTable {
        &self.table
    }
}
