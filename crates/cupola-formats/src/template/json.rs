//! `tojson` as chat templates expect it: Python's `json.dumps` with non-ASCII text left alone.

use std::borrow::Cow;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Values nested deeper than this are refused: no message is, and the stack is finite.
const MAX_DEPTH: usize = 128;

/// Layout of the text, from the filter's arguments.
struct Layout {
    ensure_ascii: bool,
    /// One step of indentation; none for everything on one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// The filter `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
///
/// Keys keep the order in which they were given, separators are `", "` and `": "` (with `indent`: `","` and `": "`),
/// nothing is escaped but what JSON demands, floats are written as Python writes them (`1.0`, `1e-05`).
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(value) if value.is_none() || value.is_undefined() => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_owned(),
            None => {
                let width = usize::try_from(value)?;
                if width > 64 {
                    return Err(invalid(format!("tojson: an indent of {width} is more than 64")));
                }
                " ".repeat(width)
            }
        }),
    };
    let separators: Option<Vec<String>> = options.get::<Option<Vec<String>>>("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(other) => return Err(invalid(format!("tojson: separators has {} entries, not 2", other.len()))),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let layout = Layout {
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    layout.text(value)
}

/// The text that `tojson` gives without arguments.
pub(super) fn dumps(value: &Value) -> Result<String, Error> {
    let (item_separator, key_separator) = (", ".to_owned(), ": ".to_owned());
    Layout { ensure_ascii: false, indent: None, item_separator, key_separator, sort_keys: false }.text(value)
}

fn invalid(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

impl Layout {
    fn text(&self, value: &Value) -> Result<String, Error> {
        let mut text = String::new();
        self.write(&mut text, value, 0)?;
        Ok(text)
    }

    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid(format!("tojson: the value is nested more than {MAX_DEPTH} deep")));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.write_text(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect::<Vec<_>>();
                self.write_list(out, ('[', ']'), items.len(), depth, |out, index| {
                    self.write(out, &items[index], depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys = value.try_iter()?.collect::<Vec<_>>();
                if self.sort_keys {
                    keys.sort();
                }
                self.write_list(out, ('{', '}'), keys.len(), depth, |out, index| {
                    let key = &keys[index];
                    self.write_key(out, key)?;
                    out.push_str(&self.key_separator);
                    self.write(out, &value.get_item(key)?, depth + 1)
                })?;
            }
            kind => return Err(invalid(format!("tojson: a value that is {kind} has no JSON form"))),
        }
        Ok(())
    }

    fn write_list(
        &self,
        out: &mut String,
        (open, close): (char, char),
        count: usize,
        depth: usize,
        mut item: impl FnMut(&mut String, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for index in 0..count {
            if index > 0 {
                out.push_str(&self.item_separator);
            }
            self.new_line(out, depth + 1);
            item(out, index)?;
        }
        if count > 0 {
            self.new_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn new_line(&self, out: &mut String, depth: usize) {
        if let Some(step) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(step));
        }
    }

    /// Python turns keys that are numbers, truth values or None into text.
    fn write_key(&self, out: &mut String, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.write_text(out, key.as_str().unwrap_or_default()),
            ValueKind::None => out.push_str("\"null\""),
            ValueKind::Bool => out.push_str(if key.is_true() { "\"true\"" } else { "\"false\"" }),
            ValueKind::Number => self.write_text(out, &number(key)),
            kind => return Err(invalid(format!("tojson: a key that is {kind} has no JSON form"))),
        }
        Ok(())
    }

    fn write_text(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' => escape(out, c),
                // Marks around protected text are no part of it, see `spans`.
                c if self.ensure_ascii && c > '~' && !super::spans::is_mark(c) => escape(out, c),
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn escape(out: &mut String, c: char) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        out.push_str(&format!("\\u{unit:04x}"));
    }
}

/// A number as Python's `repr` writes it.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(number) => float(number),
        Err(_) => value.to_string(),
    }
}

/// A value as Python's `print` writes it. The engine does the same, but for very large and very small floats.
pub(super) fn python_text(value: &Value) -> Cow<'_, str> {
    match value.kind() {
        ValueKind::String => Cow::Borrowed(value.as_str().unwrap_or_default()),
        ValueKind::Number => match number(value).as_str() {
            "NaN" => "nan".into(),
            "Infinity" => "inf".into(),
            "-Infinity" => "-inf".into(),
            other => other.to_owned().into(),
        },
        _ => value.to_string().into(),
    }
}

/// A float as Python's `repr`: the shortest digits that read back, in exponent form below 1e-4 and from 1e16.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let exponent: i32 = scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let digits = scientific.split('e').next().unwrap_or_default();
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
    let plain = number.to_string();
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}
