//! Pre-tokenizers by the names that GGUF metadata uses for them (`tokenizer.ggml.pre`).
//!
//! A pre-tokenizer is one or more regular expressions applied in turn: each cuts every piece so far into matches and what
//! lies between them. They are the expressions of the models' own `tokenizer.json` files.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::normalizer::SplitDelimiterBehavior;

use super::TokenizerError;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str =
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const DIGIT: &str = r"\p{N}";
const THREE_DIGITS: &str = "[0-9][0-9][0-9]";
const LINE_BREAK: &str = r"[\r\n]";
const HAN_AND_HANGUL: &str = "[一-龥ࠀ-一가-퟿]+";
const HAN_AND_KANA: &str = "[一-龥぀-ゟ゠-ヿ]+";
/// Letters with case, as DeepSeek LLM lists them.
const CASED: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ\x{1F5F}-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const WIDE_PUNCTUATION: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// One pre-tokenizer.
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    patterns: &'static [&'static str],
    /// A piece that is in the vocabulary as a whole becomes that token, whatever the merges say.
    pub ignore_merges: bool,
    /// The text is brought to Unicode's normal form C first.
    pub nfc: bool,
    /// Whether models of this kind start with the begin-of-sequence token when their metadata does not say.
    pub add_bos: bool,
}

const fn entry(names: &'static [&'static str], patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { names, patterns, ignore_merges: false, nfc: false, add_bos: false }
}

const fn with_nfc(entry: PreTokenizer) -> PreTokenizer {
    PreTokenizer { nfc: true, ..entry }
}

const fn whole_words(entry: PreTokenizer) -> PreTokenizer {
    PreTokenizer { ignore_merges: true, ..entry }
}

const fn with_bos(entry: PreTokenizer) -> PreTokenizer {
    PreTokenizer { add_bos: true, ..entry }
}

static TABLE: [PreTokenizer; 25] = [
    entry(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", THREE_DIGITS]),
    entry(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "roberta-bpe",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        &[GPT2],
    ),
    with_bos(whole_words(entry(
        &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        &[LLAMA3],
    ))),
    entry(&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], &[LLAMA3]),
    // Qwen's own tokenizer.json normalises; the metadata has no key to say so.
    with_nfc(entry(&["qwen2"], &[QWEN2])),
    entry(&["stablelm2", "deepseek-r1-qwen", "kormo", "megrez", "hunyuan", "grok-2", "solar-open"], &[QWEN2]),
    with_nfc(entry(&["qwen35"], &[QWEN35])),
    entry(&["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"], &[DIGIT, GPT2]),
    entry(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, THREE_DIGITS]),
    entry(&["deepseek-llm"], &[LINE_BREAK, CASED, WIDE_PUNCTUATION, r"\s+$", HAN_AND_HANGUL, r"\p{N}+"]),
    entry(&["deepseek-coder"], &[LINE_BREAK, r"\s?\p{L}+", r"\s?\p{P}+", HAN_AND_HANGUL, DIGIT]),
    entry(&["deepseek-v3", "hunyuan-dense"], &[r"\p{N}{1,3}", HAN_AND_KANA, DEEPSEEK3]),
    whole_words(entry(&["joyai-llm"], &[r"\p{N}{1,3}", HAN_AND_KANA, DEEPSEEK3])),
    with_bos(whole_words(entry(&["tekken"], &[TEKKEN]))),
    entry(&["gpt-4o", "llama4", "kanana2", "minimax-m2"], &[GPT4O]),
    entry(&["bloom", "poro-chat", "gpt3-finnish"], &[BLOOM]),
    entry(&["viking"], &[BLOOM, DIGIT]),
    entry(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    entry(&["seed-coder"], &[SEED_CODER]),
    entry(&["exaone-moe"], &[EXAONE_MOE]),
    entry(&["superbpe"], &[r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
    with_bos(entry(
        &["chameleon"],
        &[
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            "([\\t\\n]|    |  )",
            DIGIT,
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ],
    )),
    whole_words(entry(
        &["youtu"],
        &[
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    )),
    entry(&["gpt2-small-japanese-char"], &[GPT2]),
    entry(&["cl100k"], &[LLAMA3]),
];

/// The name in GGUF metadata of a pre-tokenizer, for writers of files. Names that stand for the same rules are
/// interchangeable; this is the first of them.
///
/// * `patterns`: the expressions that cut a text, in turn.
/// * `ignore_merges`: a piece that is in the vocabulary as a whole becomes that token, whatever the merges say.
/// * `nfc`: the text is brought to Unicode's normal form C first.
pub fn gguf_pre_tokenizer(patterns: &[&str], ignore_merges: bool, nfc: bool) -> Option<&'static str> {
    let same = |e: &&PreTokenizer| (e.patterns, e.ignore_merges, e.nfc) == (patterns, ignore_merges, nfc);
    TABLE.iter().find(same)?.names.first().copied()
}

impl PreTokenizer {
    /// The pre-tokenizer of that name.
    pub fn named(name: &str) -> Result<&'static PreTokenizer, TokenizerError> {
        TABLE.iter().find(|entry| entry.names.contains(&name)).ok_or_else(|| {
            let known = TABLE.iter().flat_map(|entry| entry.names).copied().collect::<Vec<_>>().join(", ");
            TokenizerError::UnknownPreTokenizer { name: name.to_owned(), known }
        })
    }

    /// The pre-tokenizer in the form of the `tokenizers` crate, followed by the translation of bytes to characters.
    pub fn build(&self) -> tokenizers::Result<PreTokenizerWrapper> {
        let mut steps = Vec::with_capacity(self.patterns.len() + 1);
        for pattern in self.patterns {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            steps.push(Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into());
        }
        steps.push(ByteLevel::new(false, true, false).into());
        Ok(Sequence::new(steps).into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    use super::*;

    #[test]
    fn every_pattern_compiles_and_every_name_is_unique() {
        let mut names: Vec<&str> = Vec::new();
        for entry in &TABLE {
            entry.build().expect("a valid pattern");
            names.extend(entry.names);
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn rules_have_names_for_writers() {
        assert_eq!(gguf_pre_tokenizer(&[GPT2], false, false), Some("gpt-2"));
        assert_eq!(gguf_pre_tokenizer(&[LLAMA3], true, false), Some("llama-bpe"));
        assert_eq!(gguf_pre_tokenizer(&[QWEN2], false, true), Some("qwen2"));
        assert_eq!(gguf_pre_tokenizer(&["[a-z]+"], false, false), None);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = PreTokenizer::named("no-such").err().expect("an error").to_string();
        assert!(error.contains("\"no-such\"") && error.contains("llama-bpe") && error.contains("qwen2"), "{error}");
    }

    #[test]
    fn pieces_are_those_of_oniguruma() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/text/pieces.json");
        let expected: Value = serde_json::from_slice(&std::fs::read(path).expect("the file")).expect("JSON");
        for set in expected.as_array().expect("a list") {
            let name = set["name"].as_str().expect("a name");
            let pre = PreTokenizer::named(name).expect("a known name").build().expect("a valid pattern");
            for case in set["cases"].as_array().expect("a list") {
                let mut text = PreTokenizedString::from(case["text"].as_str().expect("a text"));
                pre.pre_tokenize(&mut text).expect("pieces");
                let splits = text.get_splits(OffsetReferential::Original, OffsetType::Byte);
                let pieces: Vec<&str> = splits.iter().map(|(piece, ..)| *piece).collect();
                assert_eq!(Value::from(pieces), case["pieces"], "{name}: {}", case["text"]);
            }
        }
    }
}
