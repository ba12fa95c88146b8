//! Token ids back to text, whole or piece by piece.

use serde_json::Value;

use super::Tokenizer;

/// How a vocabulary's tokens turn into bytes. Found from the decoder that the tokenizer declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// Every character of a token stands for one byte (GPT-2's alphabet).
    ByteLevel,
    /// `▁` (or another mark) stands for a space, `<0xAB>` for a byte; so many leading spaces of the text are dropped.
    SentencePiece { space: String, byte_fallback: bool, strip: usize },
    /// Words and sub-words joined by rules of the declared decoder.
    Other,
}

impl Scheme {
    pub fn of(decoder: Option<&Value>) -> Self {
        let Some(decoder) = decoder else { return Scheme::Other };
        match decoder["type"].as_str() {
            Some("ByteLevel") => Scheme::ByteLevel,
            Some("Sequence") => Self::of_sequence(decoder["decoders"].as_array().map_or(&[], Vec::as_slice)),
            _ => Scheme::Other,
        }
    }

    fn of_sequence(steps: &[Value]) -> Self {
        if let [only] = steps {
            return Self::of(Some(only));
        }
        let (mut space, mut byte_fallback, mut strip) = (None, false, 0);
        for step in steps {
            match step["type"].as_str() {
                Some("Replace") if step["content"] == " " => space = step["pattern"]["String"].as_str(),
                Some("ByteFallback") => byte_fallback = true,
                Some("Fuse") => {}
                Some("Strip") if step["content"] == " " && step["stop"] == 0 => {
                    strip = step["start"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
                }
                _ => return Scheme::Other,
            }
        }
        match space {
            Some(space) if !space.is_empty() => Scheme::SentencePiece { space: space.to_owned(), byte_fallback, strip },
            _ => Scheme::Other,
        }
    }
}

/// Bytes that are their own character in GPT-2's alphabet; the other 68 are U+0100 and up, in order.
const fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// By character code: the byte that a character of GPT-2's alphabet stands for.
const ALPHABET: [Option<u8>; 0x144] = {
    let mut table = [None; 0x144];
    let (mut byte, mut next) = (0, 0x100);
    while byte < 256 {
        if is_printable(byte as u8) {
            table[byte] = Some(byte as u8);
        } else {
            table[next] = Some(byte as u8);
            next += 1;
        }
        byte += 1;
    }
    table
};

/// The byte that a character of GPT-2's alphabet stands for.
pub(super) fn alphabet_byte(c: char) -> Option<u8> {
    ALPHABET.get(usize::try_from(u32::from(c)).ok()?).copied().flatten()
}

/// `<0xAB>` as the byte it names.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// How many ids may wait for a character to become complete, for decoders that work on whole texts: no character takes
/// more, and without a limit a model that repeats U+FFFD would make every step longer.
const WINDOW: usize = 16;

/// Text of a growing sequence of token ids, as it becomes complete.
///
/// The deltas of [`push`](TokenStream::push) and [`finish`](TokenStream::finish), put together, are what
/// [`Tokenizer::decode`] gives for all ids at once. A character whose bytes are spread over several tokens is held back
/// until it is complete; bytes that can never become a character, also those left at the end, come out as U+FFFD.
/// Constant time per token.
pub struct TokenStream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    /// Spaces at the start of the text that are still to be dropped.
    strip: usize,
    /// Bytes of a character that is not complete yet.
    pending: Vec<u8>,
    /// For [`Scheme::Other`]: the last ids, how many of them are already in the text, and the text of those.
    window: Vec<u32>,
    decoded: usize,
    prefix: String,
}

impl<'a> TokenStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, skip_special: bool, at_start: bool) -> Self {
        let strip = match &tokenizer.scheme {
            Scheme::SentencePiece { strip, .. } if at_start => *strip,
            _ => 0,
        };
        let (pending, window) = (Vec::new(), Vec::new());
        Self { tokenizer, skip_special, strip, pending, window, decoded: 0, prefix: String::new() }
    }

    /// Takes the next id; gives the text that became complete, if any. Ids outside the vocabulary have no text.
    pub fn push(&mut self, id: u32) -> Option<String> {
        let text = match &self.tokenizer.scheme {
            Scheme::Other => self.push_window(id),
            _ => {
                self.push_bytes(id);
                self.take_complete()
            }
        };
        (!text.is_empty()).then_some(text)
    }

    /// Ends the text: what was held back, with U+FFFD for characters that never became complete.
    pub fn finish(mut self) -> Option<String> {
        let text = match &self.tokenizer.scheme {
            Scheme::Other => {
                let text = self.tokenizer.decode_ids(&self.window, self.skip_special);
                text.strip_prefix(self.prefix.as_str()).unwrap_or_default().to_owned()
            }
            _ => {
                let rest = String::from_utf8_lossy(&self.pending).into_owned();
                self.strip_start(rest)
            }
        };
        (!text.is_empty()).then_some(text)
    }

    fn push_bytes(&mut self, id: u32) {
        let Some(token) = self.tokenizer.token_for_decoding(id, self.skip_special) else { return };
        match &self.tokenizer.scheme {
            Scheme::ByteLevel => {
                let before = self.pending.len();
                for c in token.chars() {
                    let Some(byte) = alphabet_byte(c) else {
                        // Added tokens are written as they are.
                        self.pending.truncate(before);
                        self.pending.extend_from_slice(token.as_bytes());
                        return;
                    };
                    self.pending.push(byte);
                }
            }
            Scheme::SentencePiece { space, byte_fallback, .. } => match byte_token(&token) {
                Some(byte) if *byte_fallback => self.pending.push(byte),
                _ => self.pending.extend_from_slice(token.replace(space.as_str(), " ").as_bytes()),
            },
            Scheme::Other => {}
        }
    }

    /// Moves everything that is decided out of `pending`.
    fn take_complete(&mut self) -> String {
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    let Some(bad) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = rest.get(bad..).unwrap_or_default();
                }
            }
        }
        let kept = rest.len();
        let taken = self.pending.len() - kept;
        self.pending.drain(..taken);
        self.strip_start(text)
    }

    fn strip_start(&mut self, text: String) -> String {
        if self.strip == 0 || text.is_empty() {
            return text;
        }
        let spaces = text.bytes().take(self.strip).take_while(|&b| b == b' ').count();
        self.strip = if spaces == text.len() { self.strip - spaces } else { 0 };
        text[spaces..].to_owned()
    }

    fn push_window(&mut self, id: u32) -> String {
        self.window.push(id);
        let text = self.tokenizer.decode_ids(&self.window, self.skip_special);
        let waiting = self.window.len() - self.decoded;
        if text.len() <= self.prefix.len() || (text.ends_with(char::REPLACEMENT_CHARACTER) && waiting < WINDOW) {
            return String::new();
        }
        let delta = text.strip_prefix(self.prefix.as_str()).unwrap_or_default().to_owned();
        // Keep the ids of this delta as context for the next: some decoders treat the first token of a text otherwise.
        self.window.drain(..self.decoded);
        self.decoded = self.window.len();
        self.prefix = self.tokenizer.decode_ids(&self.window, self.skip_special);
        delta
    }
}
