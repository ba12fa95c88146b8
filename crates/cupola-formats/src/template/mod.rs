//! Chat templates: a conversation to the text that a model was trained on.
//!
//! Templates run in the environment that transformers gives them (Jinja with `trim_blocks` and `lstrip_blocks`, loop
//! controls, the `generation` tag, `raise_exception`, `strftime_now`, Python's methods and its way of printing), with
//! limits on the work and memory that they may use.

mod arguments;
mod engine;
mod error;
mod json;
mod python;
mod source;
mod spans;
mod strftime;
mod syntax;

use std::ops::Range;
use std::sync::OnceLock;

use serde_json::{Map, Value};

pub use arguments::ToolArguments;
use engine::Engine;
pub use error::TemplateError;
pub use source::TemplateSources;
use spans::{Marker, Marks};
pub use strftime::Clock;

use crate::checkpoint::Checkpoint;
use crate::tokenizer::Tokenizer;

/// One chat template of a model, ready to render. Shared freely between threads.
pub struct ChatTemplate {
    engine: Engine,
    source: String,
    /// `bos_token` and the like.
    special_tokens: Map<String, Value>,
    tool_arguments: OnceLock<ToolArguments>,
}

/// What to render.
#[derive(Clone, Copy, Default)]
pub struct RenderInput<'a> {
    /// The conversation, as in OpenAI's API: objects with `role`, `content`, `tool_calls`, ...
    pub messages: &'a [Value],
    /// Tool definitions.
    pub tools: Option<&'a [Value]>,
    /// Documents, for models that are given some to quote from.
    pub documents: Option<&'a [Value]>,
    /// Whether to end with the start of a reply.
    pub add_generation_prompt: bool,
    /// Further variables, such as `enable_thinking`. They overrule special tokens of the same name.
    pub variables: Option<&'a Map<String, Value>>,
    /// What `strftime_now` shows.
    pub clock: Clock,
    /// The model's tokenizer, to find control tokens that messages spell. Without it [`Rendered::outside`] stays empty and
    /// the text must not be tokenized with control tokens on.
    pub tokenizer: Option<&'a Tokenizer>,
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt.
    pub text: String,
    /// Where messages, tool results or tool definitions spell control tokens: ranges in bytes of `text`, for
    /// [`Tokenizer::encode_parts`].
    pub outside: Vec<Range<usize>>,
}

impl Rendered {
    /// The token ids: control tokens where the template wrote them, plain text where a message did.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>, TemplateError> {
        Ok(tokenizer.encode_parts(&self.text, &self.outside)?)
    }
}

impl ChatTemplate {
    /// Compiles a template. `special_tokens`: `bos_token` and others by name, as the template is to see them.
    pub fn new(source: &str, special_tokens: Map<String, Value>) -> Result<Self, TemplateError> {
        let engine = Engine::new(source)?;
        Ok(Self { engine, source: source.to_owned(), special_tokens, tool_arguments: OnceLock::new() })
    }

    /// The template of a checkpoint, chosen as [`TemplateSources::select`] says; none if it has no template at all.
    pub fn from_checkpoint(
        checkpoint: &Checkpoint,
        tokenizer: &Tokenizer,
        name: Option<&str>,
        with_tools: bool,
    ) -> Result<Option<Self>, TemplateError> {
        let sources = TemplateSources::from_checkpoint(checkpoint)?;
        if sources.is_empty() && name.is_none() {
            return Ok(None);
        }
        Self::new(sources.select(name, with_tools)?, tokenizer.special_texts().clone()).map(Some)
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The form of tool-call arguments that this template renders well.
    pub fn tool_arguments(&self) -> ToolArguments {
        *self.tool_arguments.get_or_init(|| {
            let trial = |form| {
                let messages = arguments::trial(form);
                let input = RenderInput { messages: &messages, ..RenderInput::default() };
                self.render_values(&input, &messages, None, None).ok()
            };
            let (object, text) = (trial(ToolArguments::Object), trial(ToolArguments::Text));
            arguments::choose(object.as_deref(), text.as_deref())
        })
    }

    /// Renders a conversation.
    ///
    /// Arguments of tool calls are brought into the form that the template wants, whether they come as JSON text or as
    /// objects; text that is no JSON object stays as it is.
    pub fn render(&self, input: &RenderInput) -> Result<Rendered, TemplateError> {
        let mut messages = input.messages.to_vec();
        if arguments::present(&messages) {
            arguments::convert(&mut messages, self.tool_arguments());
        }
        let plain = self.render_values(input, &messages, input.tools, input.documents)?;
        let Some(tokenizer) = input.tokenizer else { return Ok(Rendered { text: plain, outside: Vec::new() }) };

        let Some(marks) = Marks::unused_in(&(plain.clone() + &self.source)) else {
            // Every mark is taken: whoever wrote that can have all of it as plain text.
            let whole = 0..plain.len();
            return Ok(Rendered { text: plain, outside: vec![whole] });
        };
        for structure in [true, false] {
            let marker = Marker { tokenizer, marks, structure };
            let marked_messages = marker.messages(&messages)?;
            let marked_tools = input.tools.map(|tools| marker.values(tools)).transpose()?.flatten();
            let marked_documents = input.documents.map(|d| marker.values(d)).transpose()?.flatten();
            if marked_messages.is_none() && marked_tools.is_none() && marked_documents.is_none() {
                break;
            }
            let marked = self.render_values(
                input,
                marked_messages.as_deref().unwrap_or(&messages),
                marked_tools.as_deref().or(input.tools),
                marked_documents.as_deref().or(input.documents),
            )?;
            let (text, outside) = marks.remove(&marked);
            // A template that looks for a tag itself (`</think>`, say) renders otherwise when the tag is marked. Then the
            // tag is the template's business; special tokens proper are never left to it.
            if text == plain || !structure {
                return Ok(Rendered { text, outside });
            }
        }
        Ok(Rendered { text: plain, outside: Vec::new() })
    }

    fn render_values(
        &self,
        input: &RenderInput,
        messages: &[Value],
        tools: Option<&[Value]>,
        documents: Option<&[Value]>,
    ) -> Result<String, TemplateError> {
        let mut variables: Map<String, Value> = self.special_tokens.clone();
        if let Some(more) = input.variables {
            variables.extend(more.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
        let list = |values: Option<&[Value]>| values.map_or(Value::Null, |values| Value::Array(values.to_vec()));
        variables.insert("messages".to_owned(), list(Some(messages)));
        variables.insert("tools".to_owned(), list(tools));
        variables.insert("documents".to_owned(), list(documents));
        variables.insert("add_generation_prompt".to_owned(), Value::Bool(input.add_generation_prompt));
        let size = variables.values().map(size).sum();
        self.engine.render(&variables, input.clock, size)
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("ChatTemplate");
        debug.field("bytes", &self.source.len()).field("special_tokens", &self.special_tokens).finish_non_exhaustive()
    }
}

/// About how many bytes a value has as text.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(size).sum::<usize>() + 2,
        Value::Object(map) => map.iter().map(|(key, value)| key.len() + size(value) + 4).sum::<usize>() + 2,
        _ => 8,
    }
}
