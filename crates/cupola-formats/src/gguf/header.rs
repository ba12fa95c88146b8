//! The header of a GGUF file: metadata and tensor directory, checked against the size of the file.

use std::collections::HashSet;
use std::ops::Range;

use super::reader::Reader;
use super::value::{MetadataValue, ValueType, read_value};
use super::{GgmlType, GgufError};

const MAGIC: &[u8; 4] = b"GGUF";
const DEFAULT_ALIGNMENT: u32 = 32;
pub(super) const MAX_KEY: u64 = 65535;
pub(super) const MAX_NAME: u64 = 64;
pub(super) const MAX_DIMS: u32 = 4;

/// Key length, one byte of key, value type, one byte of value.
const SMALLEST_ENTRY: u64 = 8 + 1 + 4 + 1;
/// Name length, number of dimensions, one dimension, type, offset.
const SMALLEST_TENSOR: u64 = 8 + 4 + 8 + 4 + 8;

/// The header of one file.
#[derive(Debug)]
pub struct Header {
    /// Version of the format, 2 or 3.
    pub version: u32,
    /// Alignment of tensor data in bytes.
    pub alignment: u32,
    /// Where the metadata values lie, in file order.
    pub(crate) entries: Vec<Entry>,
    /// The tensor directory in file order.
    pub tensors: Vec<TensorInfo>,
}

/// Where a metadata value lies.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(super) key: String,
    pub(super) kind: ValueType,
    /// The value without its type, from the start of the file.
    pub(super) range: Range<usize>,
}

/// An entry of the tensor directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name of the tensor, unique in the checkpoint.
    pub name: String,
    /// Dimensions as GGUF lists them: the contiguous one first.
    pub dims: Vec<u64>,
    /// How the elements are stored.
    pub kind: GgmlType,
    /// The bytes of the tensor in its file.
    pub range: Range<usize>,
}

impl TensorInfo {
    /// Row-major shape, outermost dimension first. Every dimension was checked to fit.
    pub fn shape(&self) -> Vec<usize> {
        self.dims.iter().rev().map(|&dim| dim as usize).collect()
    }
}

impl Header {
    /// Reads and checks the header at the start of `file`, which is the whole file.
    ///
    /// # Errors
    /// The first rule of the format that is broken. Time and memory are in proportion to the header.
    pub fn parse(file: &[u8]) -> Result<Header, GgufError> {
        let mut reader = Reader::new(file, 0);
        let version = read_version(&mut reader)?;
        let tensor_count = reader.u64(|| "the number of tensors".into())?;
        let entry_count = reader.u64(|| "the number of metadata entries".into())?;
        let entries = read_entries(&mut reader, entry_count)?;
        check_vocabulary(file, &entries)?;
        let alignment = find_alignment(file, &entries)?;
        let tensors = read_tensors(&mut reader, tensor_count, alignment)?;
        Ok(Header { version, alignment, entries, tensors })
    }
}

fn read_version(reader: &mut Reader) -> Result<u32, GgufError> {
    if reader.left() == 0 {
        return Err(GgufError::Empty);
    }
    let magic = reader.take(MAGIC.len() as u64, || "the magic number".into())?;
    if magic != MAGIC {
        return Err(GgufError::Magic { magic: magic.to_vec() });
    }
    match reader.u32(|| "the version".into())? {
        1 => Err(GgufError::Version1),
        version @ (2 | 3) => Ok(version),
        // The version is the first number in the file, and always small: with its bytes reversed it is huge.
        version if version & 0xffff == 0 && version != 0 => Err(GgufError::BigEndian { version }),
        version => Err(GgufError::Version { version }),
    }
}

fn read_entries(reader: &mut Reader, count: u64) -> Result<Vec<Entry>, GgufError> {
    if count > reader.left() / SMALLEST_ENTRY {
        return Err(GgufError::TooMany { what: "metadata entries", count, left: reader.left() });
    }
    let mut entries = Vec::new();
    let mut keys = HashSet::new();
    for number in 0..count {
        let length = reader.u64(|| format!("the length of key number {number}"))?;
        let offset = reader.position() as u64;
        if length > MAX_KEY {
            return Err(GgufError::KeyTooLong { offset, length });
        }
        let key = reader.take(length, || format!("key number {number}"))?;
        let key = std::str::from_utf8(key).map_err(|_| GgufError::NameNotUtf8 { what: "key", offset })?;
        if !keys.insert(key) {
            return Err(GgufError::DuplicateKey { key: key.to_owned() });
        }
        let number = reader.u32(|| format!("the type of `{key}`"))?;
        let kind =
            ValueType::from_number(number).ok_or_else(|| GgufError::ValueType { key: key.to_owned(), number })?;
        let start = reader.position();
        read_value(reader, kind, key, 0)?;
        entries.push(Entry { key: key.to_owned(), kind, range: start..reader.position() });
    }
    Ok(entries)
}

/// The value of a key, if it is there.
fn find<'a>(file: &'a [u8], entries: &[Entry], key: &str) -> Option<MetadataValue<'a>> {
    entries.iter().find(|entry| entry.key == key).and_then(|entry| entry.value(file))
}

impl Entry {
    /// The value. It was read before, so this gives `None` only for a file that changed meanwhile.
    pub(super) fn value<'a>(&self, file: &'a [u8]) -> Option<MetadataValue<'a>> {
        read_value(&mut Reader::new(file.get(..self.range.end)?, self.range.start), self.kind, &self.key, 0).ok()
    }
}

fn check_vocabulary(file: &[u8], entries: &[Entry]) -> Result<(), GgufError> {
    match find(file, entries, "tokenizer.ggml.tokens") {
        Some(MetadataValue::Array(tokens)) if tokens.is_empty() => Err(GgufError::EmptyVocabulary),
        _ => Ok(()),
    }
}

fn find_alignment(file: &[u8], entries: &[Entry]) -> Result<u32, GgufError> {
    match find(file, entries, "general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(MetadataValue::U32(alignment)) if alignment >= 8 && alignment.is_power_of_two() => Ok(alignment),
        Some(MetadataValue::U32(alignment)) => Err(GgufError::Alignment { alignment }),
        Some(other) => Err(GgufError::AlignmentType { found: format!("{other} ({})", other.kind()) }),
    }
}

/// A directory entry whose offset was not yet checked.
struct Declared {
    name: String,
    dims: Vec<u64>,
    kind: GgmlType,
    offset: u64,
}

fn read_tensors(reader: &mut Reader, count: u64, alignment: u32) -> Result<Vec<TensorInfo>, GgufError> {
    if count > reader.left() / SMALLEST_TENSOR {
        return Err(GgufError::TooMany { what: "tensors", count, left: reader.left() });
    }
    let length = reader.position() as u64 + reader.left();
    let mut declared = Vec::new();
    let mut names = HashSet::new();
    for number in 0..count {
        let tensor = read_declaration(reader, number)?;
        if !names.insert(tensor.name.clone()) {
            return Err(GgufError::DuplicateTensor { tensor: tensor.name });
        }
        declared.push(tensor);
    }
    // Both fit easily: a position in memory and a u32.
    let data_start = (reader.position() as u64).next_multiple_of(alignment.into());
    place(declared, data_start, length, alignment)
}

fn read_declaration(reader: &mut Reader, number: u64) -> Result<Declared, GgufError> {
    let length = reader.u64(|| format!("the length of the name of tensor number {number}"))?;
    let offset = reader.position() as u64;
    if length > MAX_NAME {
        return Err(GgufError::NameTooLong { number, length });
    }
    let name = reader.take(length, || format!("the name of tensor number {number}"))?;
    let name = std::str::from_utf8(name).map_err(|_| GgufError::NameNotUtf8 { what: "tensor name", offset })?;
    let tensor = || name.to_owned();
    let what = || format!("the directory entry of tensor `{name}`");
    let count = reader.u32(what)?;
    if count == 0 || count > MAX_DIMS {
        return Err(GgufError::Dimensions { tensor: tensor(), count });
    }
    let dims = (0..count).map(|_| reader.u64(what)).collect::<Result<Vec<u64>, _>>()?;
    if dims.contains(&0) {
        return Err(GgufError::NoElements { tensor: tensor(), dims });
    }
    let kind = GgmlType(reader.u32(what)?);
    if kind.is_removed() {
        return Err(GgufError::RemovedType { tensor: tensor(), number: kind.0 });
    }
    if !kind.is_plausible() {
        return Err(GgufError::UnknownType { tensor: tensor(), number: kind.0 });
    }
    let offset = reader.u64(what)?;
    Ok(Declared { name: tensor(), dims, kind, offset })
}

/// Gives every tensor its bytes.
fn place(declared: Vec<Declared>, data_start: u64, length: u64, alignment: u32) -> Result<Vec<TensorInfo>, GgufError> {
    // Offsets in order, for overlaps and for the size of tensors of an unknown type.
    let mut order: Vec<usize> = (0..declared.len()).collect();
    order.sort_by_key(|&number| declared[number].offset);
    let mut ranges = vec![0..0; declared.len()];
    let mut previous: Option<(usize, u64)> = None;
    for (rank, &number) in order.iter().enumerate() {
        let Declared { name, dims, kind, offset } = &declared[number];
        let tensor = || name.clone();
        if !offset.is_multiple_of(alignment.into()) {
            return Err(GgufError::Misaligned { tensor: tensor(), offset: *offset, alignment });
        }
        let too_large = || GgufError::TooLarge { tensor: tensor(), dims: dims.clone() };
        let elements = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim)).ok_or_else(too_large)?;
        // Shapes and sizes are `usize` from here on.
        usize::try_from(elements).map_err(|_| too_large())?;
        let start = data_start.checked_add(*offset).ok_or_else(too_large)?;
        let end = match kind.block() {
            Some((block, bytes)) => {
                if !dims[0].is_multiple_of(block) {
                    return Err(GgufError::PartialBlock { tensor: tensor(), kind: *kind, row: dims[0], block });
                }
                let size = (elements / block).checked_mul(bytes).ok_or_else(too_large)?;
                start.checked_add(size).ok_or_else(too_large)?
            }
            // Up to the next tensor, padding included: the size of a block is unknown.
            None => match order.get(rank + 1) {
                Some(&next) => data_start.checked_add(declared[next].offset).ok_or_else(too_large)?,
                None => length.max(start),
            },
        };
        if end > length || start > length {
            return Err(GgufError::DataTruncated { tensor: tensor(), start, end, length });
        }
        if let Some((before, _)) = previous.filter(|&(_, end)| end > start) {
            return Err(GgufError::Overlap { first: declared[before].name.clone(), second: tensor() });
        }
        previous = Some((number, end));
        // Within the file, so within memory.
        ranges[number] = start as usize..end as usize;
    }
    let infos = declared.into_iter().zip(ranges);
    Ok(infos.map(|(Declared { name, dims, kind, .. }, range)| TensorInfo { name, dims, kind, range }).collect())
}
