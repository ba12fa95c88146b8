//! What the `tokenizers` crate leaves to its caller: definitions that no tool would write make it panic, or ask for memory
//! that no system has, which ends the process.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
use serde_json::Value;

const CHARSMAP: &str = "precompiled_charsmap";

/// Runs `work`; a panic becomes an error.
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // What the crate changes while it encodes are caches behind locks, which a panic poisons and does not leave torn.
    catch_unwind(AssertUnwindSafe(work))
        .map_err(|_| "the tokenizer's definition breaks an assumption of the tokenizers library".to_owned())
}

/// The part of a `tokenizer.json` that can hold character maps.
#[derive(Deserialize)]
struct Normalizer {
    normalizer: Option<Value>,
}

/// Checks every character map in a `tokenizer.json`, where it is written in base64.
pub(super) fn check_charsmaps(json: &[u8]) -> Result<(), String> {
    // Few have one, and reading the others twice would take its time.
    if std::str::from_utf8(json).is_ok_and(|text| !text.contains(CHARSMAP)) {
        return Ok(());
    }
    let parsed: Normalizer = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    parsed.normalizer.as_ref().map_or(Ok(()), check_within)
}

fn check_within(value: &Value) -> Result<(), String> {
    match value {
        Value::Array(items) => items.iter().try_for_each(check_within),
        Value::Object(entries) => entries.iter().try_for_each(|(key, value)| match value.as_str() {
            Some(text) if key == CHARSMAP => check_charsmap(&start_of_base64(text), text.len() / 4 * 3),
            _ => check_within(value),
        }),
        _ => Ok(()),
    }
}

/// Checks a character map of `len` bytes by its `start`: it begins with the size of its trie in bytes, for which the crate
/// takes memory before it looks.
pub(super) fn check_charsmap(start: &[u8], len: usize) -> Result<(), String> {
    let size = start.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize);
    match size {
        Some(size) if size <= len.saturating_sub(4) => Ok(()),
        Some(size) => Err(format!("{CHARSMAP} has {len} bytes, its trie should have {size} of them")),
        None => Err(format!("{CHARSMAP} should begin with 4 bytes that give the size of its trie, found {len}")),
    }
}

/// The first bytes of what is written in base64 (RFC 4648, section 4); fewer than 4 if it is shorter or not base64.
fn start_of_base64(text: &str) -> Vec<u8> {
    let sextet = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let sextets: Vec<u32> = text.bytes().take(8).map_while(|byte| sextet(byte).map(u32::from)).collect();
    let groups = sextets.chunks_exact(4).map(|four| four.iter().fold(0, |bits, six| bits << 6 | six));
    groups.flat_map(|bits| bits.to_be_bytes().into_iter().skip(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_the_standard() {
        // RFC 4648, section 10: foobar.
        assert_eq!(start_of_base64("Zm9vYmFy"), b"foobar");
        assert_eq!(start_of_base64("Zm9vYmFyZm9v"), b"foobar");
        assert_eq!(start_of_base64("Zm9v"), b"foo");
        for short in ["", "Zg==", "Zm9", "Zm9-"] {
            assert!(start_of_base64(short).is_empty(), "{short}");
        }
    }

    #[test]
    fn a_trie_must_fit_into_its_map() {
        assert!(check_charsmap(&[4, 0, 0, 0], 8).is_ok());
        assert!(check_charsmap(&[5, 0, 0, 0], 8).unwrap_err().contains("should have 5"));
        assert!(check_charsmap(&[255; 4], 8).is_err());
        assert!(check_charsmap(&[1, 0], 2).unwrap_err().contains("found 2"));
    }

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(guarded(|| 5), Ok(5));
        assert!(guarded(|| [0][std::hint::black_box(1)]).is_err());
    }
}
