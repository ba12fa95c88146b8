//! What `tokenizer_config.json` and `special_tokens_map.json` say beside `tokenizer.json`.

use std::path::Path;

use serde_json::{Map, Value};

use super::TokenizerError;
use crate::read::{MAX_TEXT, read_if_there};

/// The names under which a checkpoint lists its special tokens.
const TOKEN_NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The parts of `tokenizer_config.json` that matter for encoding, with special tokens from `special_tokens_map.json`
/// where it has none.
#[derive(Clone, Debug, Default)]
pub struct TokenizerConfig {
    values: Map<String, Value>,
    fallback: Map<String, Value>,
}

impl TokenizerConfig {
    /// Takes the parsed `tokenizer_config.json` and, if there is one, `special_tokens_map.json`. Values that are not
    /// objects count as empty.
    pub fn new(config: Value, special_tokens_map: Option<Value>) -> Self {
        let object = |value| match value {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        Self { values: object(config), fallback: special_tokens_map.map(object).unwrap_or_default() }
    }

    /// Reads both files from a checkpoint's folder; either may be missing.
    pub fn from_dir(folder: &Path) -> Result<Self, TokenizerError> {
        let config = read_json(&folder.join("tokenizer_config.json"))?;
        let map = read_json(&folder.join("special_tokens_map.json"))?;
        Ok(Self::new(config.unwrap_or(Value::Null), map))
    }

    /// The text of a special token such as `bos_token`.
    pub fn token(&self, name: &str) -> Option<&str> {
        [&self.values, &self.fallback].into_iter().find_map(|map| token_text(map.get(name)?))
    }

    /// Every special token by name, as templates see them (`bos_token`, `eos_token`, and others that the file lists).
    pub fn special_tokens(&self) -> Map<String, Value> {
        let mut tokens = Map::new();
        let extra = self.values.keys().chain(self.fallback.keys()).map(String::as_str);
        let extra = extra.filter(|name| name.ends_with("_token") && !name.starts_with("add_"));
        for name in TOKEN_NAMES.into_iter().chain(extra) {
            if let Some(text) = self.token(name) {
                tokens.entry(name).or_insert_with(|| Value::from(text));
            }
        }
        tokens
    }

    /// Whether texts start with the begin-of-sequence token, if the file says so.
    pub fn add_bos(&self) -> Option<bool> {
        self.values.get("add_bos_token")?.as_bool()
    }

    /// Whether texts end with the end-of-sequence token, if the file says so.
    pub fn add_eos(&self) -> Option<bool> {
        self.values.get("add_eos_token")?.as_bool()
    }

    /// The value of `chat_template`: a string, or a list of named templates.
    pub fn chat_template(&self) -> Option<&Value> {
        self.values.get("chat_template").filter(|value| !value.is_null())
    }
}

/// A special token is written as its text or as an object with `content`.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// Reads a JSON file that may be missing.
fn read_json(path: &Path) -> Result<Option<Value>, TokenizerError> {
    let read =
        read_if_there(path, MAX_TEXT).map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
    let Some(text) = read else { return Ok(None) };
    match serde_json::from_slice(&text) {
        Ok(value) => Ok(Some(value)),
        Err(error) => {
            Err(TokenizerError::Invalid { what: path.display().to_string(), reason: format!("not JSON: {error}") })
        }
    }
}
