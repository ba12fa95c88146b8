//! `tojson` as chat templates expect it: Python's `json.dumps` with non-ASCII text left alone.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

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
pub(super) fn tojson(state: &State, value: &Value, options: Kwargs) -> Result<String, Error> {
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
    layout.text(Some(state), value)
}

/// The text that `tojson` gives without arguments.
pub(super) fn dumps(value: &Value) -> Result<String, Error> {
    let (item_separator, key_separator) = (", ".to_owned(), ": ".to_owned());
    Layout { ensure_ascii: false, indent: None, item_separator, key_separator, sort_keys: false }.text(None, value)
}

fn invalid(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

impl Layout {
    fn text(&self, state: Option<&State>, value: &Value) -> Result<String, Error> {
        let mut text = String::new();
        self.write(&mut text, state, value, 0)?;
        Ok(text)
    }

    fn write(&self, out: &mut String, state: Option<&State>, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid(format!("tojson: the value is nested more than {MAX_DEPTH} deep")));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.write_text(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = items(state, value)?;
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    self.separate(out, index, depth);
                    self.write(out, state, item, depth + 1)?;
                }
                self.close(out, ']', items.len(), depth);
            }
            ValueKind::Map => {
                let mut keys = items(state, value)?;
                if self.sort_keys {
                    keys.sort();
                }
                out.push('{');
                for (index, key) in keys.iter().enumerate() {
                    self.separate(out, index, depth);
                    self.write_key(out, key)?;
                    out.push_str(&self.key_separator);
                    self.write(out, state, &value.get_item(key)?, depth + 1)?;
                }
                self.close(out, '}', keys.len(), depth);
            }
            kind => return Err(invalid(format!("tojson: a value that is {kind} has no JSON form"))),
        }
        Ok(())
    }

    /// What stands before an item.
    fn separate(&self, out: &mut String, index: usize, depth: usize) {
        if index > 0 {
            out.push_str(&self.item_separator);
        }
        self.new_line(out, depth + 1);
    }

    fn close(&self, out: &mut String, mark: char, count: usize, depth: usize) {
        if count > 0 {
            self.new_line(out, depth);
        }
        out.push(mark);
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

/// The items of a list or the keys of a mapping, each paid for: lists that a template joins are lazy, so a short template
/// can describe one that no memory holds.
pub(super) fn items(state: Option<&State>, value: &Value) -> Result<Vec<Value>, Error> {
    let mut items = Vec::new();
    for item in value.try_iter()?.checked() {
        state.map_or(Ok(()), |state| state.consume_fuel(1))?;
        items.push(item?);
    }
    Ok(items)
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

/// A float as Python's `print` writes it, which for very large and very small ones is not as the engine does. None for
/// other values.
pub(super) fn float_text(value: &Value) -> Option<String> {
    if value.kind() != ValueKind::Number || value.is_integer() {
        return None;
    }
    Some(match float(f64::try_from(value.clone()).ok()?).as_str() {
        "NaN" => "nan".to_owned(),
        "Infinity" => "inf".to_owned(),
        "-Infinity" => "-inf".to_owned(),
        other => other.to_owned(),
    })
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
