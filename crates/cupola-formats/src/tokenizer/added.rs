//! Added tokens: where they occur in a text, and encoding that leaves chosen occurrences plain.
//!
//! The `tokenizers` crate can ignore special tokens for a whole text or for none of it. A rendered chat prompt needs both
//! in one text: the markers that the template wrote are control tokens, the same characters inside a message are only
//! characters. So this module repeats the first stage of encoding (finding added tokens) with a list of protected ranges,
//! and leaves all later stages (normaliser, pre-tokenizer, model) to the crate, on one text, so that merges near the
//! borders of a message come out as they would in the plain text.

use std::ops::Range;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use regex::Regex;
use tokenizers::normalizer::Range as Slice;
use tokenizers::pre_tokenizer::PreTokenizedString;
use tokenizers::{AddedToken, Model, NormalizedString, Normalizer, OffsetType, PreTokenizer, Token};

/// Tags which tokenizers list as ordinary added tokens, yet which structure a conversation as special tokens do: a user
/// who types one could otherwise end a model's thinking or forge a tool's answer.
const STRUCTURE: [&str; 16] = [
    "<think>",
    "</think>",
    "<thinking>",
    "</thinking>",
    "<|begin_of_thought|>",
    "<|end_of_thought|>",
    "[THINK]",
    "[/THINK]",
    "<tool_call>",
    "</tool_call>",
    "<tool_calls>",
    "</tool_calls>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
];

/// What kind of control a piece of text would exert if it became its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// A token marked special: turn markers, end of text, and the like.
    Special,
    /// An ordinary added token that structures a conversation, such as `</think>` or `<tool_response>`.
    Structure,
}

/// The added tokens of one vocabulary, ready for searching.
pub(super) struct AddedTokens {
    raw: Patterns,
    normalized: Patterns,
}

/// One set of patterns: those searched in the text as given, or those searched after normalisation.
struct Patterns {
    search: Option<AhoCorasick>,
    /// By number of the pattern.
    entries: Vec<Entry>,
}

/// One added token.
struct Entry {
    /// What is searched.
    text: String,
    id: u32,
    token: AddedToken,
    control: Option<Control>,
}

/// An added token found in a text; `range` is in bytes of the original text and includes whitespace that the token takes.
pub(super) struct Found {
    pub range: Range<usize>,
    pub control: Option<Control>,
}

impl AddedTokens {
    pub fn of(tokenizer: &tokenizers::Tokenizer) -> Result<Self, String> {
        let (mut raw, mut normalized) = (Vec::new(), Vec::new());
        for (&id, token) in tokenizer.get_added_vocabulary().get_added_tokens_decoder() {
            let control = if token.special {
                Some(Control::Special)
            } else {
                STRUCTURE.contains(&token.content.as_str()).then_some(Control::Structure)
            };
            let token = token.clone();
            if token.normalized {
                let mut text = NormalizedString::from(token.content.as_str());
                if let Some(normalizer) = tokenizer.get_normalizer() {
                    normalizer.normalize(&mut text).map_err(|e| e.to_string())?;
                }
                normalized.push(Entry { text: text.get().to_owned(), id, token, control });
            } else {
                raw.push(Entry { text: token.content.clone(), id, token, control });
            }
        }
        Ok(Self { raw: Patterns::new(raw)?, normalized: Patterns::new(normalized)? })
    }

    /// All added tokens in `text`, in order.
    pub fn find(&self, tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<Vec<Found>, String> {
        let mut found = Vec::new();
        self.extract(tokenizer, text, &Plain::Nothing, &mut |range, control| found.push(Found { range, control }))?;
        found.sort_by_key(|f| f.range.start);
        Ok(found)
    }

    /// Encodes `text`, leaving the control tokens that `plain` covers as plain characters. No token is put before or after.
    pub fn encode(&self, tokenizer: &tokenizers::Tokenizer, text: &str, plain: &Plain) -> Result<Vec<u32>, String> {
        let mut pieces = self.extract(tokenizer, text, plain, &mut |_, _| {})?;
        if let Some(pre) = tokenizer.get_pre_tokenizer() {
            pre.pre_tokenize(&mut pieces).map_err(|e| e.to_string())?;
        }
        let model = tokenizer.get_model();
        pieces.tokenize(|piece| model.tokenize(piece.get())).map_err(|e| e.to_string())?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None).map_err(|e| e.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    fn extract(
        &self,
        tokenizer: &tokenizers::Tokenizer,
        text: &str,
        plain: &Plain,
        report: &mut dyn FnMut(Range<usize>, Option<Control>),
    ) -> Result<PreTokenizedString, String> {
        let mut pieces = PreTokenizedString::from(text);
        pieces.split(|_, piece| self.raw.split(&piece, plain, report)).map_err(|e| e.to_string())?;
        pieces
            .split(|_, mut piece| {
                if let Some(normalizer) = tokenizer.get_normalizer() {
                    normalizer.normalize(&mut piece)?;
                }
                self.normalized.split(&piece, plain, report)
            })
            .map_err(|e| e.to_string())?;
        Ok(pieces)
    }
}

/// Which control tokens are to stay plain characters.
pub(super) enum Plain<'a> {
    /// None: every added token in the text becomes its token.
    Nothing,
    /// All control tokens; other added tokens are still found.
    Everything,
    /// Those that overlap one of these ranges of the original text (sorted, disjoint).
    Within(&'a [Range<usize>]),
}

impl Plain<'_> {
    /// The part of `range` (original bytes) that must stay plain.
    fn covers(&self, range: &Range<usize>) -> Option<Range<usize>> {
        match self {
            Plain::Nothing => None,
            Plain::Everything => Some(range.clone()),
            Plain::Within(ranges) => {
                let first = ranges.partition_point(|r| r.end <= range.start);
                ranges.get(first).filter(|r| r.start < range.end).cloned()
            }
        }
    }
}

static WORD_AT_START: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^\w").ok());
static WORD_AT_END: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\w$").ok());

fn touches_word(pattern: &LazyLock<Option<Regex>>, text: &str) -> bool {
    LazyLock::force(pattern).as_ref().is_some_and(|regex| regex.is_match(text))
}

impl Patterns {
    fn new(mut entries: Vec<Entry>) -> Result<Self, String> {
        // The search prefers the longest match and then the first pattern; a fixed order keeps the choice fixed.
        entries.sort_by_key(|entry| entry.id);
        entries.retain(|entry| !entry.text.is_empty());
        let search = if entries.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(entries.iter().map(|entry| &entry.text));
            Some(built.map_err(|e| e.to_string())?)
        };
        Ok(Self { search, entries })
    }

    /// Cuts `piece` into added tokens and what lies between them.
    fn split(
        &self,
        piece: &NormalizedString,
        plain: &Plain,
        report: &mut dyn FnMut(Range<usize>, Option<Control>),
    ) -> tokenizers::Result<Vec<(NormalizedString, Option<Vec<Token>>)>> {
        let text = piece.get();
        let Some(search) = &self.search else { return Ok(vec![(piece.clone(), None)]) };
        let slice = |range: Range<usize>| {
            piece.slice(Slice::Normalized(range.clone())).ok_or_else(|| {
                format!("the added tokens leave no character boundary at bytes {}..{}", range.start, range.end)
            })
        };
        let original = |range: Range<usize>| -> tokenizers::Result<Range<usize>> {
            let (start, end) = slice(range)?.offsets_original();
            Ok(start..end)
        };

        let mut parts = Vec::new();
        let mut done = 0; // everything before this byte is in `parts`
        let mut from = 0; // where to search next
        while let Some(found) = search.find(Input::new(text).span(from..text.len())) {
            let (mut range, mut index) = (found.range(), found.pattern().as_usize());
            from = range.end;
            if self.entries[index].control.is_some()
                && let Some(kept) = plain.covers(&original(range.clone())?)
            {
                // A shorter token may still end where the protected text begins: template text such as `<a>` directly
                // before a message that starts with `<b>`, in a vocabulary that has `<a><b>` too.
                let outside = (range.start..range.end)
                    .filter(|&at| text.is_char_boundary(at))
                    .take_while(|&at| original(range.start..at).is_ok_and(|r| r.end <= kept.start))
                    .last()
                    .unwrap_or(range.start);
                let shorter = search.find(Input::new(text).span(range.start..outside));
                // Search on behind the protected text, not behind the whole match, whose end may be the template's.
                let inside = (range.start + 1..range.end)
                    .filter(|&at| text.is_char_boundary(at))
                    .find(|&at| original(at..range.end).is_ok_and(|r| r.start >= kept.end));
                match shorter {
                    Some(shorter) => {
                        (range, index) = (shorter.range(), shorter.pattern().as_usize());
                        from = range.end;
                    }
                    None => {
                        from = inside.unwrap_or(range.end);
                        continue;
                    }
                }
            }
            let Entry { id, token, control, .. } = &self.entries[index];
            if token.single_word
                && (touches_word(&WORD_AT_END, &text[..range.start])
                    || touches_word(&WORD_AT_START, &text[range.end..]))
            {
                continue;
            }
            if token.lstrip {
                range.start = text[..range.start].trim_end().len().max(done);
            }
            if token.rstrip {
                range.end = text.len() - text[range.end..].trim_start().len();
            }
            // A token that begins inside whitespace which the one before has taken starts behind it.
            range.start = range.start.max(done);
            if range.start > done {
                parts.push((slice(done..range.start)?, None));
            }
            let covered = slice(range.clone())?;
            report(original(range.clone())?, *control);
            let length = covered.get().len();
            let value = covered.get().to_owned();
            parts.push((covered, Some(vec![Token::new(*id, value, (0, length))])));
            done = range.end;
            from = from.max(done);
        }
        if done < text.len() {
            parts.push((slice(done..text.len())?, None));
        }
        Ok(parts)
    }
}
