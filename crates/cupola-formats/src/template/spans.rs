//! Telling what a conversation said from what the template wrote.
//!
//! Before rendering, every control token that a message spells is put between two characters that occur nowhere else;
//! after rendering these marks are taken out, and what they enclosed is known to come from outside. Marks around the few
//! dangerous characters, rather than around whole messages, leave templates that look at how a message starts or ends
//! undisturbed.

use std::ops::Range;

use serde_json::{Map, Value};

use super::TemplateError;
use crate::tokenizer::{Control, Tokenizer};

/// Noncharacters: Unicode reserves them for uses within a program, so no text should have them.
const MARKS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// Whether `c` may be a mark.
pub(super) fn is_mark(c: char) -> bool {
    MARKS.contains(&c)
}

/// The pair of characters in use for one rendering.
#[derive(Clone, Copy)]
pub(super) struct Marks {
    open: char,
    close: char,
}

impl Marks {
    /// Two marks that the text does not have. None if it has nearly all of them, which only an attack would.
    pub fn unused_in(text: &str) -> Option<Self> {
        let mut free = MARKS.filter(|mark| !text.contains(*mark));
        Some(Self { open: free.next()?, close: free.next()? })
    }

    /// Takes the marks out of `text`; the ranges are those that they enclosed.
    pub fn remove(self, text: &str) -> (String, Vec<Range<usize>>) {
        let mut plain = String::with_capacity(text.len());
        let mut ranges = Vec::new();
        let mut start = None;
        for c in text.chars() {
            if c == self.open {
                start = Some(plain.len());
            } else if c == self.close {
                if let Some(start) = start.take() {
                    ranges.push(start..plain.len());
                }
            } else {
                plain.push(c);
            }
        }
        (plain, ranges)
    }
}

/// Finds and marks control tokens in JSON values.
pub(super) struct Marker<'a> {
    pub tokenizer: &'a Tokenizer,
    pub marks: Marks,
    /// Whether to mark [`Control::Structure`] too.
    pub structure: bool,
}

impl Marker<'_> {
    /// A conversation with its control tokens marked; none if it has none.
    ///
    /// Structure in an assistant's message is left to the template: models write it themselves, and their replies must
    /// come back as the tokens that they were.
    pub fn messages(&self, messages: &[Value]) -> Result<Option<Vec<Value>>, TemplateError> {
        let mut any = false;
        let marked = messages.iter().map(|message| {
            let structure = self.structure && message["role"] != "assistant";
            Walk { marker: self, structure, any: &mut any }.value(message)
        });
        let marked = marked.collect::<Result<_, _>>()?;
        Ok(any.then_some(marked))
    }

    /// Any other values, such as tool definitions.
    pub fn values(&self, values: &[Value]) -> Result<Option<Vec<Value>>, TemplateError> {
        let mut any = false;
        let mut walk = Walk { marker: self, structure: self.structure, any: &mut any };
        let marked = values.iter().map(|value| walk.value(value)).collect::<Result<_, _>>()?;
        Ok(any.then_some(marked))
    }
}

struct Walk<'a> {
    marker: &'a Marker<'a>,
    structure: bool,
    any: &'a mut bool,
}

impl Walk<'_> {
    fn value(&mut self, value: &Value) -> Result<Value, TemplateError> {
        Ok(match value {
            Value::String(text) => Value::String(self.text(text)?),
            Value::Array(items) if items.len() > 1 && items.iter().all(|item| part_text(item).is_some()) => {
                self.parts(items)?
            }
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect::<Result<_, _>>()?,
            Value::Object(map) => {
                let entry = |(key, value): (&String, &Value)| Ok((self.text(key)?, self.value(value)?));
                Value::Object(map.iter().map(entry).collect::<Result<Map<_, _>, TemplateError>>()?)
            }
            other => other.clone(),
        })
    }

    fn text(&mut self, text: &str) -> Result<String, TemplateError> {
        let ranges = self.controls(text)?;
        Ok(self.mark(text, 0, &ranges))
    }

    /// Text parts of one message: a template puts them one after the other, so a token may be spelt across two of them.
    fn parts(&mut self, items: &[Value]) -> Result<Value, TemplateError> {
        let whole: String = items.iter().filter_map(part_text).collect();
        let ranges = self.controls(&whole)?;
        let mut at = 0;
        let mut marked = Vec::with_capacity(items.len());
        for item in items {
            let mut item = item.clone();
            if let Some(Value::String(text)) = item.get_mut("text") {
                let end = at + text.len();
                *text = self.mark(text, at, &ranges);
                at = end;
            }
            marked.push(item);
        }
        Ok(Value::Array(marked))
    }

    fn controls(&self, text: &str) -> Result<Vec<Range<usize>>, TemplateError> {
        let found = self.marker.tokenizer.find_controls(text)?;
        let wanted = found.into_iter().filter(|(_, control)| self.structure || *control == Control::Special);
        Ok(wanted.map(|(range, _)| range).collect())
    }

    /// `text`, which starts at byte `at` of what `ranges` count in, with marks around the ranges.
    fn mark(&mut self, text: &str, at: usize, ranges: &[Range<usize>]) -> String {
        let mut out = String::with_capacity(text.len());
        let mut done = 0;
        for range in ranges {
            let start = range.start.saturating_sub(at).clamp(done, text.len());
            let end = range.end.saturating_sub(at).clamp(start, text.len());
            if start == end {
                continue;
            }
            *self.any = true;
            out.push_str(&text[done..start]);
            out.push(self.marker.marks.open);
            out.push_str(&text[start..end]);
            out.push(self.marker.marks.close);
            done = end;
        }
        out.push_str(&text[done..]);
        out
    }
}

/// The text of a content part such as `{"type": "text", "text": ...}`.
fn part_text(value: &Value) -> Option<&str> {
    value.as_object()?.get("text")?.as_str()
}
