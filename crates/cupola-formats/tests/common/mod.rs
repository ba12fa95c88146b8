//! What several tests need.

#![allow(dead_code, reason = "each test uses its part")]

use std::path::PathBuf;

use cupola_formats::gguf::GgufError;
use cupola_formats::safetensors::SafetensorsError;
use cupola_formats::{FormatError, FormatErrorKind};

/// A file below `tests/data` of the repository.
pub fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

/// The rule of GGUF that was broken.
pub fn error_of_gguf(error: FormatError) -> GgufError {
    match *error.kind {
        FormatErrorKind::Gguf(error) => error,
        other => panic!("not an error of GGUF: {other}"),
    }
}

/// The rule of safetensors that was broken.
pub fn error_of_safetensors(error: FormatError) -> SafetensorsError {
    match *error.kind {
        FormatErrorKind::Safetensors(error) => error,
        other => panic!("not an error of safetensors: {other}"),
    }
}

/// The bytes of numbers.
pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
