//! Tokenizers from GGUF metadata.

use std::collections::HashMap;

use serde_json::{Map, Value};
use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::byte_level::ByteLevel as ByteLevelDecoder;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::decoders::wordpiece::WordPiece as WordPieceDecoder;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::bert::BertNormalizer;
use tokenizers::normalizers::prepend::Prepend;
use tokenizers::normalizers::replace::Replace;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::normalizers::utils::Sequence as Normalizers;
use tokenizers::normalizers::{NormalizerWrapper, Precompiled};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::{AddedToken, ModelWrapper};

use super::detokenize::byte_token;
use super::guard::{check_charsmap, guarded};
use super::pretokenizer::PreTokenizer;
use crate::gguf::Metadata;

use super::{SpecialTokens, Tokenizer, TokenizerError};

/// SentencePiece writes a space as this character.
const SPACE: &str = "▁";

const KNOWN_MODELS: &str =
    "gpt2 (byte-level BPE), llama (SentencePiece BPE), bert (WordPiece), t5 (SentencePiece unigram)";

/// The tokenizer part of GGUF metadata, key by key (`tokenizer.ggml.` left out). Missing lists are empty.
#[derive(Clone, Debug, Default)]
pub struct GgufTokenizerParts {
    /// `model`: gpt2, llama, bert or t5.
    pub model: String,
    /// `pre`: name of the pre-tokenizer, for gpt2.
    pub pre: Option<String>,
    /// `tokens`: the text of each id.
    pub tokens: Vec<String>,
    /// `scores`: one per token, for llama and t5.
    pub scores: Vec<f32>,
    /// `token_type`: one per token; 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
    pub token_types: Vec<i32>,
    /// `merges`: pairs with a space between, best first, for gpt2.
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`, end of turn.
    pub eot: Option<u32>,
    /// `eom_token_id`, end of message.
    pub eom: Option<u32>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `seperator_token_id` (spelt so in the format).
    pub sep: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
    /// `cls_token_id`.
    pub cls: Option<u32>,
    /// `mask_token_id`.
    pub mask: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `precompiled_charsmap`, the normaliser of t5 models.
    pub precompiled_charsmap: Vec<u8>,
}

/// Longest token, in bytes; the longest of real vocabularies have some hundred. Finding the pairs that make up a token
/// takes time in proportion to the square of its length.
const MAX_TOKEN: usize = 1024;

/// `token_type` values.
mod kind {
    pub const NORMAL: i32 = 1;
    pub const UNKNOWN: i32 = 2;
    pub const CONTROL: i32 = 3;
    pub const USER_DEFINED: i32 = 4;
    pub const BYTE: i32 = 6;
}

/// Names of end-of-turn tokens, for files that mark them as control tokens without giving their id.
const TURN_ENDS: [&str; 7] =
    ["<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "<|eom_id|>", "<EOT>"];

impl GgufTokenizerParts {
    /// Reads the `tokenizer.ggml.` keys.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let id = |name: &str| metadata.optional_u32(&key(&format!("{name}_token_id")));
        let flag = |name: &str| metadata.optional_bool(&key(name));
        // Tokens of some vocabularies are single bytes of a character, which are not text.
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let texts = |list: Vec<&[u8]>| list.into_iter().map(text).collect();
        let charsmap = metadata.optional_i32s(&key("precompiled_charsmap"))?.unwrap_or_default();
        Ok(Self {
            model: metadata.str(&key("model"))?.to_owned(),
            pre: metadata.optional_str(&key("pre"))?.map(str::to_owned),
            tokens: texts(metadata.byte_strings(&key("tokens"))?),
            scores: metadata.optional_f32s(&key("scores"))?.unwrap_or_default(),
            token_types: metadata.optional_i32s(&key("token_type"))?.unwrap_or_default(),
            merges: texts(metadata.optional_byte_strings(&key("merges"))?.unwrap_or_default()),
            bos: id("bos")?,
            eos: id("eos")?,
            eot: id("eot")?,
            eom: id("eom")?,
            unk: id("unknown")?,
            sep: id("seperator")?,
            pad: id("padding")?,
            cls: id("cls")?,
            mask: id("mask")?,
            add_bos: flag("add_bos_token")?,
            add_eos: flag("add_eos_token")?,
            add_space_prefix: flag("add_space_prefix")?,
            // Stored as bytes or as signed bytes, depending on the writer.
            precompiled_charsmap: charsmap.into_iter().map(|byte| (byte & 0xFF) as u8).collect(),
        })
    }

    /// The special tokens as templates know them.
    fn special_texts(&self, tokenizer: &Tokenizer) -> Map<String, Value> {
        let names = [
            ("bos_token", tokenizer.special.bos),
            ("eos_token", tokenizer.special.eos),
            ("unk_token", self.unk),
            ("sep_token", self.sep),
            ("pad_token", self.pad),
            ("cls_token", self.cls),
            ("mask_token", self.mask),
        ];
        let text = |(name, id): (&str, Option<u32>)| {
            Some((name.to_owned(), Value::from(self.tokens.get(id? as usize)?.as_str())))
        };
        names.into_iter().filter_map(text).collect()
    }

    pub(super) fn build(&self) -> Result<Tokenizer, TokenizerError> {
        self.check()?;
        let mut warnings = Vec::new();
        let (mut inner, add_bos, add_eos) = match self.model.as_str() {
            "gpt2" => {
                let name = self.pre.as_deref().unwrap_or_else(|| {
                    warnings.push("tokenizer.ggml.pre is missing: the default pre-tokenizer may give other ids".into());
                    "default"
                });
                let pre = PreTokenizer::named(name)?;
                (self.byte_level(pre, &mut warnings)?, pre.add_bos, false)
            }
            "llama" => (self.sentence_piece()?, true, false),
            "t5" => (self.unigram()?, false, true),
            "bert" => (self.word_piece()?, true, true),
            other => {
                return Err(TokenizerError::UnknownModel { name: other.to_owned(), known: KNOWN_MODELS });
            }
        };
        inner.add_tokens(self.added_tokens()).map_err(unusable)?;
        let mut tokenizer = Tokenizer::from_inner(inner, warnings)?;
        let first = if self.model == "bert" { self.cls.or(self.bos) } else { self.bos };
        let last = if self.model == "bert" { self.sep.or(self.eos) } else { self.eos };
        tokenizer.special = SpecialTokens {
            bos: first,
            eos: last,
            eot: self.eot.or_else(|| self.turn_end()),
            eom: self.eom,
            unk: self.unk,
            pad: self.pad,
        };
        tokenizer.prefix = first.filter(|_| self.add_bos.unwrap_or(add_bos)).into_iter().collect();
        tokenizer.suffix = last.filter(|_| self.add_eos.unwrap_or(add_eos)).into_iter().collect();
        tokenizer.vocab_size = self.tokens.len();
        tokenizer.repeated = self.repeated_tokens();
        tokenizer.special_texts = self.special_texts(&tokenizer);
        Ok(tokenizer)
    }

    /// The rules that every model shares.
    fn check(&self) -> Result<(), TokenizerError> {
        let count = self.tokens.len();
        if count == 0 {
            return Err(TokenizerError::Gguf("tokenizer.ggml.tokens is missing or empty".into()));
        }
        if u32::try_from(count).is_err() {
            return Err(TokenizerError::Gguf(format!("{count} tokens are more than ids can number")));
        }
        if let Some((id, token)) = self.tokens.iter().enumerate().find(|(_, token)| token.len() > MAX_TOKEN) {
            let reason = format!("token {id} is {} bytes long; at most {MAX_TOKEN} are allowed", token.len());
            return Err(TokenizerError::Gguf(reason));
        }
        for (name, length) in [("scores", self.scores.len()), ("token_type", self.token_types.len())] {
            if length != 0 && length != count {
                let reason = format!("tokenizer.ggml.{name} has {length} entries for {count} tokens");
                return Err(TokenizerError::Gguf(reason));
            }
        }
        let ids = [
            ("bos", self.bos),
            ("eos", self.eos),
            ("eot", self.eot),
            ("eom", self.eom),
            ("unknown", self.unk),
            ("seperator", self.sep),
            ("padding", self.pad),
            ("cls", self.cls),
            ("mask", self.mask),
        ];
        for (name, id) in ids {
            if let Some(id) = id.filter(|&id| id as usize >= count) {
                let reason = format!("tokenizer.ggml.{name}_token_id is {id}, but there are {count} tokens");
                return Err(TokenizerError::Gguf(reason));
            }
        }
        Ok(())
    }

    fn kind(&self, id: usize) -> i32 {
        self.token_types.get(id).copied().unwrap_or(kind::NORMAL)
    }

    /// Token texts to ids; of tokens with the same text the first counts.
    fn vocabulary(&self) -> Vocab {
        let mut vocabulary = Vocab::default();
        vocabulary.reserve(self.tokens.len());
        for (id, token) in (0u32..).zip(&self.tokens) {
            vocabulary.entry(token.clone()).or_insert(id);
        }
        vocabulary
    }

    /// Tokens whose text another token has too: they are never produced, yet a model may emit them.
    fn repeated_tokens(&self) -> HashMap<u32, String> {
        let mut seen = HashMap::with_capacity(self.tokens.len());
        let mut repeated = HashMap::new();
        for (id, token) in (0u32..).zip(&self.tokens) {
            if *seen.entry(token.as_str()).or_insert(id) != id {
                repeated.insert(id, token.clone());
            }
        }
        repeated
    }

    /// Control tokens are special, user-defined ones are matched before everything else but are ordinary text.
    fn added_tokens(&self) -> Vec<AddedToken> {
        let added = |(id, token): (usize, &String)| match self.kind(id) {
            kind::CONTROL => Some(AddedToken::from(token.clone(), true)),
            kind::USER_DEFINED => Some(AddedToken::from(token.clone(), false).normalized(false)),
            _ => None,
        };
        self.tokens.iter().enumerate().filter(|(_, token)| !token.is_empty()).filter_map(added).collect()
    }

    /// The end-of-turn token by its name, if the metadata does not give its id.
    fn turn_end(&self) -> Option<u32> {
        let named = |name: &&str| {
            let id = self.tokens.iter().position(|token| token == name)?;
            (self.kind(id) == kind::CONTROL).then(|| u32::try_from(id).ok()).flatten()
        };
        TURN_ENDS.iter().find_map(named)
    }

    /// BPE over GPT-2's alphabet of bytes.
    fn byte_level(
        &self,
        pre: &PreTokenizer,
        warnings: &mut Vec<String>,
    ) -> Result<tokenizers::Tokenizer, TokenizerError> {
        let vocabulary = self.vocabulary();
        let mut merges = Vec::with_capacity(self.merges.len());
        let mut unusable_merges = 0usize;
        for merge in &self.merges {
            // A token may itself be a space in vocabularies that are not byte-level: the separator is never first.
            let pair = merge.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| merge.split_at(at));
            let Some((left, right)) = pair.map(|(left, right)| (left, &right[1..])) else {
                let reason = format!("the merge \"{merge}\" is not two tokens with a space between");
                return Err(TokenizerError::Gguf(reason));
            };
            let known = |token: &str| vocabulary.contains_key(token);
            if known(left) && known(right) && known(&format!("{left}{right}")) {
                merges.push((left.to_owned(), right.to_owned()));
            } else {
                unusable_merges += 1;
            }
        }
        if unusable_merges > 0 {
            warnings.push(format!("{unusable_merges} merges name tokens that the vocabulary lacks; they are left out"));
        }
        let model = BPE::builder().vocab_and_merges(vocabulary, merges).ignore_merges(pre.ignore_merges);
        let mut tokenizer = tokenizers::Tokenizer::new(ModelWrapper::from(model.build().map_err(unusable)?));
        if pre.nfc {
            tokenizer.with_normalizer(Some(NFC)).map_err(unusable)?;
        }
        tokenizer.with_pre_tokenizer(Some(pre.build().map_err(unusable)?));
        tokenizer.with_decoder(Some(ByteLevelDecoder::new(true, true, true)));
        Ok(tokenizer)
    }

    /// SentencePiece's BPE: of all adjacent pairs whose union is a token, the one with the best score is joined first.
    fn sentence_piece(&self) -> Result<tokenizers::Tokenizer, TokenizerError> {
        let has_bytes = (0..self.tokens.len()).any(|id| self.kind(id) == kind::BYTE);
        let mut model = BPE::builder()
            .vocab_and_merges(self.vocabulary(), self.merges_by_score()?)
            .byte_fallback(has_bytes)
            .fuse_unk(true);
        if let Some(token) = self.unk.and_then(|id| self.tokens.get(id as usize)) {
            model = model.unk_token(token.clone());
        }
        let mut tokenizer = tokenizers::Tokenizer::new(ModelWrapper::from(model.build().map_err(unusable)?));
        let prefix = self.add_space_prefix.unwrap_or(true);
        let mut steps: Vec<NormalizerWrapper> = Vec::new();
        if prefix {
            steps.push(Prepend::new(SPACE.to_owned()).into());
        }
        steps.push(Replace::new(" ", SPACE).map_err(unusable)?.into());
        tokenizer.with_normalizer(Some(Normalizers::new(steps))).map_err(unusable)?;
        let mut decoders: Vec<DecoderWrapper> =
            vec![Replace::new(SPACE, " ").map_err(unusable)?.into(), ByteFallback::new().into(), Fuse::new().into()];
        if prefix {
            decoders.push(Strip::new(' ', 1, 0).into());
        }
        tokenizer.with_decoder(Some(Decoders::new(decoders)));
        Ok(tokenizer)
    }

    /// All pairs of tokens whose union is a token, best score of the union first.
    ///
    /// Only ordinary tokens take part: text must never grow into a control token, user-defined tokens are matched as a
    /// whole before, and byte tokens are only for characters that the vocabulary lacks.
    fn merges_by_score(&self) -> Result<Vec<(String, String)>, TokenizerError> {
        if self.scores.len() != self.tokens.len() {
            return Err(TokenizerError::Gguf("tokenizer.ggml.scores is missing".into()));
        }
        let mut ordinary: HashMap<&str, u32> = HashMap::with_capacity(self.tokens.len());
        for (id, token) in (0u32..).zip(&self.tokens) {
            if self.kind(id as usize) == kind::NORMAL && byte_token(token).is_none() {
                ordinary.entry(token).or_insert(id);
            }
        }
        let mut pairs = Vec::new();
        for (&token, &id) in &ordinary {
            let score = self.scores[id as usize];
            for (at, _) in token.char_indices().skip(1) {
                let (left, right) = token.split_at(at);
                if let (Some(&left_id), Some(&right_id)) = (ordinary.get(left), ordinary.get(right)) {
                    let lengths = (left.chars().count(), right.chars().count());
                    pairs.push((score, lengths, left_id, right_id));
                }
            }
        }
        // SentencePiece joins the leftmost of equally good pairs. Ranks know nothing of places, but with the longest left
        // part first a run of equals (runs of spaces share one score) grows from the left in the same way.
        pairs.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then((a.2, a.3).cmp(&(b.2, b.3))));
        let text = |id: u32| self.tokens[id as usize].clone();
        Ok(pairs.into_iter().map(|(_, _, left, right)| (text(left), text(right))).collect())
    }

    /// SentencePiece's unigram model.
    fn unigram(&self) -> Result<tokenizers::Tokenizer, TokenizerError> {
        if self.scores.len() != self.tokens.len() {
            return Err(TokenizerError::Gguf("tokenizer.ggml.scores is missing".into()));
        }
        let has_bytes = (0..self.tokens.len()).any(|id| self.kind(id) == kind::BYTE);
        let unk = self
            .unk
            .map(|id| id as usize)
            .or_else(|| (0..self.tokens.len()).find(|&id| self.kind(id) == kind::UNKNOWN));
        let vocabulary = self.tokens.iter().cloned().zip(self.scores.iter().map(|&s| f64::from(s))).collect();
        let model = Unigram::from(vocabulary, unk, has_bytes).map_err(unusable)?;
        let mut tokenizer = tokenizers::Tokenizer::new(ModelWrapper::from(model));
        if !self.precompiled_charsmap.is_empty() {
            let charsmap = &self.precompiled_charsmap;
            check_charsmap(charsmap, charsmap.len()).map_err(TokenizerError::Gguf)?;
            let map = guarded(|| Precompiled::from(charsmap)).map_err(TokenizerError::Gguf)?;
            let map = map.map_err(|e| unusable(e.into()))?;
            tokenizer.with_normalizer(Some(NormalizerWrapper::Precompiled(map))).map_err(unusable)?;
        }
        let scheme = if self.add_space_prefix.unwrap_or(true) { PrependScheme::Always } else { PrependScheme::Never };
        tokenizer.with_pre_tokenizer(Some(Metaspace::new('▁', scheme, true)));
        tokenizer.with_decoder(Some(Metaspace::new('▁', scheme, true)));
        Ok(tokenizer)
    }

    /// BERT's WordPiece. The format marks the *start* of words with `▁` where BERT marks their continuation with `##`.
    fn word_piece(&self) -> Result<tokenizers::Tokenizer, TokenizerError> {
        let mut vocabulary = Vocab::default();
        for (id, token) in (0u32..).zip(&self.tokens) {
            let ordinary = self.kind(id as usize) == kind::NORMAL && !token.starts_with('[');
            let text = match token.strip_prefix(SPACE) {
                Some(word) => word.to_owned(),
                None if ordinary => format!("##{token}"),
                None => token.clone(),
            };
            vocabulary.entry(text).or_insert(id);
        }
        let unk = self.unk.and_then(|id| self.tokens.get(id as usize)).map_or("[UNK]", String::as_str);
        if !vocabulary.contains_key(unk) {
            return Err(TokenizerError::Gguf(format!("the unknown token \"{unk}\" is not in the vocabulary")));
        }
        let model = WordPiece::builder().vocab(vocabulary).unk_token(unk.to_owned()).build().map_err(unusable)?;
        let mut tokenizer = tokenizers::Tokenizer::new(ModelWrapper::from(model));
        tokenizer.with_normalizer(Some(BertNormalizer::new(true, true, None, true))).map_err(unusable)?;
        tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
        tokenizer.with_decoder(Some(WordPieceDecoder::new("##".to_owned(), true)));
        Ok(tokenizer)
    }
}

fn unusable(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Gguf(error.to_string())
}
