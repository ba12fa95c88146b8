//! Which shard a tensor is in.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::SafetensorsError;
use crate::config::read_json;
use crate::error::FormatError;

/// The content of `model.safetensors.index.json`, every file name checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    shards: Vec<String>,
    tensors: Vec<(String, String)>,
}

impl Index {
    /// Reads an index file.
    ///
    /// # Errors
    /// It is not JSON, has no `weight_map`, or names a file that is not directly in the folder.
    pub fn read(path: &Path) -> Result<Index, FormatError> {
        Index::from_json(&read_json(path)?).map_err(|error| FormatError::new(path, error))
    }

    fn from_json(json: &Value) -> Result<Index, SafetensorsError> {
        let map = json.get("weight_map").and_then(Value::as_object).ok_or(SafetensorsError::IndexWithoutMap)?;
        let mut index = Index { shards: Vec::new(), tensors: Vec::new() };
        let mut known = HashSet::new();
        for (tensor, shard) in map {
            let shard = shard.as_str().ok_or(SafetensorsError::IndexWithoutMap)?;
            if !is_plain_name(shard) {
                return Err(SafetensorsError::ShardOutside { tensor: tensor.clone(), shard: shard.to_owned() });
            }
            if known.insert(shard) {
                index.shards.push(shard.to_owned());
            }
            index.tensors.push((tensor.clone(), shard.to_owned()));
        }
        index.shards.sort();
        Ok(index)
    }

    /// The shards, each once, sorted by name.
    pub fn shards(&self) -> &[String] {
        &self.shards
    }

    /// Each tensor and its shard.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &str)> {
        self.tensors.iter().map(|(tensor, shard)| (tensor.as_str(), shard.as_str()))
    }
}

/// Whether a name stays in its folder on every system: no separator, drive, stream or parent. Symbolic links in the
/// folder are followed: that is how the cache of the Hugging Face hub stores files.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', ':', '\0'])
}

/// The shards, if the file names are `NAME-00001-of-00003.safetensors` and so on for one NAME. The inner error is a
/// shard that is missing.
pub(super) fn complete_set(files: &[PathBuf]) -> Option<Result<Vec<String>, SafetensorsError>> {
    let mut names = files.iter().map(|file| file.file_name().and_then(|name| name.to_str()));
    let (stem, _, count) = names.clone().next().flatten().and_then(parts)?;
    if !names.all(|name| matches!(name.and_then(parts), Some((s, _, c)) if (s, c) == (stem, count))) {
        return None;
    }
    if files.len() > count {
        return None;
    }
    let shards: Vec<String> =
        (1..=count).map(|number| format!("{stem}-{number:05}-of-{count:05}.safetensors")).collect();
    let present: HashSet<&str> = files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
    match shards.iter().find(|shard| !present.contains(shard.as_str())) {
        Some(shard) => Some(Err(SafetensorsError::MissingShard { shard: shard.clone(), count })),
        None => Some(Ok(shards)),
    }
}

/// Stem, number and count of a shard's name. Five digits each, so `count` is at most 99999.
fn parts(name: &str) -> Option<(&str, usize, usize)> {
    let rest = name.strip_suffix(".safetensors")?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| (text.len() == 5).then(|| text.parse().ok()).flatten();
    Some((stem, digits(number)?, digits(count)?))
}
