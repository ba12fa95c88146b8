//! Which token ids end a reply.

use serde_json::Value;

use super::SpecialTokens;

/// The ids that end generation: the union of `generation_config.json`, `config.json` and the tokenizer, so that a
/// checkpoint which lists a second one in only one place still stops. Sorted, without duplicates.
///
/// * `generation_config`, `config`: the value of `eos_token_id` in that file, if the file and the key exist: an integer, a
///   list of integers, or null. Anything else in them is ignored, as are negative numbers.
/// * `tokenizer`: end of sequence, of turn (`eot`) and of message (`eom`).
pub fn stop_ids(generation_config: Option<&Value>, config: Option<&Value>, tokenizer: &SpecialTokens) -> Vec<u32> {
    let mut ids: Vec<u32> = [tokenizer.eos, tokenizer.eot, tokenizer.eom].into_iter().flatten().collect();
    for value in [generation_config, config].into_iter().flatten() {
        match value {
            Value::Array(list) => ids.extend(list.iter().filter_map(as_id)),
            one => ids.extend(as_id(one)),
        }
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn as_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn eos(id: u32) -> SpecialTokens {
        SpecialTokens { eos: Some(id), ..SpecialTokens::default() }
    }

    #[test]
    fn stop_ids_are_the_union_of_all_sources() {
        assert_eq!(stop_ids(Some(&json!([5, 6])), Some(&json!(5)), &eos(5)), [5, 6]);
        // The list adds to the tokenizer's own, it does not replace it.
        assert_eq!(stop_ids(Some(&json!([6])), Some(&json!(5)), &eos(4)), [4, 5, 6]);
    }

    #[test]
    fn stop_ids_from_a_scalar_a_missing_file_and_null() {
        assert_eq!(stop_ids(Some(&json!(6)), Some(&json!(5)), &SpecialTokens::default()), [5, 6]);
        assert_eq!(stop_ids(None, Some(&json!(5)), &SpecialTokens::default()), [5]);
        assert_eq!(stop_ids(Some(&Value::Null), Some(&Value::Null), &eos(3)), [3]);
        assert_eq!(stop_ids(None, None, &SpecialTokens::default()), [0u32; 0]);
    }

    #[test]
    fn stop_ids_include_end_of_turn_and_of_message() {
        let tokenizer = SpecialTokens { eos: Some(2), eot: Some(9), eom: Some(7), ..SpecialTokens::default() };
        assert_eq!(stop_ids(None, None, &tokenizer), [2, 7, 9]);
    }

    #[test]
    fn stop_ids_ignore_what_is_no_id() {
        let odd = json!([-1, 4294967296u64, "7", 2.5, 3]);
        assert_eq!(stop_ids(Some(&odd), Some(&json!("x")), &SpecialTokens::default()), [3]);
    }
}
