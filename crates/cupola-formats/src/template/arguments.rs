//! The form in which a template wants the arguments of replayed tool calls.
//!
//! Clients send them as a string that holds JSON. Most templates print them with `tojson` or walk through them and need
//! the object; some join them to other text and need the string. A trial rendering tells which.

use serde_json::{Map, Value, json};

/// What a template wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolArguments {
    /// A mapping.
    Object,
    /// JSON text.
    Text,
}

const KEY: &str = "probe_key";

/// A conversation with one tool call.
pub(super) fn trial(form: ToolArguments) -> Vec<Value> {
    let object = json!({ KEY: "probe_value" });
    let arguments = match form {
        ToolArguments::Object => object,
        ToolArguments::Text => Value::String(object.to_string()),
    };
    let function = json!({ "name": "probe", "arguments": arguments });
    vec![
        json!({ "role": "user", "content": "probe" }),
        json!({
            "role": "assistant", "content": "",
            // Some templates insist on ids of nine letters and digits.
            "tool_calls": [{ "id": "abcdefgh1", "type": "function", "function": function }],
        }),
        json!({ "role": "tool", "tool_call_id": "abcdefgh1", "name": "probe", "content": "probe" }),
    ]
}

/// Chooses by what both trials rendered; `None` stands for a failure.
///
/// The object is right unless printing it failed, printed Python's notation or printed nothing of it, while the string came
/// out as the JSON that it is.
pub(super) fn choose(object: Option<&str>, text: Option<&str>) -> ToolArguments {
    let object_is_good = object.is_some_and(|out| out.contains(KEY) && !out.contains(&format!("'{KEY}':")));
    let text_is_good = text.is_some_and(|out| out.contains(&format!("\"{KEY}\"")));
    if !object_is_good && text_is_good { ToolArguments::Text } else { ToolArguments::Object }
}

/// Brings the arguments of all tool calls into the form wanted. Strings that hold no JSON object stay as they are.
pub(super) fn convert(messages: &mut [Value], form: ToolArguments) {
    for call in messages.iter_mut().flat_map(tool_calls) {
        let arguments = match call.get_mut("function") {
            Some(Value::Object(function)) => function.get_mut("arguments"),
            _ => call.get_mut("arguments"),
        };
        let Some(arguments) = arguments else { continue };
        match (form, &*arguments) {
            (ToolArguments::Object, Value::String(text)) => {
                if let Ok(object @ Value::Object(_)) = serde_json::from_str(text) {
                    *arguments = object;
                }
            }
            (ToolArguments::Text, Value::Object(_)) => {
                // The text that Python's json.dumps gives, as models have seen it.
                if let Ok(text) = super::json::dumps(&super::engine::value(arguments)) {
                    *arguments = Value::String(text);
                }
            }
            _ => {}
        }
    }
}

/// Whether any message replays a tool call.
pub(super) fn present(messages: &[Value]) -> bool {
    messages.iter().any(|message| message.get("tool_calls").and_then(Value::as_array).is_some_and(|c| !c.is_empty()))
}

fn tool_calls(message: &mut Value) -> impl Iterator<Item = &mut Map<String, Value>> {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    calls.into_iter().flatten().filter_map(Value::as_object_mut)
}
