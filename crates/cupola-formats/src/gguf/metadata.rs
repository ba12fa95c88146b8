//! Metadata of a GGUF file with typed access.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::header::Entry;
use super::value::{Array, MetadataValue, ValueType};
use crate::bytes::Bytes;
use crate::error::KeyError;
use crate::getters::getters;

/// The metadata of a GGUF checkpoint: keys and typed values in file order.
///
/// Getters come in pairs: `u32` reports a missing key as an error, `optional_u32` gives `None` for it. Both report
/// a value of the wrong type. Integers of any width are accepted where the number fits.
#[derive(Debug)]
pub struct Metadata {
    path: PathBuf,
    file: Arc<Bytes>,
    entries: Vec<Entry>,
    index: HashMap<String, usize>,
}

impl Metadata {
    pub(super) fn new(path: &Path, file: Arc<Bytes>, entries: Vec<Entry>) -> Metadata {
        let index = entries.iter().enumerate().map(|(number, entry)| (entry.key.clone(), number)).collect();
        Metadata { path: path.into(), file, entries, index }
    }

    /// The file that the values are in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<MetadataValue<'_>> {
        self.entry(key)?.value(&self.file)
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, MetadataValue<'_>)> {
        self.entries.iter().filter_map(|entry| Some((entry.key.as_str(), entry.value(&self.file)?)))
    }

    /// Type and bytes of a value as they are stored, for a copy into another file.
    pub(super) fn stored(&self, key: &str) -> Option<(ValueType, &[u8])> {
        let entry = self.entry(key)?;
        Some((entry.kind, self.file.get(entry.range.clone())?))
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        self.index.get(key).map(|&number| &self.entries[number])
    }

    /// An error about the value of `key` in this file, for checks that go beyond types.
    pub fn error(&self, key: &str, expected: impl Into<String>) -> KeyError {
        let found = match self.get(key) {
            Some(value @ MetadataValue::String(_)) if value.as_str().is_none() => "a string that is not UTF-8".into(),
            Some(value @ (MetadataValue::String(_) | MetadataValue::Array(_))) => value.to_string(),
            Some(value) => format!("{value} ({})", value.kind()),
            None => "nothing".into(),
        };
        KeyError::new(&self.path, key, expected, found)
    }
}

const U32: &str = "a whole number from 0 to 4294967295";
const U64: &str = "a whole number, not negative";
const FLOAT: &str = "a number";
const BOOL: &str = "true or false";
const STR: &str = "a string in UTF-8";
const STRINGS: &str = "an array of strings in UTF-8";
const BYTE_STRINGS: &str = "an array of strings";
const U32S: &str = "an array of whole numbers from 0 to 4294967295";
const I32S: &str = "an array of whole numbers that fit 32 bits";
const F32S: &str = "an array of numbers";
const BOOLS: &str = "an array of true and false";

getters! {
    Metadata;

    /// An integer that fits.
    u32, optional_u32 -> u32, U32, |value| value.as_integer()?.try_into().ok();
    /// An integer that fits.
    u64, optional_u64 -> u64, U64, |value| value.as_integer()?.try_into().ok();
    /// A number, rounded to `f32`.
    f32, optional_f32 -> f32, FLOAT, |value| value.as_float().map(|value| value as f32);
    /// A number.
    f64, optional_f64 -> f64, FLOAT, |value| value.as_float();
    /// A boolean.
    bool, optional_bool -> bool, BOOL, |value| value.as_bool();
    /// A string.
    str, optional_str -> &str, STR, |value| value.as_str();
    /// An array of strings.
    strings, optional_strings -> Vec<&str>, STRINGS, |value| collect(value, |element| element.as_str());
    /// An array of strings that need not be text.
    byte_strings, optional_byte_strings -> Vec<&[u8]>, BYTE_STRINGS, |value| collect(value, |element| match element {
        MetadataValue::String(bytes) => Some(bytes),
        _ => None,
    });
    /// An array of integers that fit.
    u32s, optional_u32s -> Vec<u32>, U32S, |value| collect(value, |element| element.as_integer()?.try_into().ok());
    /// An array of integers that fit.
    i32s, optional_i32s -> Vec<i32>, I32S, |value| collect(value, |element| element.as_integer()?.try_into().ok());
    /// An array of numbers, rounded to `f32`.
    f32s, optional_f32s -> Vec<f32>, F32S, |value| collect(value, |element| element.as_float().map(|x| x as f32));
    /// An array of booleans.
    bools, optional_bools -> Vec<bool>, BOOLS, |value| collect(value, |element| element.as_bool());
}

fn collect<'a, T>(value: MetadataValue<'a>, convert: impl Fn(MetadataValue<'a>) -> Option<T>) -> Option<Vec<T>> {
    let array: Array<'a> = value.as_array()?;
    array.elements().map(convert).collect()
}
