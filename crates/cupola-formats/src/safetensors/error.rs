//! What can be wrong with safetensors files.

use std::path::PathBuf;

/// A broken rule of the format, or of a set of shards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message of each is its documentation.
pub enum SafetensorsError {
    #[error("the file has {length} bytes; a safetensors file starts with 8 bytes that give the length of its header")]
    TooShort { length: usize },
    #[error(
        "the header is said to be {length} bytes long; at most 100000000 are allowed, so this is hardly a safetensors file"
    )]
    HeaderTooLong { length: u64 },
    #[error("the header takes {length} bytes, the file has {left} after its length; is the download complete?")]
    HeaderTruncated { length: u64, left: u64 },
    #[error("the header is not what it should be: {message}")]
    Header { message: String },
    #[error("tensor `{tensor}` has type {dtype}, which this version does not know")]
    UnknownDtype { tensor: String, dtype: String },
    #[error("tensor `{tensor}` has shape {shape:?}, which is too large for any memory")]
    TooLarge { tensor: String, shape: Vec<usize> },
    #[error("tensor `{tensor}` of {dtype} and shape {shape:?} does not end on a whole byte")]
    PartialByte { tensor: String, dtype: String, shape: Vec<usize> },
    #[error(
        "tensor `{tensor}` of {dtype} and shape {shape:?} takes {expected} bytes; its offsets {start} to {end} give it another size"
    )]
    Size { tensor: String, dtype: String, shape: Vec<usize>, expected: usize, start: usize, end: usize },
    #[error("tensor `{tensor}` starts at offset {start}, but the data before it ends at {end}: the data overlap")]
    Overlap { tensor: String, start: usize, end: usize },
    #[error("tensor `{tensor}` starts at offset {start}, but the data before it ends at {end}: there is a hole")]
    Hole { tensor: String, start: usize, end: usize },
    #[error("the data should be {expected} bytes, the file has {found}; is the download complete?")]
    DataLength { expected: usize, found: usize },
    #[error("tensor `{tensor}` is also in {}", first.display())]
    DuplicateTensor { tensor: String, first: PathBuf },
    #[error("the index has no `weight_map` that gives a file name for each tensor")]
    IndexWithoutMap,
    #[error(
        "the index places tensor `{tensor}` in `{shard}`; only plain names of files in the same folder are allowed"
    )]
    ShardOutside { tensor: String, shard: String },
    #[error("the index places tensor `{tensor}` in `{shard}`, which does not contain it")]
    NotInShard { tensor: String, shard: String },
    #[error("shard `{shard}` is missing (the model has {count}); is the download complete?")]
    MissingShard { shard: String, count: usize },
}
