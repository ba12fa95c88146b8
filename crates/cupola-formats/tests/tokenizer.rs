//! Tokenizers against the values of the reference library, and the rules around them.

use std::ops::Range;

use cupola_formats::tokenizer::{Control, GgufTokenizerParts, Specials, Tokenizer, TokenizerConfig, TokenizerError};
use proptest::prelude::*;
use serde_json::{Value, json};

fn data(name: &str) -> Value {
    let path = format!("{}/../../tests/data/text/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn load(definition: &Value) -> Tokenizer {
    load_with(definition, json!({}))
}

fn load_with(definition: &Value, config: Value) -> Tokenizer {
    Tokenizer::from_json(definition.to_string().as_bytes(), &TokenizerConfig::new(config, None)).unwrap()
}

/// The definition of that name in `tokenizers.json`.
fn definition(name: &str) -> Value {
    let all = data("tokenizers.json");
    all.as_array().unwrap().iter().find(|set| set["name"] == name).unwrap()["tokenizer"].clone()
}

/// Ids of a text of which one range came from outside.
fn encode_with_range(tokenizer: &Tokenizer, text: &str, outside: Range<usize>) -> Vec<u32> {
    tokenizer.encode_parts(text, std::slice::from_ref(&outside)).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let mut stream = tokenizer.stream(skip_special);
    let mut text: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
    text.extend(stream.finish());
    text
}

#[test]
fn ids_and_texts_are_those_of_the_reference() {
    for set in data("tokenizers.json").as_array().unwrap() {
        let tokenizer = load(&set["tokenizer"]);
        for case in set["cases"].as_array().unwrap() {
            let (text, name) = (case["text"].as_str().unwrap(), &set["name"]);
            let expected = ids(&case["ids"]);
            assert_eq!(tokenizer.encode(text, Specials::Parse).unwrap(), expected, "{name}: {text:?}");
            // A range that covers nothing sends the text through our own search for added tokens.
            let own = encode_with_range(&tokenizer, text, text.len()..text.len() + 1);
            assert_eq!(own, expected, "{name}: {text:?} by our own search");
            if !text.contains("<think>") {
                assert_eq!(tokenizer.encode(text, Specials::Plain).unwrap(), ids(&case["plain"]), "{name}: {text:?}");
            }
            for (skip, key) in [(false, "decoded"), (true, "skipped")] {
                assert_eq!(tokenizer.decode(&expected, skip), case[key], "{name}: {text:?} {key}");
                assert_eq!(streamed(&tokenizer, &expected, skip), case[key], "{name}: {text:?} {key} as a stream");
            }
            // A text that brings its own begin of sequence does not get a second one.
            if !text.starts_with("<s>") && !text.starts_with("[CLS]") {
                let prompt = tokenizer.encode_prompt(text, Specials::Parse).unwrap();
                assert_eq!(prompt, ids(&case["surrounded"]), "{name}: {text:?} as a prompt");
            }
        }
    }
}

#[test]
fn added_token_flags_take_the_whitespace_they_should() {
    let tokenizer = load(&definition("flags"));
    let encode = |text: &str| tokenizer.encode(text, Specials::Parse).unwrap();
    // a=0 b=1 space=2 nbsp=3 unknown=4 <m>=5 <r>=6 <w>=7 FOO=8 BAR=9 <a>=10 <a><b>=11
    assert_eq!(encode("a  <m> \u{a0}b"), [0, 5, 2, 3, 1], "lstrip takes both spaces before");
    assert_eq!(encode("a  <r> \u{a0}b"), [0, 2, 2, 6, 1], "rstrip takes the space and the no-break space after");
    assert_eq!(encode("a <w> b"), [0, 2, 7, 2, 1]);
    assert!(!encode("a<w>b").contains(&7), "single_word does not match inside a word");
    assert_eq!((encode("foo"), encode("FOO")), (vec![8], vec![8]), "normalized matches either case");
    assert_eq!(encode("BAR"), [9]);
    assert!(!encode("bar").contains(&9), "not normalized matches as written");
    assert_eq!(encode("<a><b>"), [11], "the longest wins");
}

#[test]
fn ignore_merges_finds_whole_words_that_merges_cannot_reach() {
    let encode = |name: &str, text: &str| load(&definition(name)).encode(text, Specials::Parse).unwrap();
    // a=0 b=1 c=2 ab=3 bc=4 abc=5
    for style in ["", "_pairs"] {
        assert_eq!(encode(&format!("merge_bc{style}"), "abc"), [0, 4]);
        assert_eq!(encode(&format!("merge_bc{style}"), "ab"), [0, 1]);
        assert_eq!(encode(&format!("merge_bc{style}_whole_words"), "abc"), [5]);
        assert_eq!(encode(&format!("merge_bc{style}_whole_words"), "ab"), [3]);
    }
    assert_eq!(encode("merge_ab_first", "abc"), [3, 2]);
    assert_eq!(encode("merge_bc_first", "abc"), [0, 4]);
}

#[test]
fn special_tokens_in_plain_text_stay_text() {
    let tokenizer = load(&definition("bytes_256"));
    assert_eq!(tokenizer.encode("<|im_end|>", Specials::Parse).unwrap(), [257]);
    let plain = tokenizer.encode("<|im_end|>", Specials::Plain).unwrap();
    assert_eq!(plain.len(), 10);
    assert_eq!(plain, b"<|im_end|>".map(u32::from));
    // Tags that structure a conversation are covered too, though the vocabulary does not mark them special.
    assert_eq!(tokenizer.encode("</think>", Specials::Plain).unwrap(), b"</think>".map(u32::from));
}

#[test]
fn only_the_ranges_from_outside_stay_text() {
    let tokenizer = load(&definition("bytes_256"));
    let text = "<|im_start|>A<|im_end|>B<|im_end|>";
    let outside = 12..24; // A<|im_end|>B
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let expected = [vec![256], bytes("A<|im_end|>B"), vec![257]].concat();
    assert_eq!(tokenizer.encode_parts(text, std::slice::from_ref(&outside)).unwrap(), expected);
    // Overlapping, unsorted and empty ranges mean their union.
    let pieces: [Range<usize>; 4] = [20..24, 12..21, 3..3, 13..14];
    assert_eq!(tokenizer.encode_parts(text, &pieces).unwrap(), expected);
    assert_eq!(tokenizer.encode_parts(text, &[]).unwrap(), tokenizer.encode(text, Specials::Parse).unwrap());
}

#[test]
fn a_shorter_token_of_the_template_survives_before_text_from_outside() {
    // <a>=10 and <a><b>=11: the template wrote <a>, the message <b>.
    let mut flags = definition("flags");
    for token in flags["added_tokens"].as_array_mut().unwrap() {
        token["special"] = true.into();
    }
    let tokenizer = load(&flags);
    assert_eq!(tokenizer.encode_parts("<a><b>", &[]).unwrap(), [11]);
    let ids = encode_with_range(&tokenizer, "<a><b>", 3..6);
    assert_eq!(ids[0], 10);
    assert!(!ids.contains(&11));
    // And one that starts inside the message but ends in the template is not formed.
    let ids = encode_with_range(&tokenizer, "<a><b>", 0..3);
    assert!(!ids.contains(&10) && !ids.contains(&11), "{ids:?}");
}

#[test]
fn controls_are_found_where_the_tokenizer_would_match_them() {
    let tokenizer = load(&definition("bytes_256"));
    let found = tokenizer.find_controls("é<|im_end|> </think>x").unwrap();
    assert_eq!(found, [(2..12, Control::Special), (13..21, Control::Structure)]);
    // Matched after normalisation, reported in the original text; whitespace that the token takes is no part of it.
    let mut flags = definition("flags");
    flags["added_tokens"][3]["special"] = true.into();
    let found = load(&flags).find_controls("xfoo  <m>").unwrap();
    assert_eq!(found, [(1..4, Control::Special), (6..9, Control::Special)]);
}

#[test]
fn streams_hold_back_incomplete_characters() {
    let tokenizer = load(&definition("bytes_256"));
    let expected = data("streams.json");
    for case in expected["streams"].as_array().unwrap() {
        let mut stream = tokenizer.stream(false);
        let deltas: Vec<Option<String>> = ids(&case["ids"]).into_iter().map(|id| stream.push(id)).collect();
        let expected: Vec<Option<String>> = serde_json::from_value(case["deltas"].clone()).unwrap();
        assert_eq!(deltas, expected, "{}", case["text"]);
        assert_eq!(stream.finish(), None);
    }
    // Cut short by a token limit: what is left over is one U+FFFD, not a failure and not silence.
    for case in expected["cut"].as_array().unwrap() {
        assert_eq!(tokenizer.decode(&ids(&case["ids"]), false), case["decoded"]);
        assert_eq!(streamed(&tokenizer, &ids(&case["ids"]), false), case["decoded"]);
    }
}

#[test]
fn a_continued_text_keeps_its_space() {
    let tokenizer = load(&definition("spaced"));
    let ids = tokenizer.encode("hello", Specials::Parse).unwrap();
    assert_eq!(tokenizer.decode(&ids, false), "hello");
    let mut stream = tokenizer.stream_continuing(false);
    let text: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
    assert_eq!(text, " hello");
}

#[test]
fn begin_of_sequence_is_never_doubled() {
    let tokenizer = load(&definition("spaced"));
    assert_eq!(tokenizer.prefix(), [1]);
    let once = tokenizer.encode_prompt("hello", Specials::Parse).unwrap();
    assert_eq!(once[0], 1);
    assert_eq!(tokenizer.encode_prompt("<s>hello", Specials::Parse).unwrap(), once);
    // As text from outside, `<s>` is text, and the real one comes before it.
    let plain = tokenizer.encode_prompt("<s>hello", Specials::Plain).unwrap();
    assert_eq!((plain[0], plain[1]), (1, tokenizer.token_to_id("▁").unwrap()));
}

#[test]
fn the_config_overrules_the_post_processor() {
    let spaced = definition("spaced");
    let config = json!({ "bos_token": { "content": "<s>" }, "eos_token": "</s>", "add_bos_token": false });
    let tokenizer = load_with(&spaced, config);
    assert_eq!((tokenizer.prefix(), tokenizer.suffix()), (&[][..], &[][..]));
    assert_eq!((tokenizer.special_tokens().bos, tokenizer.special_tokens().eos), (Some(1), Some(2)));
    assert_eq!(tokenizer.special_texts()["eos_token"], "</s>");
    let config = json!({ "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true, "add_eos_token": true });
    let tokenizer = load_with(&spaced, config);
    assert_eq!((tokenizer.prefix(), tokenizer.suffix()), (&[1][..], &[2][..]));
    let map = Some(json!({ "eos_token": { "content": "</s>" } }));
    let config = TokenizerConfig::new(json!({ "eos_token": null }), map);
    assert_eq!(config.token("eos_token"), Some("</s>"));
}

#[test]
fn truncation_and_padding_of_the_file_are_left_out() {
    let mut bytes = definition("bytes_256");
    bytes["truncation"] = json!({ "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0 });
    bytes["padding"] = json!({
        "strategy": { "Fixed": 8 }, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<|im_end|>"
    });
    assert_eq!(load(&bytes).encode("abcdef", Specials::Parse).unwrap(), b"abcdef".map(u32::from));
    assert_eq!(load(&bytes).encode("ab", Specials::Parse).unwrap(), b"ab".map(u32::from));
}

#[test]
fn ids_from_outside_are_checked_against_the_vocabulary() {
    let tokenizer = load(&definition("merge_bc"));
    assert_eq!(tokenizer.vocab_size(), 6);
    assert!(tokenizer.check_ids(&[0, 5]).is_ok());
    for id in [6, 7, u32::MAX] {
        let error = tokenizer.check_ids(&[0, id]).unwrap_err();
        assert!(matches!(error, TokenizerError::IdOutOfRange { id: found, vocab_size: 6 } if found == id), "{error}");
        // A model may have more rows than the tokenizer has ids; such an id has no text.
        assert_eq!(tokenizer.decode(&[0, id, 1], false), "a b");
    }
}

#[test]
fn a_nul_survives() {
    let tokenizer = load(&definition("bytes_256"));
    let ids = tokenizer.encode("a\0b", Specials::Parse).unwrap();
    assert_eq!(ids, [97, 0, 98]);
    assert_eq!(tokenizer.decode(&ids, false), "a\0b");
}

#[test]
fn damaged_files_are_errors() {
    let good = definition("spaced").to_string();
    let config = TokenizerConfig::default();
    for end in (0..good.len()).step_by(97) {
        let Some(cut) = good.get(..end) else { continue };
        assert!(Tokenizer::from_json(cut.as_bytes(), &config).is_err(), "cut at {end}");
    }
    let mut unknown_merge = definition("merge_bc");
    unknown_merge["model"]["merges"] = json!(["x y"]);
    let mut bad_pattern = definition("bytes_256");
    bad_pattern["pre_tokenizer"] =
        json!({ "type": "Split", "pattern": { "Regex": "(" }, "behavior": "Isolated", "invert": false });
    for bad in [json!([]), json!({}), json!({ "model": { "type": "Nope" } }), unknown_merge, bad_pattern] {
        let error = Tokenizer::from_json(bad.to_string().as_bytes(), &config).unwrap_err();
        assert!(error.to_string().starts_with("tokenizer.json is not usable: "), "{error}");
    }
}

#[test]
fn a_folder_without_a_tokenizer_says_what_it_has_instead() {
    let folder = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_dir(folder.path()).unwrap_err();
    assert!(error.to_string().ends_with("holds no tokenizer.json"), "{error}");
    std::fs::write(folder.path().join("tokenizer.model"), b"x").unwrap();
    let error = Tokenizer::from_dir(folder.path()).unwrap_err();
    assert!(error.to_string().contains("tokenizer.model, which is not read"), "{error}");
    std::fs::write(folder.path().join("tokenizer.json"), definition("spaced").to_string()).unwrap();
    std::fs::write(folder.path().join("tokenizer_config.json"), r#"{"eos_token":"</s>"}"#).unwrap();
    assert_eq!(Tokenizer::from_dir(folder.path()).unwrap().special_tokens().eos, Some(2));
    std::fs::write(folder.path().join("tokenizer_config.json"), "{").unwrap();
    let error = Tokenizer::from_dir(folder.path()).unwrap_err();
    assert!(error.to_string().contains("tokenizer_config.json is not usable: not JSON"), "{error}");
}

// GGUF

/// The same vocabulary as a `tokenizer.json` definition, as GGUF metadata would have it.
fn parts(definition: &Value, model: &str) -> GgufTokenizerParts {
    let mut tokens: Vec<(u64, String, i32)> = Vec::new();
    for (token, id) in definition["model"]["vocab"].as_object().unwrap() {
        let kind = if token.starts_with("<0x") { 6 } else { 1 };
        tokens.push((id.as_u64().unwrap(), token.clone(), kind));
    }
    for added in definition["added_tokens"].as_array().unwrap() {
        let id = added["id"].as_u64().unwrap();
        tokens.retain(|(known, ..)| *known != id);
        let kind = if added["special"] == true { 3 } else { 4 };
        tokens.push((id, added["content"].as_str().unwrap().to_owned(), kind));
    }
    tokens.sort();
    let merges = definition["model"]["merges"].as_array().map_or(Vec::new(), |merges| {
        let text = |merge: &Value| match merge.as_array() {
            Some(pair) => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
            None => merge.as_str().unwrap().to_owned(),
        };
        merges.iter().map(text).collect()
    });
    GgufTokenizerParts {
        model: model.to_owned(),
        token_types: tokens.iter().map(|(.., kind)| *kind).collect(),
        tokens: tokens.into_iter().map(|(_, token, _)| token).collect(),
        merges,
        ..GgufTokenizerParts::default()
    }
}

#[test]
fn gguf_byte_level_gives_the_ids_of_the_reference() {
    let all = data("tokenizers.json");
    let set = all.as_array().unwrap().iter().find(|set| set["name"] == "bytes_256").unwrap();
    let parts = GgufTokenizerParts { pre: Some("gpt-2".into()), ..parts(&set["tokenizer"], "gpt2") };
    let tokenizer = Tokenizer::from_gguf(&parts).unwrap();
    for case in set["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, Specials::Parse).unwrap(), ids(&case["ids"]), "{text:?}");
        assert_eq!(tokenizer.decode(&ids(&case["ids"]), false), case["decoded"], "{text:?}");
    }
    assert_eq!(tokenizer.special_tokens().eot, Some(257), "the end of turn is found by its name");
    assert!(tokenizer.warnings().is_empty());
}

/// Scores that make SentencePiece's rule choose in the order of the merges of the definition.
fn sentence_piece_parts(definition: &Value) -> GgufTokenizerParts {
    let mut parts = parts(definition, "llama");
    let order: Vec<String> = parts.merges.iter().map(|merge| merge.replace(' ', "")).collect();
    let rank = |token: &String| order.iter().position(|merged| merged == token);
    parts.scores = parts.tokens.iter().map(|token| rank(token).map_or(0.0, |rank| -(rank as f32))).collect();
    parts.merges.clear();
    parts.token_types[0] = 2;
    (parts.unk, parts.bos, parts.eos) = (Some(0), Some(1), Some(2));
    parts
}

#[test]
fn gguf_sentence_piece_gives_the_ids_of_the_reference() {
    for (name, prefix) in [("spaced", None), ("unprefixed", Some(false))] {
        let all = data("tokenizers.json");
        let set = all.as_array().unwrap().iter().find(|set| set["name"] == name).unwrap();
        let parts = GgufTokenizerParts { add_space_prefix: prefix, ..sentence_piece_parts(&set["tokenizer"]) };
        let tokenizer = Tokenizer::from_gguf(&parts).unwrap();
        for case in set["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            assert_eq!(tokenizer.encode(text, Specials::Parse).unwrap(), ids(&case["ids"]), "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&ids(&case["ids"]), false), case["decoded"], "{name}: {text:?}");
        }
        assert_eq!(tokenizer.prefix(), [1], "SentencePiece models start with bos unless told otherwise");
        assert_eq!(tokenizer.special_texts()["bos_token"], "<s>");
    }
}

/// SentencePiece's rule, straight from its description: join the adjacent pair whose union has the best score, the leftmost
/// of equals, until no union is a token.
fn sentence_piece_by_definition(text: &str, pieces: &[(String, f32)]) -> Vec<String> {
    let mut symbols: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for at in 0..symbols.len().saturating_sub(1) {
            let union = format!("{}{}", symbols[at], symbols[at + 1]);
            if let Some((_, score)) = pieces.iter().find(|(piece, _)| *piece == union)
                && best.is_none_or(|(best, _)| *score > best)
            {
                best = Some((*score, at));
            }
        }
        let Some((_, at)) = best else { return symbols };
        let right = symbols.remove(at + 1);
        symbols[at].push_str(&right);
    }
}

proptest! {
    #[test]
    fn gguf_sentence_piece_follows_the_definition(
        words in proptest::collection::btree_set("[abc]{2,5}", 1..24),
        text in "[abc]{0,24}",
        seed in any::<u64>(),
    ) {
        // Scores are all different, as in trained vocabularies.
        let mut pieces: Vec<(String, f32)> = ["a", "b", "c"].iter().map(|c| (c.to_string(), -1000.0)).collect();
        let count = words.len() as u64;
        let shuffled = words.into_iter().enumerate();
        pieces.extend(shuffled.map(|(i, word)| (word, -(((i as u64 * 7919 + seed % 997) % 1009 + i as u64 * 2000 % (count * 2000)) as f32))));
        let parts = GgufTokenizerParts {
            model: "llama".into(),
            tokens: pieces.iter().map(|(piece, _)| piece.clone()).collect(),
            scores: pieces.iter().map(|(_, score)| *score).collect(),
            add_space_prefix: Some(false),
            ..GgufTokenizerParts::default()
        };
        let tokenizer = Tokenizer::from_gguf(&parts).unwrap();
        let ids = tokenizer.encode(&text, Specials::Parse).unwrap();
        let found: Vec<String> = ids.iter().map(|&id| tokenizer.id_to_token(id).unwrap()).collect();
        prop_assert_eq!(found, sentence_piece_by_definition(&text, &pieces));
    }

    #[test]
    fn our_own_search_agrees_with_the_crate(text in "(<a>|<b>|<m>|<r>|<w>|<lr>|FOO|foo|BAR|a|b| |\u{a0}|é){0,20}") {
        let tokenizer = load(&definition("flags"));
        let own = encode_with_range(&tokenizer, &text, text.len()..text.len() + 1);
        prop_assert_eq!(own, tokenizer.encode(&text, Specials::Parse).unwrap());
    }

    #[test]
    fn streams_add_up_to_the_whole(ids in proptest::collection::vec(0u32..270, 0..40), skip in any::<bool>()) {
        for name in ["bytes_256", "spaced", "unprefixed"] {
            let tokenizer = load(&definition(name));
            prop_assert_eq!(streamed(&tokenizer, &ids, skip), tokenizer.decode(&ids, skip));
        }
        let bytes: Vec<u8> = ids.iter().filter_map(|&id| u8::try_from(id).ok()).collect();
        let ids: Vec<u32> = bytes.iter().map(|&byte| u32::from(byte)).collect();
        let whole = load(&definition("bytes_256")).decode(&ids, false);
        prop_assert_eq!(whole, String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn gguf_word_piece_gives_the_ids_of_the_reference() {
    let all = data("tokenizers.json");
    let set = all.as_array().unwrap().iter().find(|set| set["name"] == "words").unwrap();
    let mut parts = parts(&set["tokenizer"], "bert");
    // The format marks the start of words, BERT their continuation.
    for (token, kind) in parts.tokens.iter_mut().zip(&parts.token_types) {
        if *kind == 1 {
            *token = token.strip_prefix("##").map_or_else(|| format!("▁{token}"), str::to_owned);
        }
    }
    (parts.unk, parts.cls, parts.sep) = (Some(1), Some(2), Some(3));
    let tokenizer = Tokenizer::from_gguf(&parts).unwrap();
    for case in set["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, Specials::Parse).unwrap(), ids(&case["ids"]), "{text:?}");
        if !text.starts_with("[CLS]") {
            assert_eq!(tokenizer.encode_prompt(text, Specials::Parse).unwrap(), ids(&case["surrounded"]), "{text:?}");
        }
        assert_eq!(tokenizer.decode(&ids(&case["ids"]), true), case["skipped"], "{text:?}");
    }
}

#[test]
fn gguf_whole_words_come_with_the_pre_tokenizer() {
    let parts = parts(&definition("merge_bc"), "gpt2");
    let encode = |pre: &str| {
        let parts = GgufTokenizerParts { pre: Some(pre.into()), ..parts.clone() };
        Tokenizer::from_gguf(&parts).unwrap().encode("abc", Specials::Parse).unwrap()
    };
    assert_eq!(encode("qwen2"), [0, 4]);
    assert_eq!(encode("llama-bpe"), [5]);
    assert_eq!(encode("tekken"), [5]);
}

#[test]
fn gguf_flags_decide_about_begin_and_end() {
    let base = sentence_piece_parts(&definition("spaced"));
    let surroundings = |add_bos, add_eos| {
        let tokenizer = Tokenizer::from_gguf(&GgufTokenizerParts { add_bos, add_eos, ..base.clone() }).unwrap();
        (tokenizer.prefix().to_vec(), tokenizer.suffix().to_vec())
    };
    assert_eq!(surroundings(None, None), (vec![1], vec![]));
    assert_eq!(surroundings(Some(false), Some(true)), (vec![], vec![2]));
}

#[test]
fn gguf_end_of_turn_and_message_are_kept() {
    let parts = GgufTokenizerParts { eot: Some(4), eom: Some(5), ..sentence_piece_parts(&definition("spaced")) };
    let tokenizer = Tokenizer::from_gguf(&parts).unwrap();
    let special = tokenizer.special_tokens();
    assert_eq!((special.eos, special.eot, special.eom), (Some(2), Some(4), Some(5)));
}

#[test]
fn gguf_tokens_with_the_same_text_decode() {
    let mut parts = sentence_piece_parts(&definition("spaced"));
    let again = parts.tokens.len() as u32;
    parts.tokens.push("▁hello".into());
    parts.scores.push(-1.0);
    parts.token_types.push(1);
    let tokenizer = Tokenizer::from_gguf(&parts).unwrap();
    assert_eq!(tokenizer.vocab_size(), again as usize + 1);
    assert_eq!(tokenizer.decode(&[again, again], false), "hello hello");
    assert_eq!(tokenizer.encode("hello", Specials::Parse).unwrap(), [tokenizer.token_to_id("▁hello").unwrap()]);
    assert_ne!(tokenizer.token_to_id("▁hello"), Some(again));
}

#[test]
fn gguf_mistakes_are_named() {
    type Change<'a> = &'a dyn Fn(&mut GgufTokenizerParts);
    let good = sentence_piece_parts(&definition("spaced"));
    let error = |change: Change| {
        let mut parts = good.clone();
        change(&mut parts);
        Tokenizer::from_gguf(&parts).map(|_| ()).unwrap_err().to_string()
    };
    let tokens = good.tokens.len();
    let cases: [(String, Change); 8] = [
        ("tokens is missing or empty".into(), &|p| p.tokens.clear()),
        (format!("scores has 1 entries for {tokens} tokens"), &|p| p.scores.truncate(1)),
        ("scores is missing".into(), &|p| p.scores.clear()),
        (format!("token_type has 2 entries for {tokens} tokens"), &|p| p.token_types.truncate(2)),
        (format!("eos_token_id is 9999, but there are {tokens} tokens"), &|p| p.eos = Some(9999)),
        ("model is \"rwkv\"; known are gpt2".into(), &|p| p.model = "rwkv".into()),
        ("pre is \"brand-new\", which is not implemented; known are".into(), &|p| {
            (p.model, p.pre) = ("gpt2".into(), Some("brand-new".into()));
        }),
        ("merge \"nospace\" is not two tokens".into(), &|p| {
            (p.model, p.merges) = ("gpt2".into(), vec!["nospace".into()]);
        }),
    ];
    for (message, change) in cases {
        let found = error(change);
        assert!(found.contains(&message), "{found:?} lacks {message:?}");
    }
}

#[test]
fn gguf_oddities_are_warnings() {
    let mut parts = parts(&definition("merge_bc"), "gpt2");
    parts.merges.push("q q".into());
    let tokenizer = Tokenizer::from_gguf(&parts).unwrap();
    assert_eq!(tokenizer.warnings().len(), 2, "{:?}", tokenizer.warnings());
    assert!(tokenizer.warnings()[0].contains("tokenizer.ggml.pre is missing"));
    assert!(tokenizer.warnings()[1].starts_with("1 merges name tokens"));
    assert_eq!(tokenizer.encode("abc", Specials::Parse).unwrap(), [0, 4]);
}

#[test]
fn long_texts_of_one_kind_are_tokenized() {
    let tokenizer = load(&definition("bytes_256"));
    for text in [" ".repeat(300_000), "a".repeat(300_000), "\n".repeat(300_000), "<".repeat(300_000)] {
        assert_eq!(tokenizer.encode(&text, Specials::Parse).unwrap().len(), text.len());
        assert_eq!(tokenizer.encode(&text, Specials::Plain).unwrap().len(), text.len());
    }
}

#[test]
fn texts_that_no_context_holds_are_refused_before_they_take_memory() {
    let json = r#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#;
    let tokenizer = Tokenizer::from_json(json.as_bytes(), &TokenizerConfig::default()).unwrap();
    let text = "a".repeat((16 << 20) + 1);
    let too_long = |error: TokenizerError| matches!(error, TokenizerError::TooLong { bytes: 16_777_217, .. });
    assert!(too_long(tokenizer.encode(&text, Specials::Parse).unwrap_err()));
    assert!(too_long(tokenizer.encode(&text, Specials::Plain).unwrap_err()));
    assert!(too_long(tokenizer.encode_parts(&text, std::slice::from_ref(&(0..1))).unwrap_err()));
    assert!(too_long(tokenizer.find_controls(&text).unwrap_err()));
    assert_eq!(tokenizer.encode("aa", Specials::Parse).unwrap(), [0, 0]);
}

/// Files that no tool writes, for which the library panics or asks for more memory than there is.
#[test]
fn definitions_that_break_the_library_are_errors() {
    let model = json!({"type": "BPE", "vocab": {"a": 0}, "merges": []});
    let charsmap =
        |text: &str| json!({"model": model, "normalizer": {"type": "Precompiled", "precompiled_charsmap": text}});
    let broken = [
        // A token that its own list lacks.
        json!({"model": model, "post_processor": {"type": "TemplateProcessing", "pair": [], "special_tokens": {},
            "single": [{"SpecialToken": {"id": "missing", "type_id": 0}}]}}),
        // Empty, four bytes short, and a trie of 4 GiB in a map of 12 bytes.
        charsmap("AAAA"),
        charsmap("CAAAAAAAAAA="),
        charsmap("/////wAAAAAAAAAA"),
    ];
    for definition in broken {
        let loaded = Tokenizer::from_json(definition.to_string().as_bytes(), &TokenizerConfig::default());
        assert!(matches!(loaded, Err(TokenizerError::Invalid { .. })), "{definition}");
    }
    // 4, and a trie whose only node, 0xfffffc00, leads out of it: loading cannot tell.
    let tokenizer = load(&charsmap("BAAAAAD8//8="));
    for specials in [Specials::Parse, Specials::Plain] {
        assert!(matches!(tokenizer.encode("a", specials), Err(TokenizerError::Encode(_))));
    }
}
