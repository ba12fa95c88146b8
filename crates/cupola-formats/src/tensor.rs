//! Tensors of a checkpoint, whatever file they lie in.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use cupola_quant::Format;

use crate::bytes::{Bytes, FileIdentity};
use crate::gguf::GgmlType;

/// How the elements of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
pub enum Dtype {
    /// A format that a weight can have.
    Weight(Format),
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 64-bit integer.
    I64,
    /// 64-bit float.
    F64,
    /// Two 32-bit floats, real and imaginary part.
    C64,
    /// 4-bit float E2M1, two in a byte.
    F4,
    /// 6-bit float with 2 exponent and 3 mantissa bits, packed.
    F6_E2M3,
    /// 6-bit float with 3 exponent and 2 mantissa bits, packed.
    F6_E3M2,
    /// 8-bit float with 5 exponent and 2 mantissa bits.
    F8_E5M2,
    /// 8-bit float with 4 exponent and 3 mantissa bits, without infinities.
    F8_E4M3,
    /// 8-bit power of two.
    F8_E8M0,
    /// `F8_E4M3` with another bias, one zero and one NaN.
    F8_E4M3FNUZ,
    /// `F8_E5M2` with another bias, one zero and one NaN.
    F8_E5M2FNUZ,
    /// A type of ggml that no weight can have (yet).
    Ggml(GgmlType),
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Dtype::Weight(format) => format.fmt(f),
            Dtype::Bool => f.write_str("BOOL"),
            Dtype::Ggml(kind) => kind.fmt(f),
            // The remaining names are spelt as safetensors spells them.
            other => write!(f, "{other:?}"),
        }
    }
}

/// A tensor of a checkpoint: a view, nothing is copied.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// The name in the file.
    pub name: &'a str,
    /// How the elements are stored.
    pub dtype: Dtype,
    /// Row-major, outermost dimension first, for every container. `[rows, columns]` for a matrix, where a row is
    /// contiguous; empty for a scalar.
    pub shape: &'a [usize],
    /// The stored bytes. Not aligned to anything.
    pub bytes: &'a [u8],
    pub(crate) place: Place<'a>,
}

/// Where the bytes of a tensor lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    table: &'a TensorTable,
    entry: usize,
}

/// A tensor cannot serve as a weight.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tensor `{tensor}` is stored as {dtype}, which this version cannot use as a weight")]
pub struct NotAWeight {
    /// Name of the tensor.
    pub tensor: String,
    /// How it is stored.
    pub dtype: Dtype,
}

impl<'a> Tensor<'a> {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        // Checked when the file was opened.
        self.shape.iter().product()
    }

    /// The format, for a tensor that is used as a weight.
    pub fn format(&self) -> Result<Format, NotAWeight> {
        match self.dtype {
            Dtype::Weight(format) => Ok(format),
            dtype => Err(NotAWeight { tensor: self.name.to_owned(), dtype }),
        }
    }

    /// Asks the system to read the bytes ahead of their use. A hint, free of effect on the content.
    pub fn prefetch(&self) {
        let (bytes, range) = self.place.locate();
        bytes.prefetch(range);
    }

    /// Tells the system that the bytes are not needed again soon, for instance after they were converted: their
    /// memory can be reused. They stay readable, at the price of reading the file again.
    pub fn release(&self) {
        self.release_bytes(0..self.bytes.len());
    }

    /// As [`Tensor::release`], for part of the bytes.
    pub fn release_bytes(&self, part: Range<usize>) {
        let (bytes, range) = self.place.locate();
        bytes.release(range.start.saturating_add(part.start)..range.end.min(range.start.saturating_add(part.end)));
    }
}

impl<'a> Place<'a> {
    fn locate(self) -> (&'a Bytes, Range<usize>) {
        let entry = &self.table.entries[self.entry];
        (&self.table.files[entry.file], entry.range.clone())
    }
}

/// All tensors of a checkpoint, in file order, and the files they lie in.
#[derive(Debug, Default)]
pub(crate) struct TensorTable {
    files: Vec<Arc<Bytes>>,
    entries: Vec<TensorEntry>,
    index: HashMap<String, usize>,
}

/// One tensor of the table. `range` lies within the file: whoever inserts an entry has checked it.
#[derive(Debug)]
pub(crate) struct TensorEntry {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) file: usize,
    pub(crate) range: Range<usize>,
}

impl TensorTable {
    /// Takes a file and gives its number.
    pub(crate) fn add_file(&mut self, bytes: Bytes) -> usize {
        self.files.push(Arc::new(bytes));
        self.files.len() - 1
    }

    /// The bytes of a file added before.
    pub(crate) fn file(&self, number: usize) -> &Arc<Bytes> {
        &self.files[number]
    }

    /// What tells each file from others; absent if one is part of the program.
    pub(crate) fn identities(&self) -> Option<Vec<&FileIdentity>> {
        self.files.iter().map(|file| file.identity()).collect()
    }

    /// Adds a tensor; gives the earlier one back as the error if the name is taken.
    pub(crate) fn add(&mut self, entry: TensorEntry) -> Result<(), &TensorEntry> {
        debug_assert!(self.files[entry.file].get(entry.range.clone()).is_some());
        match self.index.entry(entry.name.clone()) {
            std::collections::hash_map::Entry::Occupied(taken) => Err(&self.entries[*taken.get()]),
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(self.entries.len());
                self.entries.push(entry);
                Ok(())
            }
        }
    }

    pub(crate) fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    pub(crate) fn get(&self, name: &str) -> Option<Tensor<'_>> {
        self.index.get(name).map(|&entry| self.view(entry))
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        (0..self.entries.len()).map(|entry| self.view(entry))
    }

    fn view(&self, number: usize) -> Tensor<'_> {
        let entry = &self.entries[number];
        Tensor {
            name: &entry.name,
            dtype: entry.dtype,
            shape: &entry.shape,
            bytes: &self.files[entry.file][entry.range.clone()],
            place: Place { table: self, entry: number },
        }
    }
}
