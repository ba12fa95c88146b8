//! Checkpoints split over several files.
//!
//! Each part is a GGUF file with some of the tensors. `split.no` counts from 0, while file names count from 1:
//! `NAME-00001-of-00003.gguf` has `split.no` 0. The metadata that matters is in the first part.

use std::path::Path;

use super::{Gguf, GgufError, Header, Metadata};
use crate::bytes::Bytes;
use crate::error::FormatError;

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// Opens the other parts of the checkpoint whose first part is open.
pub(super) fn open_rest(gguf: &mut Gguf, path: &Path) -> Result<(), FormatError> {
    let Some(count) = part_count(gguf.metadata())? else { return Ok(()) };
    let at_first = |error: GgufError| FormatError::new(path, error);
    let number = gguf.metadata().u64(NUMBER)?;
    if number != 0 {
        // For people: counted from 1, as in the name of the file.
        return Err(at_first(GgufError::NotFirstPart { number: number.saturating_add(1), count }));
    }
    let stem = path
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(|name| name.strip_suffix(&suffix(1, count)))
        .ok_or_else(|| at_first(GgufError::PartName { count }))?;
    for number in 2..=count {
        let name = format!("{stem}{}", suffix(number, count));
        let part = path.with_file_name(&name);
        if !part.exists() {
            return Err(at_first(GgufError::MissingPart { number, count, name }));
        }
        add_part(gguf, &part, number - 1, count)?;
    }
    let found = gguf.infos().len() as u64;
    match gguf.metadata().optional_u64(TENSORS)? {
        Some(expected) if expected != found => Err(at_first(GgufError::PartTensors { expected, found })),
        _ => Ok(()),
    }
}

/// Refuses a checkpoint that has other parts.
pub(super) fn refuse(gguf: &Gguf, path: &Path) -> Result<(), FormatError> {
    match part_count(gguf.metadata())? {
        None => Ok(()),
        Some(_) => Err(FormatError::new(path, GgufError::PartInMemory)),
    }
}

/// Number of parts, for a checkpoint that has more than one.
fn part_count(metadata: &Metadata) -> Result<Option<u64>, FormatError> {
    // The names have room for five digits.
    match metadata.optional_u64(COUNT)? {
        None | Some(0 | 1) => Ok(None),
        Some(count) if count < 100_000 => Ok(Some(count)),
        Some(_) => Err(metadata.error(COUNT, "a whole number below 100000").into()),
    }
}

fn suffix(number: u64, count: u64) -> String {
    format!("-{number:05}-of-{count:05}.gguf")
}

fn add_part(gguf: &mut Gguf, path: &Path, number: u64, count: u64) -> Result<(), FormatError> {
    let at = |error: GgufError| FormatError::new(path, error);
    let bytes = Bytes::map(path)?;
    let header = Header::parse(&bytes).map_err(at)?;
    let file = gguf.table.add_file(bytes);
    let metadata = Metadata::new(path, gguf.table.file(file).clone(), header.entries);
    let total = gguf.metadata().optional_u64(TENSORS)?;
    for (key, expected) in [(NUMBER, Some(number)), (COUNT, Some(count)), (TENSORS, total)] {
        let found = metadata.get(key);
        let number = found.and_then(|value| u64::try_from(value.as_integer()?).ok());
        // The total may be missing, but must not differ.
        let matches = if key == TENSORS { number.is_none() || number == expected } else { number == expected };
        if !matches {
            let found = found.map_or("missing".into(), |value| value.to_string());
            return Err(at(GgufError::PartMismatch { key, expected: expected.unwrap_or_default(), found }));
        }
    }
    gguf.add_tensors(file, header.tensors).map_err(at)
}
