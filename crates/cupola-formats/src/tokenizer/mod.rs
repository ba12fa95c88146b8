//! Tokenizers: text to token ids and back.
//!
//! [`Tokenizer`] wraps the `tokenizers` crate, loaded from `tokenizer.json` or built from GGUF metadata, and adds what
//! running a model needs: control over special tokens in text that users wrote, decoding piece by piece, and the rules for
//! begin- and end-of-sequence tokens.

mod added;
mod config;
mod detokenize;
mod error;
mod gguf;
mod guard;
mod pretokenizer;

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::{Encoding, PostProcessor, Token};

use crate::checkpoint::Checkpoint;
use crate::read::{MAX_TEXT, read_limited};

pub use added::Control;
use added::{AddedTokens, Plain};
pub use config::TokenizerConfig;
use detokenize::Scheme;
pub use detokenize::TokenStream;
pub use error::TokenizerError;
pub use gguf::GgufTokenizerParts;
use guard::guarded;
pub use pretokenizer::gguf_pre_tokenizer;

/// What to do with text that spells a control token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// It becomes the token: for text that the program wrote.
    Parse,
    /// It stays text: for anything that came from outside. See [`Control`] for which tokens this covers.
    Plain,
}

/// The special tokens that running a model asks for. Ids are below [`Tokenizer::vocab_size`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begin of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// End of a turn, where that is another token.
    pub eot: Option<u32>,
    /// End of a message within a turn.
    pub eom: Option<u32>,
    /// Unknown text.
    pub unk: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
}

/// A vocabulary and the rules to encode and decode with it. Shared freely between threads.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    added: AddedTokens,
    scheme: Scheme,
    special: SpecialTokens,
    /// Texts of the special tokens by the names that chat templates use.
    special_texts: Map<String, Value>,
    /// Ids put before and after a text: begin and end of sequence, if the model wants them.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    vocab_size: usize,
    /// Text of ids whose text another id has too.
    repeated: HashMap<u32, String>,
    warnings: Vec<String>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Tokenizer");
        debug.field("vocab_size", &self.vocab_size).field("scheme", &self.scheme).field("special", &self.special);
        debug.field("prefix", &self.prefix).field("suffix", &self.suffix).finish_non_exhaustive()
    }
}

/// About four million tokens of English.
const MAX_TEXT_BYTES: usize = 16 << 20;

fn check_length(text: &str) -> Result<(), TokenizerError> {
    if text.len() <= MAX_TEXT_BYTES {
        return Ok(());
    }
    Err(TokenizerError::TooLong { bytes: text.len(), limit: MAX_TEXT_BYTES })
}

impl Tokenizer {
    /// Loads a `tokenizer.json`, with `tokenizer_config.json` and `special_tokens_map.json` from the same folder if there.
    pub fn from_file(path: &Path) -> Result<Self, TokenizerError> {
        let unreadable = |source| TokenizerError::Read { path: path.to_owned(), source };
        let bytes = read_limited(path, MAX_TEXT).map_err(unreadable)?;
        let config = TokenizerConfig::from_dir(path.parent().unwrap_or(Path::new("")))?;
        Self::from_json(&bytes, &config).map_err(|error| match error {
            TokenizerError::Invalid { what, reason } if what == TOKENIZER_JSON => {
                TokenizerError::Invalid { what: path.display().to_string(), reason }
            }
            other => other,
        })
    }

    /// Loads the tokenizer of a checkpoint's folder.
    pub fn from_dir(folder: &Path) -> Result<Self, TokenizerError> {
        let path = folder.join(TOKENIZER_JSON);
        // Also a link to nothing, of which the system's message says more.
        if path.symlink_metadata().is_ok() {
            return Self::from_file(&path);
        }
        let others = ["tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json"];
        let hint = match others.iter().find(|name| folder.join(name).is_file()) {
            Some(other) => {
                format!("; it has {other}, which is not read: save the tokenizer again with a recent transformers")
            }
            None => String::new(),
        };
        Err(TokenizerError::Missing { folder: folder.to_owned(), hint })
    }

    /// Loads a `tokenizer.json` from memory. Truncation and padding that it asks for are left out: cutting a prompt short
    /// is the caller's decision.
    pub fn from_json(json: &[u8], config: &TokenizerConfig) -> Result<Self, TokenizerError> {
        let invalid = |reason: String| TokenizerError::Invalid { what: TOKENIZER_JSON.to_owned(), reason };
        guard::check_charsmaps(json).map_err(invalid)?;
        let parsed = guarded(|| tokenizers::Tokenizer::from_bytes(json)).map_err(invalid)?;
        let parsed = parsed.map_err(|e| invalid(e.to_string()))?;
        let mut tokenizer = guarded(|| Self::from_inner(parsed, Vec::new())).map_err(invalid)??;
        let id = |name: &str| config.token(name).and_then(|text| tokenizer.token_to_id(text));
        tokenizer.special = SpecialTokens {
            bos: id("bos_token"),
            eos: id("eos_token"),
            eot: id("eot_token"),
            eom: None,
            unk: id("unk_token"),
            pad: id("pad_token"),
        };
        tokenizer.special_texts = config.special_tokens();
        tokenizer.apply_config(config);
        Ok(tokenizer)
    }

    /// The tokenizer of a checkpoint of either kind.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, TokenizerError> {
        match checkpoint.gguf() {
            Some(gguf) => Self::from_gguf(&GgufTokenizerParts::from_metadata(gguf.metadata())?),
            None => match checkpoint.folder() {
                Some(folder) => Self::from_dir(folder),
                None => {
                    let hint = "; open the folder of the checkpoint instead of one of its files".to_owned();
                    Err(TokenizerError::Missing { folder: checkpoint.path().to_owned(), hint })
                }
            },
        }
    }

    /// Builds a tokenizer from GGUF metadata.
    pub fn from_gguf(parts: &GgufTokenizerParts) -> Result<Self, TokenizerError> {
        parts.build()
    }

    fn from_inner(mut inner: tokenizers::Tokenizer, warnings: Vec<String>) -> Result<Self, TokenizerError> {
        inner.with_padding(None);
        let invalid = |reason: String| TokenizerError::Invalid { what: TOKENIZER_JSON.to_owned(), reason };
        inner.with_truncation(None).map_err(|e| invalid(e.to_string()))?;
        let added = AddedTokens::of(&inner).map_err(invalid)?;
        let decoder = inner.get_decoder().map(serde_json::to_value).transpose();
        let scheme = Scheme::of(decoder.map_err(|e| invalid(e.to_string()))?.as_ref());
        let (prefix, suffix) = surroundings(&inner).map_err(invalid)?;
        let highest =
            inner.get_added_vocabulary().get_added_tokens_decoder().keys().max().map_or(0, |&id| id as usize + 1);
        let mut vocab_size = inner.get_vocab_size(true).max(highest);
        // Vocabularies with gaps have ids above their count.
        while u32::try_from(vocab_size).is_ok_and(|id| inner.id_to_token(id).is_some()) {
            vocab_size += 1;
        }
        Ok(Self {
            inner,
            added,
            scheme,
            special: SpecialTokens::default(),
            special_texts: Map::new(),
            prefix,
            suffix,
            vocab_size,
            repeated: HashMap::new(),
            warnings,
        })
    }

    /// `add_bos_token` and `add_eos_token`, where given, overrule the post-processor of `tokenizer.json`.
    fn apply_config(&mut self, config: &TokenizerConfig) {
        if let (Some(wanted), Some(bos)) = (config.add_bos(), self.special.bos) {
            self.prefix.retain(|&id| id != bos);
            if wanted {
                self.prefix.insert(0, bos);
            }
        }
        if let (Some(wanted), Some(eos)) = (config.add_eos(), self.special.eos) {
            self.suffix.retain(|&id| id != eos);
            if wanted {
                self.suffix.push(eos);
            }
        }
    }

    /// Encodes a text as it stands: nothing is put before or after it.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TokenizerError> {
        check_length(text)?;
        match specials {
            Specials::Parse => {
                let encoding = guarded(|| self.inner.encode_fast(text, false)).map_err(TokenizerError::Encode)?;
                Ok(encoding.map_err(|e| TokenizerError::Encode(e.to_string()))?.get_ids().to_vec())
            }
            Specials::Plain => self.encode_with(text, &Plain::Everything),
        }
    }

    /// Encodes a prompt that is not a chat: begin and end of sequence are added if the model wants them and the text does
    /// not already have them.
    pub fn encode_prompt(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TokenizerError> {
        let ids = self.encode(text, specials)?;
        let prefix = if ids.starts_with(&self.prefix) { &[] } else { self.prefix.as_slice() };
        let suffix = if ids.ends_with(&self.suffix) { &[] } else { self.suffix.as_slice() };
        Ok([prefix, &ids, suffix].concat())
    }

    /// Encodes text of which some ranges came from outside. Control tokens are recognised everywhere else; those that
    /// overlap a range stay text. Where no range spells a control token the ids are those of
    /// [`encode`](Tokenizer::encode) with [`Specials::Parse`].
    ///
    /// `outside`: ranges in bytes of `text`, in any order. Nothing is put before or after: a chat template writes the
    /// begin-of-sequence token itself where the model wants one.
    pub fn encode_parts(&self, text: &str, outside: &[Range<usize>]) -> Result<Vec<u32>, TokenizerError> {
        check_length(text)?;
        let mut ranges: Vec<Range<usize>> = outside.iter().filter(|range| !range.is_empty()).cloned().collect();
        if ranges.is_empty() {
            return self.encode(text, Specials::Parse);
        }
        ranges.sort_by_key(|range| range.start);
        ranges.dedup_by(|next, kept| {
            let overlap = next.start < kept.end;
            if overlap {
                kept.end = kept.end.max(next.end);
            }
            overlap
        });
        self.encode_with(text, &Plain::Within(&ranges))
    }

    fn encode_with(&self, text: &str, plain: &Plain) -> Result<Vec<u32>, TokenizerError> {
        let encoded = guarded(|| self.added.encode(&self.inner, text, plain)).flatten();
        encoded.map_err(TokenizerError::Encode)
    }

    /// Where `text` spells control tokens: ranges in bytes, in order, without whitespace that a token would take along.
    pub fn find_controls(&self, text: &str) -> Result<Vec<(Range<usize>, Control)>, TokenizerError> {
        check_length(text)?;
        let found = guarded(|| self.added.find(&self.inner, text)).flatten().map_err(TokenizerError::Encode)?;
        let controls = found.into_iter().filter_map(|found| {
            let control = found.control?;
            let covered = text.get(found.range.clone())?;
            let start = found.range.end - covered.trim_start().len();
            let end = start + covered.trim().len();
            Some((if start < end { start..end } else { found.range }, control))
        });
        Ok(controls.collect())
    }

    /// The text of `ids`. Incomplete or invalid bytes become U+FFFD; ids outside the vocabulary have no text.
    ///
    /// `skip_special`: leave out tokens marked special.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        if self.scheme == Scheme::Other {
            return self.decode_ids(ids, skip_special);
        }
        let mut stream = self.stream(skip_special);
        let mut text = String::new();
        for &id in ids {
            text.extend(stream.push(id));
        }
        text.extend(stream.finish());
        text
    }

    /// Decodes piece by piece, as the start of a text: a leading space that the vocabulary's scheme puts there is dropped.
    pub fn stream(&self, skip_special: bool) -> TokenStream<'_> {
        TokenStream::new(self, skip_special, true)
    }

    /// Decodes piece by piece, as the continuation of a text: a leading space is kept.
    pub fn stream_continuing(&self, skip_special: bool) -> TokenStream<'_> {
        TokenStream::new(self, skip_special, false)
    }

    fn decode_ids(&self, ids: &[u32], skip_special: bool) -> String {
        // The only errors are those of decoders that cannot fail for the schemes in use, and panics of broken ones.
        guarded(|| self.inner.decode(ids, skip_special)).ok().and_then(|text| text.ok()).unwrap_or_default()
    }

    /// The text of a token as its decoder wants it, unless it is to be left out.
    fn token_for_decoding(&self, id: u32, skip_special: bool) -> Option<Cow<'_, str>> {
        if let Some(text) = self.repeated.get(&id) {
            return Some(Cow::Borrowed(text));
        }
        let added = self.inner.get_added_vocabulary();
        let text = added.simple_id_to_token(id).or_else(|| self.inner.id_to_token(id))?;
        (!(skip_special && added.is_special_token(&text))).then_some(Cow::Owned(text))
    }

    /// Number of ids: one more than the largest. A model's embedding table may have more rows, which no text produces.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Fails for the first id outside the vocabulary: for ids that come from outside.
    pub fn check_ids(&self, ids: &[u32]) -> Result<(), TokenizerError> {
        match ids.iter().find(|&&id| id as usize >= self.vocab_size) {
            Some(&id) => Err(TokenizerError::IdOutOfRange { id, vocab_size: self.vocab_size }),
            None => Ok(()),
        }
    }

    /// The id of a token, by its text in the vocabulary (`Ġhello`, `▁hello`, `<|im_end|>`).
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The text of a token in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id).or_else(|| self.repeated.get(&id).cloned())
    }

    /// Whether a token is marked special.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.get_added_vocabulary().get_added_tokens_decoder().get(&id).is_some_and(|token| token.special)
    }

    /// The special tokens by role.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    /// The special tokens as chat templates know them: `bos_token` and others with their texts.
    pub fn special_texts(&self) -> &Map<String, Value> {
        &self.special_texts
    }

    /// Ids that [`encode_prompt`](Tokenizer::encode_prompt) puts before a text.
    pub fn prefix(&self) -> &[u32] {
        &self.prefix
    }

    /// Ids that [`encode_prompt`](Tokenizer::encode_prompt) puts after a text.
    pub fn suffix(&self) -> &[u32] {
        &self.suffix
    }

    /// What was odd about the tokenizer, in words for the user; it works all the same.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

const TOKENIZER_JSON: &str = "tokenizer.json";

/// The ids that the post-processor puts before and after a text.
fn surroundings(inner: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>), String> {
    let Some(processor) = inner.get_post_processor() else { return Ok(Default::default()) };
    // Any text will do: what surrounds it is what has the special-token mask set.
    let text = Encoding::from_tokens(vec![Token::new(0, "x".to_owned(), (0, 1))], 0);
    let encoding = processor.process(text, None, true).map_err(|e| e.to_string())?;
    let (ids, mask) = (encoding.get_ids(), encoding.get_special_tokens_mask());
    let Some(text) = mask.iter().position(|&special| special == 0) else { return Ok(Default::default()) };
    Ok((ids[..text].to_vec(), ids[text + 1..].to_vec()))
}
