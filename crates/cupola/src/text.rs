//! A checkpoint's tokenizer and chat templates.

use crate::EngineError;
use cupola_formats::Checkpoint;
use cupola_formats::template::{ChatTemplate, Clock, RenderInput, Rendered, TemplateSources};
use cupola_formats::tokenizer::{Specials, Tokenizer};
use serde_json::{Map, Value};
use std::sync::{Arc, Mutex, PoisonError};

/// Text to tokens and back, and conversations to text.
pub struct Text {
    tokenizer: Tokenizer,
    sources: TemplateSources,
    /// Templates that have been used, by their source.
    compiled: Mutex<Vec<Arc<ChatTemplate>>>,
}

/// A conversation, and how to put it to the model.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// Messages as in OpenAI's API: objects with `role`, `content`, `tool_calls`, ... See [`message`].
    pub messages: Vec<Value>,
    /// Definitions of tools that the model may call.
    pub tools: Option<Vec<Value>>,
    /// Documents, for models that are given some to quote from.
    pub documents: Option<Vec<Value>>,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: Map<String, Value>,
    /// Name of the template, for models with several; absent: the usual one.
    pub template: Option<String>,
    /// What templates that print the date take for now: the library never asks for the time itself.
    pub clock: Clock,
    /// Leaves out the beginning of a reply at the end: then the model continues the last message.
    pub continue_last: bool,
}

impl Chat {
    /// A conversation of these messages.
    pub fn new(messages: Vec<Value>) -> Chat {
        Chat { messages, ..Chat::default() }
    }
}

/// A message of a conversation. `role` is mostly `system`, `user` or `assistant`.
pub fn message(role: &str, content: &str) -> Value {
    serde_json::json!({ "role": role, "content": content })
}

impl Text {
    /// Text handling from parts.
    pub fn new(tokenizer: Tokenizer, sources: TemplateSources) -> Text {
        Text { tokenizer, sources, compiled: Mutex::default() }
    }

    /// What a checkpoint says about text.
    pub fn of(checkpoint: &Checkpoint) -> Result<Text, EngineError> {
        Ok(Text::new(Tokenizer::from_checkpoint(checkpoint)?, TemplateSources::from_checkpoint(checkpoint)?))
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat templates.
    pub fn templates(&self) -> &TemplateSources {
        &self.sources
    }

    /// The tokens of a text to continue. Begin-of-text comes first if the model wants it and the text does not have it;
    /// end-of-text, which some tokenizers append, is left out. Special tokens that the text spells become tokens: for
    /// text that others wrote, use a [`Chat`].
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        let tokens = self.tokenizer.encode(text, Specials::Parse)?;
        let prefix = self.tokenizer.prefix();
        Ok(if tokens.starts_with(prefix) { tokens } else { [prefix, &tokens].concat() })
    }

    /// A conversation as the model's template writes it. Special tokens are those that the template wrote: the ones that
    /// messages spell stay text.
    pub fn render(&self, chat: &Chat) -> Result<Rendered, EngineError> {
        let template = self.template(chat.template.as_deref(), chat.tools.as_ref().is_some_and(|t| !t.is_empty()))?;
        let input = RenderInput {
            messages: &chat.messages,
            tools: chat.tools.as_deref(),
            documents: chat.documents.as_deref(),
            add_generation_prompt: !chat.continue_last,
            variables: Some(&chat.variables),
            clock: chat.clock,
            tokenizer: Some(&self.tokenizer),
        };
        Ok(template.render(&input)?)
    }

    fn template(&self, name: Option<&str>, with_tools: bool) -> Result<Arc<ChatTemplate>, EngineError> {
        if self.sources.is_empty() {
            return Err(EngineError::NoTemplate);
        }
        let source = self.sources.select(name, with_tools)?;
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(template) = compiled.iter().find(|t| t.source() == source) {
            return Ok(template.clone());
        }
        let template = Arc::new(ChatTemplate::new(source, self.tokenizer.special_texts().clone())?);
        compiled.push(template.clone());
        Ok(template)
    }
}
