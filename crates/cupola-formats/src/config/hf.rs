//! `config.json` with typed access.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::json::{JsonError, read_json};
use crate::error::{FormatError, KeyError};
use crate::getters::{convert, getters};

/// Keys under which multimodal configs keep the config of their language model.
const TEXT: [&str; 3] = ["text_config", "language_config", "llm_config"];

/// Keys that a multimodal config may give for the whole model instead of its language model.
const SHARED: [&str; 8] = [
    "architectures",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "pad_token_id",
    "quantization_config",
    "tie_word_embeddings",
    "torch_dtype",
];

/// A Hugging Face config: the values of `config.json`, or of its language model if it describes a multimodal one.
///
/// Getters come in pairs: `u32` reports a missing key as an error, `optional_u32` gives `None` for it. Both report a
/// value of the wrong type. A null counts as missing: transformers writes it for "not set".
#[derive(Clone, Debug)]
pub struct HfConfig {
    file: PathBuf,
    /// Keys that lead from the root to `values`, with a dot after each.
    prefix: String,
    values: Map<String, Value>,
    /// The values around `values`, for `SHARED` keys.
    outer: Map<String, Value>,
}

impl HfConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read or does not hold a JSON object.
    pub fn read(path: impl AsRef<Path>) -> Result<HfConfig, FormatError> {
        let path = path.as_ref();
        HfConfig::from_json(path, read_json(path)?)
    }

    /// A config from parsed JSON. `path` is for messages.
    ///
    /// # Errors
    /// The value is not an object.
    pub fn from_json(path: impl AsRef<Path>, json: Value) -> Result<HfConfig, FormatError> {
        let path = path.as_ref();
        let root = match json {
            Value::Object(root) => root,
            other => return Err(FormatError::new(path, JsonError::NotAnObject { found: describe(&other) })),
        };
        let config = HfConfig { file: path.into(), prefix: String::new(), values: root, outer: Map::new() };
        let nested = TEXT.into_iter().find_map(|key| Some((key, config.values.get(key)?.as_object()?.clone())));
        Ok(match nested {
            Some((key, values)) => HfConfig { prefix: format!("{key}."), values, outer: config.values, ..config },
            None => config,
        })
    }

    /// The file that the values are from.
    pub fn path(&self) -> &Path {
        &self.file
    }

    /// The values that this config gives access to.
    pub fn values(&self) -> &Map<String, Value> {
        &self.values
    }

    /// The value of a key; `None` if it is missing or null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let set = |values: &'_ Map<String, Value>| values.get(key).is_some_and(|value| !value.is_null());
        if set(&self.values) {
            self.values.get(key)
        } else if SHARED.contains(&key) && set(&self.outer) {
            self.outer.get(key)
        } else {
            None
        }
    }

    /// The object under a key (`quantization_config`), as a config of its own.
    ///
    /// # Errors
    /// The value is not an object.
    pub fn optional_section(&self, key: &str) -> Result<Option<HfConfig>, KeyError> {
        let object = |value: &Value| value.as_object().cloned();
        let values = convert(self.get(key), object, || self.error(key, "an object"))?;
        Ok(values.map(|values| HfConfig {
            file: self.file.clone(),
            prefix: format!("{}{key}.", self.prefix),
            values,
            outer: Map::new(),
        }))
    }

    /// An error about the value of `key`, for checks that go beyond types.
    pub fn error(&self, key: &str, expected: impl Into<String>) -> KeyError {
        let found = self.get(key).map_or("nothing".into(), describe);
        KeyError::new(&self.file, format!("{}{key}", self.prefix), expected, found)
    }

    /// The `model_type`, which decides on the architecture: of the language model, for a multimodal one.
    ///
    /// # Errors
    /// It is missing or not a string.
    pub fn model_type(&self) -> Result<&str, KeyError> {
        self.str("model_type")
    }

    /// Size of an attention head: `head_dim`, else the hidden size divided among the heads.
    ///
    /// # Errors
    /// A key is missing or has the wrong type, or the division leaves a rest.
    pub fn head_dim(&self) -> Result<u32, KeyError> {
        if let Some(size) = self.optional_u32("head_dim")? {
            return Ok(size);
        }
        let (hidden, heads) = (self.u32("hidden_size")?, self.u32("num_attention_heads")?);
        match hidden.checked_rem(heads) {
            Some(0) => Ok(hidden / heads),
            _ => Err(self.error("num_attention_heads", format!("a divisor of hidden_size, {hidden}"))),
        }
    }

    /// The element type that the model was trained in (`bfloat16`).
    ///
    /// # Errors
    /// The value is not a string.
    pub fn dtype(&self) -> Result<Option<&str>, KeyError> {
        match self.optional_str("dtype")? {
            Some(dtype) => Ok(Some(dtype)),
            None => self.optional_str("torch_dtype"),
        }
    }

    /// Token ids under a key that holds one, a list, or none (`eos_token_id`). Negative ids stand for none.
    ///
    /// # Errors
    /// The value is something else.
    pub fn token_ids(&self, key: &str) -> Result<Vec<u32>, KeyError> {
        let ids = convert(self.get(key), token_ids, || self.error(key, "a token id or a list of token ids"))?;
        Ok(ids.unwrap_or_default())
    }
}

/// Ids from a number or a list of numbers, without negative ones.
fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let mut ids = Vec::new();
    for value in values {
        let id = integer(value)?;
        if id >= 0 {
            ids.push(id.try_into().ok()?);
        }
    }
    Some(ids)
}

/// An integer, also if it is written with a fraction of zero.
fn integer(value: &Value) -> Option<i64> {
    let float = || value.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < (1i64 << 53) as f64);
    value.as_i64().or_else(|| float().map(|float| float as i64))
}

/// What a value is, for messages: short values themselves, others by their kind.
fn describe(value: &Value) -> String {
    const LONGEST: usize = 60;
    match value {
        Value::Object(map) => format!("an object with {} keys", map.len()),
        Value::Array(array) if array.len() > 8 => format!("an array of {} elements", array.len()),
        other => {
            let text = other.to_string();
            match text.char_indices().nth(LONGEST) {
                Some((end, _)) => format!("{}...", &text[..end]),
                None => text,
            }
        }
    }
}

const U32: &str = "a whole number from 0 to 4294967295";
const USIZE: &str = "a whole number, not negative";
const FLOAT: &str = "a number";
const BOOL: &str = "true or false";
const STR: &str = "a string";
const U32S: &str = "an array of whole numbers from 0 to 4294967295";
const F64S: &str = "an array of numbers";
const STRINGS: &str = "an array of strings";

getters! {
    HfConfig;

    /// An integer that fits.
    u32, optional_u32 -> u32, U32, |value| integer(value)?.try_into().ok();
    /// An integer that fits.
    usize, optional_usize -> usize, USIZE, |value| integer(value)?.try_into().ok();
    /// A number, rounded to `f32`.
    f32, optional_f32 -> f32, FLOAT, |value| value.as_f64().map(|value| value as f32);
    /// A number.
    f64, optional_f64 -> f64, FLOAT, Value::as_f64;
    /// A boolean.
    bool, optional_bool -> bool, BOOL, Value::as_bool;
    /// A string.
    str, optional_str -> &str, STR, Value::as_str;
    /// An array of integers that fit.
    u32s, optional_u32s -> Vec<u32>, U32S, |value| collect(value, |element| integer(element)?.try_into().ok());
    /// An array of numbers.
    f64s, optional_f64s -> Vec<f64>, F64S, |value| collect(value, Value::as_f64);
    /// An array of strings.
    strings, optional_strings -> Vec<&str>, STRINGS, |value| collect(value, Value::as_str);
}

fn collect<'a, T>(value: &'a Value, convert: impl Fn(&'a Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(convert).collect()
}
