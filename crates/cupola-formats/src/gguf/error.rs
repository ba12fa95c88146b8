//! What can be wrong with a GGUF file.

use super::GgmlType;

/// A broken rule of the format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message of each is its documentation.
pub enum GgufError {
    #[error("the file is empty")]
    Empty,
    #[error("not a GGUF file: it starts with {} instead of \"GGUF\"", magic.escape_ascii())]
    Magic { magic: Vec<u8> },
    #[error(
        "a big-endian GGUF file (its version reads as {version:#010x}); only little-endian files are supported: convert it with gguf-py's gguf_convert_endian"
    )]
    BigEndian { version: u32 },
    #[error(
        "GGUF version 1, which was used for a few weeks of 2023 and is not supported; convert the model anew or look for a newer file"
    )]
    Version1,
    #[error("GGUF version {version}; versions 2 and 3 are supported")]
    Version { version: u32 },
    #[error(
        "the file ends too early: {what} at byte {offset} takes {needed} bytes, {left} are left; is the download complete?"
    )]
    Truncated { what: String, offset: u64, needed: u64, left: u64 },
    #[error("the header announces {count} {what}, more than the {left} bytes left in the file can hold")]
    TooMany { what: &'static str, count: u64, left: u64 },
    #[error("the key at byte {offset} is {length} bytes long; at most 65535 are allowed")]
    KeyTooLong { offset: u64, length: u64 },
    #[error("the {what} at byte {offset} is not valid UTF-8")]
    NameNotUtf8 { what: &'static str, offset: u64 },
    #[error("key `{key}` occurs twice")]
    DuplicateKey { key: String },
    #[error("`{key}` has value type {number}; types 0 to 12 are defined")]
    ValueType { key: String, number: u32 },
    #[error("`{key}` holds a boolean of value {value}; only 0 and 1 are allowed")]
    Bool { key: String, value: u8 },
    #[error("`{key}` is an array of {count} elements, more than the {left} bytes left in the file can hold")]
    ArrayTooLong { key: String, count: u64, left: u64 },
    #[error("`{key}` nests arrays more than {limit} deep")]
    Nesting { key: String, limit: u32 },
    #[error("`tokenizer.ggml.tokens` is empty: a vocabulary without tokens is of no use")]
    EmptyVocabulary,
    #[error("`general.alignment` should be a 32-bit unsigned integer, found {found}")]
    AlignmentType { found: String },
    #[error("`general.alignment` is {alignment}; it should be a power of two and at least 8")]
    Alignment { alignment: u32 },
    #[error("the name of tensor number {number} is {length} bytes long; at most 64 are allowed")]
    NameTooLong { number: u64, length: u64 },
    #[error("tensor `{tensor}` occurs twice")]
    DuplicateTensor { tensor: String },
    #[error("tensor `{tensor}` has {count} dimensions; 1 to 4 are allowed")]
    Dimensions { tensor: String, count: u32 },
    #[error("tensor `{tensor}` has no elements: its dimensions are {dims:?}")]
    NoElements { tensor: String, dims: Vec<u64> },
    #[error("tensor `{tensor}` is too large for any memory: its dimensions are {dims:?}")]
    TooLarge { tensor: String, dims: Vec<u64> },
    #[error("tensor `{tensor}` has type {number}, which was removed from ggml; convert the model anew")]
    RemovedType { tensor: String, number: u32 },
    #[error("tensor `{tensor}` has type {number}, which ggml does not define")]
    UnknownType { tensor: String, number: u32 },
    #[error("tensor `{tensor}` has rows of {row} values, not a multiple of the {block} values in a block of {kind}")]
    PartialBlock { tensor: String, kind: GgmlType, row: u64, block: u64 },
    #[error(
        "the data of tensor `{tensor}` starts at offset {offset}, which is not a multiple of the alignment {alignment}"
    )]
    Misaligned { tensor: String, offset: u64, alignment: u32 },
    #[error(
        "the data of tensor `{tensor}` should be bytes {start} to {end} of the file, which has only {length}; is the download complete?"
    )]
    DataTruncated { tensor: String, start: u64, end: u64, length: u64 },
    #[error("the data of tensors `{first}` and `{second}` overlap")]
    Overlap { first: String, second: String },
    #[error(
        "this is part {number} of a checkpoint split into {count}; open its first part, NAME-00001-of-{count:05}.gguf"
    )]
    NotFirstPart { number: u64, count: u64 },
    #[error(
        "this is the first of {count} parts, but its name does not end in -00001-of-{count:05}.gguf, so the others cannot be found"
    )]
    PartName { count: u64 },
    #[error("part {number} of {count} of the checkpoint is missing: there is no {name} beside it")]
    MissingPart { number: u64, count: u64, name: String },
    #[error("`{key}` is {found} in this part; {expected} was expected from the other parts")]
    PartMismatch { key: &'static str, expected: u64, found: String },
    #[error("the parts hold {found} tensors together, `split.tensors.count` announces {expected}")]
    PartTensors { expected: u64, found: u64 },
    #[error("a split checkpoint cannot be read from memory")]
    PartInMemory,
}
