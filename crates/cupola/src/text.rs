//! A checkpoint's tokenizer and chat templates.

use crate::EngineError;
use cupola_formats::gguf::Metadata;
use cupola_formats::template::{ChatTemplate, Clock, RenderInput, Rendered, TemplateError, TemplateSources};
use cupola_formats::tokenizer::{GgufTokenizerParts, Specials, Tokenizer, TokenizerConfig, TokenizerError};
use cupola_formats::{Checkpoint, Config};
use serde_json::{Map, Value};
use std::sync::{Arc, Mutex, PoisonError};

/// Text to tokens and back, and conversations to text.
pub struct Text {
    tokenizer: Tokenizer,
    sources: TemplateSources,
    /// `bos_token` and the like, as templates see them.
    special_tokens: Map<String, Value>,
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
    pub fn new(tokenizer: Tokenizer, sources: TemplateSources, special_tokens: Map<String, Value>) -> Text {
        Text { tokenizer, sources, special_tokens, compiled: Mutex::default() }
    }

    /// What a checkpoint says about text.
    pub fn of(checkpoint: &Checkpoint) -> Result<Text, EngineError> {
        match (checkpoint.config(), checkpoint.folder()) {
            (Some(Config::Gguf(metadata)), _) => Text::of_gguf(metadata),
            (_, Some(folder)) => {
                let config = TokenizerConfig::from_dir(folder)?;
                let tokenizer = Tokenizer::from_dir(folder)?;
                let sources = TemplateSources::from_dir(folder, config.chat_template())?;
                Ok(Text::new(tokenizer, sources, config.special_tokens()))
            }
            _ => {
                let reason = "a safetensors file by itself has no tokenizer; open its folder".into();
                Err(EngineError::NoTokenizer { reason })
            }
        }
    }

    fn of_gguf(metadata: &Metadata) -> Result<Text, EngineError> {
        let parts = gguf_tokenizer(metadata)?;
        let special = |name: &str, id: Option<u32>| {
            let text = parts.tokens.get(id? as usize)?;
            Some((name.to_string(), Value::from(text.as_str())))
        };
        let special_tokens = [
            special("bos_token", parts.bos),
            special("eos_token", parts.eos),
            special("unk_token", parts.unk),
            special("sep_token", parts.sep),
            special("pad_token", parts.pad),
            special("cls_token", parts.cls),
            special("mask_token", parts.mask),
        ];
        let prefix = "tokenizer.chat_template";
        let named = metadata.iter().filter_map(|(key, value)| {
            let name = key.strip_prefix(prefix)?.strip_prefix('.')?;
            Some((name.to_string(), value.as_str()?.to_string()))
        });
        let sources = TemplateSources::from_gguf(metadata.optional_str(prefix).map_err(in_file)?, named);
        Ok(Text::new(Tokenizer::from_gguf(&parts)?, sources, special_tokens.into_iter().flatten().collect()))
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
        let template: Result<_, TemplateError> = ChatTemplate::new(source, self.special_tokens.clone());
        let template = Arc::new(template?);
        compiled.push(template.clone());
        Ok(template)
    }
}

/// The tokenizer part of GGUF metadata.
fn gguf_tokenizer(metadata: &Metadata) -> Result<GgufTokenizerParts, EngineError> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| metadata.optional_u32(&key(&format!("{name}_token_id"))).map_err(in_file);
    let flag = |name: &str| metadata.optional_bool(&key(name)).map_err(in_file);
    let text = |name: &str| metadata.optional_str(&key(name)).map_err(in_file);
    // Some writers store tokens that are not valid UTF-8.
    let texts = |name: &str| -> Result<Vec<String>, EngineError> {
        let found = metadata.optional_byte_strings(&key(name)).map_err(in_file)?.unwrap_or_default();
        Ok(found.into_iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect())
    };
    let charsmap = metadata.get(&key("precompiled_charsmap")).and_then(|v| v.as_array());
    let charsmap = charsmap.map(|a| a.elements().filter_map(|e| u8::try_from(e.as_integer()? & 0xff).ok()).collect());
    Ok(GgufTokenizerParts {
        model: text("model")?.unwrap_or_default().to_string(),
        pre: text("pre")?.map(str::to_string),
        tokens: texts("tokens")?,
        scores: metadata.optional_f32s(&key("scores")).map_err(in_file)?.unwrap_or_default(),
        token_types: metadata.optional_i32s(&key("token_type")).map_err(in_file)?.unwrap_or_default(),
        merges: texts("merges")?,
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        eom: id("eom")?,
        unk: id("unknown")?,
        sep: id("seperator")?,
        pad: id("padding")?,
        cls: id("cls")?,
        mask: id("mask")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        precompiled_charsmap: charsmap.unwrap_or_default(),
    })
}

/// A value of the wrong type in the tokenizer's part of the metadata.
fn in_file(error: cupola_formats::KeyError) -> EngineError {
    EngineError::Tokenizer(TokenizerError::Gguf(error.to_string()))
}
