//! Writes GGUF files, version 3.
//!
//! The header names every tensor with its size, so all are declared before the first byte of data: a [`GgufWriter`]
//! collects metadata and declarations, [`GgufWriter::create`] writes the header, and [`GgufTensors`] takes the data
//! in the order of declaration, in pieces of any size. The file appears under its name when it is complete.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::read::check_is_file;

use super::header::{MAX_DIMS, MAX_KEY, MAX_NAME};
use super::value::ValueType;
use super::{GgmlType, Metadata};

const VERSION: u32 = 3;
const ALIGNMENT: u64 = 32;

/// A metadata value to be written.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    U64(u64),
    I64(i64),
    F64(f64),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
    Strings(Vec<String>),
}

impl Value {
    fn kind(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
            Value::U32s(_) | Value::I32s(_) | Value::F32s(_) | Value::Bools(_) | Value::Strings(_) => ValueType::Array,
        }
    }

    fn stored(&self) -> Vec<u8> {
        match self {
            Value::U8(value) => vec![*value],
            Value::I8(value) => value.to_le_bytes().into(),
            Value::U16(value) => value.to_le_bytes().into(),
            Value::I16(value) => value.to_le_bytes().into(),
            Value::U32(value) => value.to_le_bytes().into(),
            Value::I32(value) => value.to_le_bytes().into(),
            Value::F32(value) => value.to_le_bytes().into(),
            Value::Bool(value) => vec![(*value).into()],
            Value::String(value) => string(value),
            Value::U64(value) => value.to_le_bytes().into(),
            Value::I64(value) => value.to_le_bytes().into(),
            Value::F64(value) => value.to_le_bytes().into(),
            Value::U32s(values) => array(ValueType::U32, values, |value| value.to_le_bytes()),
            Value::I32s(values) => array(ValueType::I32, values, |value| value.to_le_bytes()),
            Value::F32s(values) => array(ValueType::F32, values, |value| value.to_le_bytes()),
            Value::Bools(values) => array(ValueType::Bool, values, |&value| [u8::from(value)]),
            Value::Strings(values) => array(ValueType::String, values, |value| string(value)),
        }
    }
}

fn string(text: &str) -> Vec<u8> {
    let mut stored = (text.len() as u64).to_le_bytes().to_vec();
    stored.extend_from_slice(text.as_bytes());
    stored
}

fn array<T, B: IntoIterator<Item = u8>>(kind: ValueType, values: &[T], bytes: impl Fn(&T) -> B) -> Vec<u8> {
    let mut stored = kind.number().to_le_bytes().to_vec();
    stored.extend((values.len() as u64).to_le_bytes());
    stored.extend(values.iter().flat_map(bytes));
    stored
}

/// A file cannot be written, or the caller broke a rule of the format.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message of each is its documentation.
pub enum WriteError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    #[error("metadata key `{key}` is set twice")]
    DuplicateKey { key: String },
    #[error("metadata key `{key}` is set by the writer itself")]
    ReservedKey { key: String },
    #[error("metadata key `{key}` is empty or longer than 65535 bytes")]
    BadKey { key: String },
    #[error("tensor `{tensor}` is declared twice")]
    DuplicateTensor { tensor: String },
    #[error("the name of tensor `{tensor}` is longer than 64 bytes")]
    NameTooLong { tensor: String },
    #[error("tensor `{tensor}` cannot have shape {shape:?}: 1 to 4 dimensions, none of them 0, are allowed")]
    Shape { tensor: String, shape: Vec<usize> },
    #[error("tensor `{tensor}` cannot be stored as {kind}: its rows have {row} values, not a multiple of {block}")]
    PartialBlock { tensor: String, kind: GgmlType, row: usize, block: u64 },
    #[error("tensor `{tensor}` is to be stored as {kind}, whose block size is not known")]
    UnknownType { tensor: String, kind: GgmlType },
    #[error("tensor `{found}` is written, but `{expected}` was declared next")]
    Order { expected: String, found: String },
    #[error("tensor `{tensor}` takes {expected} bytes, {found} were written")]
    Size { tensor: String, expected: u64, found: u64 },
}

/// A tensor that will be written.
#[derive(Debug)]
struct Declared {
    name: String,
    shape: Vec<usize>,
    kind: GgmlType,
    size: u64,
}

/// Metadata and tensor declarations of a file to be written.
#[derive(Debug, Default)]
pub struct GgufWriter {
    metadata: Vec<(String, ValueType, Vec<u8>)>,
    keys: HashSet<String>,
    tensors: Vec<Declared>,
    names: HashSet<String>,
}

impl GgufWriter {
    /// An empty file.
    pub fn new() -> GgufWriter {
        GgufWriter::default()
    }

    /// Whether a key was set.
    pub fn has(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// Adds a metadata value after those set before.
    ///
    /// # Errors
    /// The key is set already, or belongs to the writer (`general.alignment`), or is not a key.
    pub fn set(&mut self, key: &str, value: Value) -> Result<(), WriteError> {
        self.set_stored(key, value.kind(), value.stored())
    }

    /// Adds a value of another file exactly as it is stored there; does nothing if `from` lacks it.
    ///
    /// # Errors
    /// As for [`GgufWriter::set`].
    pub fn copy(&mut self, from: &Metadata, key: &str) -> Result<(), WriteError> {
        match from.stored(key) {
            Some((kind, stored)) => self.set_stored(key, kind, stored.to_vec()),
            None => Ok(()),
        }
    }

    fn set_stored(&mut self, key: &str, kind: ValueType, stored: Vec<u8>) -> Result<(), WriteError> {
        if key == "general.alignment" {
            return Err(WriteError::ReservedKey { key: key.to_owned() });
        }
        if key.is_empty() || key.len() as u64 > MAX_KEY {
            return Err(WriteError::BadKey { key: key.to_owned() });
        }
        if !self.keys.insert(key.to_owned()) {
            return Err(WriteError::DuplicateKey { key: key.to_owned() });
        }
        self.metadata.push((key.to_owned(), kind, stored));
        Ok(())
    }

    /// Declares the next tensor. `shape` is row-major, outermost dimension first.
    ///
    /// # Errors
    /// The name is taken or too long, or the shape and the type do not go together.
    pub fn declare(&mut self, name: &str, shape: &[usize], kind: GgmlType) -> Result<(), WriteError> {
        let tensor = || name.to_owned();
        if name.len() as u64 > MAX_NAME {
            return Err(WriteError::NameTooLong { tensor: tensor() });
        }
        let bad_shape = || WriteError::Shape { tensor: tensor(), shape: shape.to_vec() };
        let row = *shape.last().ok_or_else(bad_shape)?;
        if shape.len() > MAX_DIMS as usize || shape.contains(&0) {
            return Err(bad_shape());
        }
        let (block, bytes) = kind.block().ok_or_else(|| WriteError::UnknownType { tensor: tensor(), kind })?;
        if !(row as u64).is_multiple_of(block) {
            return Err(WriteError::PartialBlock { tensor: tensor(), kind, row, block });
        }
        let elements = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim as u64));
        let size = elements.and_then(|elements| (elements / block).checked_mul(bytes)).ok_or_else(bad_shape)?;
        if !self.names.insert(tensor()) {
            return Err(WriteError::DuplicateTensor { tensor: tensor() });
        }
        self.tensors.push(Declared { name: tensor(), shape: shape.to_vec(), kind, size });
        Ok(())
    }

    /// Writes the header. The data of the tensors follows through the value returned.
    ///
    /// # Errors
    /// The file cannot be created or written.
    pub fn create(self, path: impl AsRef<Path>) -> Result<GgufTensors, WriteError> {
        let mut header = b"GGUF".to_vec();
        header.extend(VERSION.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, kind, stored) in &self.metadata {
            header.extend(string(key));
            header.extend(kind.number().to_le_bytes());
            header.extend(stored);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            header.extend(string(&tensor.name));
            header.extend((tensor.shape.len() as u32).to_le_bytes());
            for &dim in tensor.shape.iter().rev() {
                header.extend((dim as u64).to_le_bytes());
            }
            header.extend(tensor.kind.0.to_le_bytes());
            header.extend(offset.to_le_bytes());
            offset = offset
                .checked_add(tensor.size)
                .and_then(|end| end.checked_next_multiple_of(ALIGNMENT))
                .ok_or_else(|| WriteError::Shape { tensor: tensor.name.clone(), shape: tensor.shape.clone() })?;
        }
        let mut file = PartFile::create(path.as_ref())?;
        file.write(&header)?;
        file.pad()?;
        Ok(GgufTensors { file, tensors: self.tensors, current: 0, written: 0 })
    }
}

/// Takes the data of declared tensors. Dropped before [`GgufTensors::finish`], it leaves nothing behind.
#[derive(Debug)]
pub struct GgufTensors {
    file: PartFile,
    tensors: Vec<Declared>,
    /// The tensor whose data is being written.
    current: usize,
    /// Bytes of it that were.
    written: u64,
}

impl GgufTensors {
    /// Appends bytes to the next tensor that is not complete, which must be `tensor`.
    ///
    /// # Errors
    /// Another tensor comes next, or this one would get more bytes than its declaration says, or the disk is full.
    pub fn write(&mut self, tensor: &str, bytes: &[u8]) -> Result<(), WriteError> {
        let Some(declared) = self.tensors.get(self.current).filter(|declared| declared.name == tensor) else {
            let expected = self.tensors.get(self.current).map_or("nothing", |declared| &declared.name);
            return Err(WriteError::Order { expected: expected.to_owned(), found: tensor.to_owned() });
        };
        let found = self.written.saturating_add(bytes.len() as u64);
        if found > declared.size {
            return Err(WriteError::Size { tensor: tensor.to_owned(), expected: declared.size, found });
        }
        self.file.write(bytes)?;
        self.written = found;
        if found == declared.size {
            self.file.pad()?;
            self.current += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// Completes the file and gives it its name, replacing a file of that name.
    ///
    /// # Errors
    /// A tensor is incomplete, or the disk is full.
    pub fn finish(self) -> Result<(), WriteError> {
        if let Some(declared) = self.tensors.get(self.current) {
            let tensor = declared.name.clone();
            return Err(WriteError::Size { tensor, expected: declared.size, found: self.written });
        }
        self.file.finish()
    }
}

/// A file that gets its name when it is complete.
#[derive(Debug)]
struct PartFile {
    path: PathBuf,
    part: PathBuf,
    /// `None` once finished.
    out: Option<BufWriter<File>>,
    position: u64,
}

impl PartFile {
    fn create(path: &Path) -> Result<PartFile, WriteError> {
        // Renaming over a device or pipe would put a file in its place, for every program on the machine.
        if let Ok(metadata) = std::fs::metadata(path) {
            check_is_file(&metadata).map_err(|error| WriteError::Io { path: path.into(), error })?;
        }
        // In the same folder, so that renaming is one step; with the process id, so that two writers do not meet.
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        let out = File::create(&part).map_err(|error| WriteError::Io { path: part.clone(), error })?;
        Ok(PartFile { path: path.into(), part, out: Some(BufWriter::with_capacity(1 << 20, out)), position: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        if let Some(out) = &mut self.out {
            out.write_all(bytes).map_err(|error| WriteError::Io { path: self.part.clone(), error })?;
            self.position += bytes.len() as u64;
        }
        Ok(())
    }

    fn pad(&mut self) -> Result<(), WriteError> {
        let padding = self.position.next_multiple_of(ALIGNMENT) - self.position;
        self.write(&[0; ALIGNMENT as usize][..padding as usize])
    }

    fn finish(mut self) -> Result<(), WriteError> {
        let Some(out) = self.out.take() else { return Ok(()) };
        let done = out
            .into_inner()
            .map_err(|error| error.into_error())
            .and_then(|file| file.sync_all())
            .and_then(|()| std::fs::rename(&self.part, &self.path));
        done.map_err(|error| {
            // The error that matters is the first one.
            let _ = std::fs::remove_file(&self.part);
            WriteError::Io { path: self.path.clone(), error }
        })
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if let Some(out) = self.out.take() {
            // Close first: some systems do not remove open files. What is buffered need not be written.
            drop(out.into_parts());
            let _ = std::fs::remove_file(&self.part);
        }
    }
}
