//! Python methods on strings and lists that templates use, beyond those of `minijinja-contrib`.

use minijinja::value::{Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::json::items;

/// Widest text that a padding method makes.
const MAX_WIDTH: usize = 4096;

/// Calls `value.method(args)` as Python would, for methods that the engine does not know.
pub(super) fn call_method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => {
            if let Some(result) = string_method(state, value.as_str().unwrap_or_default(), method, args) {
                return result;
            }
        }
        ValueKind::Seq | ValueKind::Iterable if method == "index" => return list_index(state, value, args),
        ValueKind::Seq | ValueKind::Iterable if method == "count" => return list_count(state, value, args),
        // Templates run in a sandbox in which what they were given cannot be changed.
        ValueKind::Seq if ["append", "extend", "insert", "pop", "remove", "clear"].contains(&method) => {
            return Err(unchangeable("list", method));
        }
        ValueKind::Map if ["update", "pop", "setdefault", "clear", "popitem"].contains(&method) => {
            return Err(unchangeable("dict", method));
        }
        _ => {}
    }
    unknown_method_callback(state, value, method, args)
}

fn unchangeable(kind: &str, method: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a template may not change a {kind}, as {method} would"))
}

fn string_method(state: &State, text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "join" => from_args(args).and_then(|(parts,)| join(state, text, parts)),
        "removeprefix" => from_args(args).map(|(part,): (&str,)| text.strip_prefix(part).unwrap_or(text).into()),
        "removesuffix" => from_args(args).map(|(part,): (&str,)| text.strip_suffix(part).unwrap_or(text).into()),
        "casefold" => from_args(args).map(|()| text.to_lowercase().into()),
        "swapcase" => from_args(args).map(|()| text.chars().flat_map(swap_case).collect::<String>().into()),
        "partition" => {
            from_args(args).and_then(|(separator,)| partition(text, separator, |text, separator| text.find(separator)))
        }
        "rpartition" => from_args(args).and_then(|(separator,)| rpartition(text, separator)),
        "rsplit" => from_args(args).and_then(|(separator, limit)| rsplit(text, separator, limit)),
        "index" => from_args(args).and_then(|(part,)| index(text, text.find::<&str>(part))),
        "rindex" => from_args(args).and_then(|(part,)| index(text, text.rfind::<&str>(part))),
        "zfill" => from_args(args).and_then(|(width,)| zfill(text, width)),
        "ljust" | "rjust" | "center" => from_args(args).and_then(|(width, fill)| justify(text, method, width, fill)),
        _ => return None,
    })
}

fn swap_case(c: char) -> Vec<char> {
    if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
}

fn partition(text: &str, separator: &str, find: impl Fn(&str, &str) -> Option<usize>) -> Result<Value, Error> {
    let parts = match find(text, non_empty(separator)?) {
        Some(at) => (&text[..at], separator, &text[at + separator.len()..]),
        None => (text, "", ""),
    };
    Ok(Value::from(parts))
}

fn rpartition(text: &str, separator: &str) -> Result<Value, Error> {
    if !text.contains(non_empty(separator)?) {
        return Ok(Value::from(("", "", text)));
    }
    partition(text, separator, |text, separator| text.rfind(separator))
}

/// `limit` counts cuts, from the right; none or a negative one means all.
fn rsplit(text: &str, separator: Option<&str>, limit: Option<i64>) -> Result<Value, Error> {
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX - 1);
    let mut parts: Vec<&str> = match separator {
        Some(separator) => text.rsplitn(limit + 1, non_empty(separator)?).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end();
            while !rest.is_empty() {
                let cut = if parts.len() < limit { rest.rfind(char::is_whitespace) } else { None };
                let word = cut.map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
                parts.push(&rest[word..]);
                rest = rest[..word].trim_end();
            }
            parts
        }
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

fn non_empty(separator: &str) -> Result<&str, Error> {
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    Ok(separator)
}

fn index(text: &str, at: Option<usize>) -> Result<Value, Error> {
    let at = at.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "substring not found"))?;
    Ok(Value::from(text[..at].chars().count()))
}

/// As in Python, all parts must be strings.
fn join(state: &State, separator: &str, parts: &Value) -> Result<Value, Error> {
    let mut joined = String::new();
    for (index, part) in items(Some(state), parts)?.iter().enumerate() {
        let part = part.as_str().ok_or_else(|| {
            let reason = format!("join: item {index} is a {}, not a string", part.kind());
            Error::new(ErrorKind::InvalidOperation, reason)
        })?;
        if index > 0 {
            joined.push_str(separator);
        }
        joined.push_str(part);
        // Paid for before it grows further, at the engine's price.
        state.consume_fuel(((separator.len() + part.len()) / 64) as u64)?;
    }
    Ok(Value::from(joined))
}

fn list_count(state: &State, list: &Value, args: &[Value]) -> Result<Value, Error> {
    let (wanted,): (&Value,) = from_args(args)?;
    Ok(Value::from(items(Some(state), list)?.iter().filter(|item| *item == wanted).count()))
}

fn list_index(state: &State, list: &Value, args: &[Value]) -> Result<Value, Error> {
    let (wanted,): (&Value,) = from_args(args)?;
    let at = items(Some(state), list)?.iter().position(|item| item == wanted);
    at.map(Value::from).ok_or_else(|| Error::new(ErrorKind::InvalidOperation, format!("{wanted} is not in list")))
}

fn check_width(width: usize) -> Result<usize, Error> {
    if width > MAX_WIDTH {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("a width of {width} is more than {MAX_WIDTH}")));
    }
    Ok(width)
}

fn zfill(text: &str, width: usize) -> Result<Value, Error> {
    let missing = check_width(width)?.saturating_sub(text.chars().count());
    let sign = text.len() - text.trim_start_matches(['+', '-']).len();
    let (sign, digits) = text.split_at(sign.min(1));
    Ok(Value::from(format!("{sign}{}{digits}", "0".repeat(missing))))
}

fn justify(text: &str, method: &str, width: usize, fill: Option<char>) -> Result<Value, Error> {
    let width = check_width(width)?;
    let missing = width.saturating_sub(text.chars().count());
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        // Python gives the odd character to the left side when the width is odd.
        _ => missing / 2 + (missing & width & 1),
    };
    let fill = |count| fill.unwrap_or(' ').to_string().repeat(count);
    Ok(Value::from(format!("{}{text}{}", fill(left), fill(missing - left))))
}
