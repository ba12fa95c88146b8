//! The vocabulary of a `tokenizer.json` as the lists that GGUF stores.

use cupola_formats::tokenizer::gguf_pre_tokenizer;
use serde_json::Value as Json;
use std::collections::HashMap;

/// What `tokenizer.ggml.*` says of a vocabulary.
#[derive(Debug, PartialEq)]
pub struct Vocabulary {
    /// `model`: `gpt2` for byte-level BPE, `llama` for SentencePiece's BPE.
    pub model: &'static str,
    /// `pre`: the name of the pre-tokenizer.
    pub pre: &'static str,
    /// The text of each id.
    pub tokens: Vec<String>,
    /// The kind of each id, see [`kind`].
    pub kinds: Vec<i32>,
    /// Byte-level BPE: pairs joined by a space, best first.
    pub merges: Vec<String>,
    /// SentencePiece's BPE: of all neighbours, those whose union has the highest score are joined first.
    pub scores: Vec<f32>,
    /// SentencePiece's BPE: whether a space is put before a text.
    pub add_space_prefix: Option<bool>,
}

/// Values of `tokenizer.ggml.token_type`.
mod kind {
    pub const NORMAL: i32 = 1;
    pub const UNKNOWN: i32 = 2;
    pub const CONTROL: i32 = 3;
    pub const USER_DEFINED: i32 = 4;
    pub const UNUSED: i32 = 5;
    pub const BYTE: i32 = 6;
}

impl Vocabulary {
    /// From the contents of a `tokenizer.json`. `rows` is the height of the embedding matrix: ids that the tokenizer
    /// does not know are filled up to it.
    pub fn new(tokenizer: &Json, rows: usize) -> Result<Vocabulary, String> {
        let model = &tokenizer["model"];
        let kind = model["type"].as_str().unwrap_or("BPE");
        if kind != "BPE" {
            return Err(format!("tokenizers of type {kind} cannot be written as GGUF yet, only BPE"));
        }
        let (tokens, kinds) = tokens(tokenizer, rows)?;
        let merges = merges(model)?;
        if is_byte_level(tokenizer) {
            return Ok(Vocabulary {
                model: "gpt2",
                pre: pre_tokenizer(tokenizer)?,
                tokens,
                kinds,
                merges: merges.iter().map(|(left, right)| format!("{left} {right}")).collect(),
                scores: vec![],
                add_space_prefix: None,
            });
        }
        if model["byte_fallback"] != true {
            return Err(
                "this BPE tokenizer is neither byte-level nor of SentencePiece's kind (no byte_fallback)".into()
            );
        }
        Ok(Vocabulary {
            model: "llama",
            pre: "default",
            scores: scores(&tokens, &kinds, &merges),
            tokens,
            kinds,
            merges: vec![],
            add_space_prefix: Some(puts_space_first(tokenizer)),
        })
    }
}

fn tokens(tokenizer: &Json, rows: usize) -> Result<(Vec<String>, Vec<i32>), String> {
    let vocabulary = tokenizer["model"]["vocab"].as_object().ok_or("tokenizer.json has no model.vocab")?;
    let mut tokens = vec![None; rows];
    let mut kinds = vec![kind::UNUSED; rows];
    let mut put = |id: Option<u64>, text: &str, k: i32| -> Result<(), String> {
        let at = id.and_then(|id| usize::try_from(id).ok()).filter(|at| *at < rows);
        let at =
            at.ok_or_else(|| format!("token {text:?} has an id outside the {rows} rows of the embedding matrix"))?;
        (tokens[at], kinds[at]) = (Some(text.to_string()), k);
        Ok(())
    };
    let unknown = tokenizer["model"]["unk_token"].as_str();
    let byte_fallback = tokenizer["model"]["byte_fallback"] == true;
    for (text, id) in vocabulary {
        let k = match text.as_str() {
            t if byte_fallback && is_byte(t) => kind::BYTE,
            t if Some(t) == unknown => kind::UNKNOWN,
            _ => kind::NORMAL,
        };
        put(id.as_u64(), text, k)?;
    }
    for added in tokenizer["added_tokens"].as_array().into_iter().flatten() {
        let text = added["content"].as_str().ok_or("an added token of tokenizer.json has no content")?;
        let k = match added["special"] == true {
            true if Some(text) == unknown && byte_fallback => kind::UNKNOWN,
            true => kind::CONTROL,
            false => kind::USER_DEFINED,
        };
        put(added["id"].as_u64(), text, k)?;
    }
    let named = tokens.into_iter().enumerate().map(|(id, t)| t.unwrap_or_else(|| format!("[PAD{id}]")));
    Ok((named.collect(), kinds))
}

/// `<0xAB>`.
fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|t| t.strip_suffix('>'));
    digits.is_some_and(|d| d.len() == 2 && d.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Merges are written as pairs or, by older versions, as text with a space between.
fn merges(model: &Json) -> Result<Vec<(&str, &str)>, String> {
    fn pair(merge: &Json) -> Option<(&str, &str)> {
        match merge {
            Json::String(text) => text.split_once(' '),
            Json::Array(pair) => Some((pair.first()?.as_str()?, pair.get(1)?.as_str()?)),
            _ => None,
        }
    }
    let list = model["merges"].as_array().ok_or("tokenizer.json has no model.merges")?;
    let pairs: Option<Vec<_>> = list.iter().map(pair).collect();
    pairs.ok_or_else(|| "a merge of tokenizer.json is not a pair of tokens".into())
}

/// A token's score is the lower the later a merge first gives it: `tokenizer.json` lists SentencePiece's merges by the
/// score of their result, which it does not keep.
fn scores(tokens: &[String], kinds: &[i32], merges: &[(&str, &str)]) -> Vec<f32> {
    let mut rank: HashMap<String, usize> = HashMap::with_capacity(merges.len());
    for (i, (left, right)) in merges.iter().enumerate() {
        rank.entry(format!("{left}{right}")).or_insert(i);
    }
    let score = |(token, k): (&String, &i32)| match (*k, rank.get(token)) {
        (kind::NORMAL, Some(rank)) => -(*rank as f32),
        // Single characters are the result of no merge.
        (kind::NORMAL, None) => -(merges.len() as f32),
        _ => 0.0,
    };
    tokens.iter().zip(kinds).map(score).collect()
}

/// The steps of a normalizer, pre-tokenizer or decoder, sequences unfolded.
fn steps<'a>(part: &'a Json, list: &str) -> Vec<&'a Json> {
    match part["type"].as_str() {
        Some("Sequence") => part[list].as_array().map_or(vec![], |l| l.iter().flat_map(|s| steps(s, list)).collect()),
        Some(_) => vec![part],
        None => vec![],
    }
}

fn is_byte_level(tokenizer: &Json) -> bool {
    steps(&tokenizer["pre_tokenizer"], "pretokenizers").iter().any(|s| s["type"] == "ByteLevel")
}

fn puts_space_first(tokenizer: &Json) -> bool {
    let normalizers = steps(&tokenizer["normalizer"], "normalizers");
    let pre_tokenizers = steps(&tokenizer["pre_tokenizer"], "pretokenizers");
    let metaspace = |s: &&Json| match s["prepend_scheme"].as_str() {
        Some(scheme) => scheme != "never",
        None => s["add_prefix_space"] == true,
    };
    normalizers.iter().any(|s| s["type"] == "Prepend")
        || pre_tokenizers.iter().filter(|s| s["type"] == "Metaspace").any(metaspace)
}

/// The expression that the `ByteLevel` step of a `tokenizer.json` stands for, GPT-2's.
const BYTE_LEVEL: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The name for the pre-tokenizer of a byte-level BPE.
fn pre_tokenizer(tokenizer: &Json) -> Result<&'static str, String> {
    let unknown = |what: String| format!("the pre-tokenizer cannot be written as GGUF: {what}");
    let mut patterns: Vec<&str> = vec![];
    for step in steps(&tokenizer["pre_tokenizer"], "pretokenizers") {
        match step["type"].as_str().unwrap_or_default() {
            "ByteLevel" => {
                if step["add_prefix_space"] == true {
                    return Err(unknown("it puts a space before the text".into()));
                }
                if step["use_regex"] != false {
                    patterns.push(BYTE_LEVEL);
                }
            }
            "Split" => patterns.push(step["pattern"]["Regex"].as_str().unwrap_or_default()),
            "Digits" if step["individual_digits"] == true => patterns.push(r"\p{N}"),
            other => return Err(unknown(format!("it has a step of type {other}"))),
        }
    }
    let mut nfc = false;
    for step in steps(&tokenizer["normalizer"], "normalizers") {
        match step["type"].as_str() {
            Some("NFC") => nfc = true,
            other => return Err(unknown(format!("there is a normalizer of type {}", other.unwrap_or_default()))),
        }
    }
    let ignore_merges = tokenizer["model"]["ignore_merges"] == true;
    let name = gguf_pre_tokenizer(&patterns, ignore_merges, nfc);
    name.ok_or_else(|| unknown(format!("GGUF has no name for the expressions {patterns:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn byte_level(pre_tokenizer: Json, ignore_merges: bool) -> Json {
        json!({
            "pre_tokenizer": pre_tokenizer,
            "added_tokens": [
                {"id": 4, "content": "<|end|>", "special": true},
                {"id": 5, "content": "<tool>", "special": false},
            ],
            "model": {
                "type": "BPE", "ignore_merges": ignore_merges,
                "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3},
                "merges": [["a", "b"], "ab c"],
            },
        })
    }

    #[test]
    fn a_byte_level_vocabulary() {
        let v = Vocabulary::new(&byte_level(json!({"type": "ByteLevel"}), false), 8).unwrap();
        assert_eq!((v.model, v.pre), ("gpt2", "gpt-2"));
        assert_eq!(v.tokens, ["a", "b", "c", "ab", "<|end|>", "<tool>", "[PAD6]", "[PAD7]"]);
        assert_eq!(v.kinds, [1, 1, 1, 1, 3, 4, 5, 5]);
        assert_eq!(v.merges, ["a b", "ab c"]);
    }

    /// The expressions of the tokenizer.json files of SmolLM2, Llama 3 and Qwen 3.
    #[test]
    fn pre_tokenizers_by_their_expressions() {
        const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let split = |pattern| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"});
        let plain = json!({"type": "ByteLevel", "use_regex": false});
        let digits = json!({"type": "Digits", "individual_digits": true});
        let sequence = |steps: Vec<Json>| json!({"type": "Sequence", "pretokenizers": steps});
        let name = |pre, ignore_merges| Vocabulary::new(&byte_level(pre, ignore_merges), 6).map(|v| v.pre);
        assert_eq!(name(sequence(vec![split(LLAMA3), plain.clone()]), true), Ok("llama-bpe"));
        // The first of the names for these rules.
        assert_eq!(name(sequence(vec![digits, json!({"type": "ByteLevel"})]), false), Ok("starcoder"));
        let odd = name(sequence(vec![split("[a-z]+"), plain.clone()]), false);
        assert!(odd.unwrap_err().contains("[a-z]+"));

        let qwen = LLAMA3.replace("{1,3}", "");
        let mut tokenizer = byte_level(sequence(vec![split(&qwen), plain]), false);
        tokenizer["normalizer"] = json!({"type": "NFC"});
        assert_eq!(Vocabulary::new(&tokenizer, 6).map(|v| v.pre), Ok("qwen2"));
        tokenizer["normalizer"] = json!({"type": "Lowercase"});
        assert!(Vocabulary::new(&tokenizer, 6).unwrap_err().contains("Lowercase"));
    }

    #[test]
    fn a_sentence_piece_vocabulary() {
        let tokenizer = json!({
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "\u{2581}"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
            ]},
            "added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true}],
            "model": {
                "type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
                "vocab": {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "a": 3, "b": 4, "c": 5, "bc": 6, "abc": 7},
                "merges": ["b c", "a bc"],
            },
        });
        let v = Vocabulary::new(&tokenizer, 8).unwrap();
        assert_eq!((v.model, v.add_space_prefix), ("llama", Some(true)));
        assert_eq!(v.kinds, [2, 3, 6, 1, 1, 1, 1, 1]);
        assert_eq!(v.scores, [0.0, 0.0, 0.0, -2.0, -2.0, -2.0, 0.0, -1.0]);
        assert!(v.merges.is_empty());
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let unigram = json!({"model": {"type": "Unigram", "vocab": []}});
        assert!(Vocabulary::new(&unigram, 8).unwrap_err().contains("Unigram"));
        let short = byte_level(json!({"type": "ByteLevel"}), false);
        assert!(Vocabulary::new(&short, 5).unwrap_err().contains("outside the 5 rows"));
        assert!(Vocabulary::new(&json!({}), 5).is_err());
    }
}
