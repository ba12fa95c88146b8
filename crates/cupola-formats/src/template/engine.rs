//! The template engine, set up as transformers sets up Jinja.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior, escape_formatter};

use serde_json::{Map, Value as Json};

use super::syntax::prepare;
use super::{Clock, TemplateError, json, python};

/// Longest template accepted; the longest in use have about 20 KB.
const MAX_BYTES: usize = 1 << 20;
/// The engine counts lines in 16 bits.
const MAX_LINES: usize = 60_000;
/// Steps that any template may take; one step also pays for 64 bytes of text. A second or so of work. The engine takes no
/// pay for lists that are joined with `+`: a template that doubles a list dozens of times is not stopped.
const BASE_FUEL: u64 = 4_000_000;
/// Steps more for every byte of the conversation.
const FUEL_PER_BYTE: u64 = 4;
/// Depth of macros calling macros. The engine's default of 500 overflows the stack of a small thread.
const MAX_RECURSION: usize = 120;

const NAME: &str = "chat template";

/// One compiled template.
pub(super) struct Engine {
    environment: Environment<'static>,
}

/// An error that `raise_exception` made, to be found again among the engine's own.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl Engine {
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        let lines = source.bytes().filter(|b| matches!(b, b'\n' | b'\r')).count();
        for (size, unit, limit) in [(source.len(), "bytes", MAX_BYTES), (lines, "lines", MAX_LINES)] {
            if size > limit {
                return Err(TemplateError::TooLong { size, unit, limit });
            }
        }
        let mut environment = Environment::new();
        let whitespace = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(whitespace.map_err(syntax_error)?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_recursion_limit(MAX_RECURSION);
        environment.set_unknown_method_callback(python::call_method);
        environment.set_formatter(|out, state, value| match json::float_text(value) {
            Some(text) => Ok(out.write_str(&text)?),
            None => escape_formatter(out, state, value),
        });
        // To Python whatever has a length and items is a sequence; the engine counts lists only.
        environment.add_test("sequence", |value: &Value| {
            use ValueKind::{Map, Seq, String, Undefined};
            matches!(value.kind(), Undefined | String | Seq | Map) || value.len().is_some()
        });
        // To the engine None is an empty list.
        environment.add_test("iterable", |value: &Value| {
            use ValueKind::{Iterable, Map, Seq, String, Undefined};
            matches!(value.kind(), Undefined | String | Seq | Map | Iterable)
        });
        environment.add_filter("tojson", json::tojson);
        environment.add_function("raise_exception", |state: &mut State, message: Value| -> Result<Value, Error> {
            let message = state.format(message)?;
            Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
        });
        environment.add_template_owned(NAME, prepare(source)).map_err(syntax_error)?;
        Ok(Self { environment })
    }

    /// Renders with the given variables. `input_bytes` is about the size of the conversation.
    pub fn render(
        &self,
        variables: &Map<String, Json>,
        clock: Clock,
        input_bytes: usize,
    ) -> Result<String, TemplateError> {
        let mut environment = self.environment.clone();
        let fuel = FUEL_PER_BYTE.saturating_mul(u64::try_from(input_bytes).unwrap_or(u64::MAX));
        environment.set_fuel(Some(BASE_FUEL.saturating_add(fuel)));
        environment.add_function("strftime_now", move |format: &str| clock.format(format));
        let template = environment.get_template(NAME).map_err(syntax_error)?;
        template.render(object(variables)).map_err(render_error)
    }
}

/// A JSON value as the engine's, with the order of keys kept.
pub(super) fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(value).collect::<Vec<_>>()),
        Json::Object(map) => object(map),
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
    }
}

fn object(map: &Map<String, Json>) -> Value {
    Value::from_pairs(map.iter().map(|(key, item)| (key.as_str(), value(item))))
}

fn syntax_error(error: Error) -> TemplateError {
    TemplateError::Syntax { line: error.line().unwrap_or(0), reason: reason(&error) }
}

fn render_error(error: Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    let mut line = error.line().unwrap_or(0);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return TemplateError::Raised { message: message.clone() };
        }
        if let Some(inner) = current.downcast_ref::<Error>() {
            // The innermost line is where it happened; the outer ones are calls of macros.
            line = inner.line().unwrap_or(line);
            if inner.kind() == ErrorKind::OutOfFuel {
                return TemplateError::Endless { line };
            }
        }
        cause = current.source();
    }
    TemplateError::Render { line, reason: reason(&error) }
}

/// What happened, without the place.
fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
