//! JSON as Python writes it.

use std::path::Path;

use serde_json::Value;

use crate::error::FormatError;
use crate::read::{MAX_TEXT, read_limited};

/// A JSON file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The text breaks the grammar.
    #[error("not valid JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    /// The value is not an object.
    #[error("the file should hold a JSON object, found {found}")]
    NotAnObject {
        /// What it holds.
        found: String,
    },
}

/// Reads a JSON file. A byte order mark is skipped. Python's `NaN`, `Infinity` and `-Infinity`, which configs contain
/// although JSON does not know them, are read as null.
pub(crate) fn read_json(path: &Path) -> Result<Value, FormatError> {
    let text = read_limited(path, MAX_TEXT).map_err(|error| FormatError::new(path, error))?;
    parse_json(&text).map_err(|error| FormatError::new(path, error))
}

fn parse_json(text: &[u8]) -> Result<Value, JsonError> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    match serde_json::from_slice(text) {
        Ok(value) => Ok(value),
        Err(error) => match without_python_constants(text) {
            Some(text) => Ok(serde_json::from_slice(&text)?),
            None => Err(error.into()),
        },
    }
}

/// The text with Python's constants replaced by null; `None` if there are none.
fn without_python_constants(text: &[u8]) -> Option<Vec<u8>> {
    const CONSTANTS: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
    let mut replaced = Vec::with_capacity(text.len());
    let mut found = false;
    let mut in_string = false;
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let constant = CONSTANTS.into_iter().find(|constant| !in_string && rest.starts_with(constant));
        if let Some(constant) = constant {
            replaced.extend_from_slice(b"null");
            rest = &rest[constant.len()..];
            found = true;
            continue;
        }
        replaced.push(byte);
        rest = after;
        match (byte, in_string, rest.split_first()) {
            (b'"', _, _) => in_string = !in_string,
            // Whatever is escaped does not end the string.
            (b'\\', true, Some((&escaped, after))) => {
                replaced.push(escaped);
                rest = after;
            }
            _ => {}
        }
    }
    found.then_some(replaced)
}
