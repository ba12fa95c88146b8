//! Where chat templates are found.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::TemplateError;
use crate::checkpoint::Checkpoint;
use crate::read::{MAX_TEXT, read_if_there};
use crate::tokenizer::TokenizerConfig;

/// Templates of a model by name, unparsed. The usual one is named `default`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateSources {
    named: Vec<(String, String)>,
}

/// Name of the template used when nothing else is asked for.
const DEFAULT: &str = "default";
/// Name of the template used for conversations with tools, in models that have one.
const TOOL_USE: &str = "tool_use";

impl TemplateSources {
    /// The value of `chat_template` in `tokenizer_config.json`: a string, or a list of objects with `name` and `template`.
    pub fn from_config(value: &Value) -> Result<Self, TemplateError> {
        let form = |found: String| TemplateError::Form { origin: "tokenizer_config.json".to_owned(), found };
        match value {
            Value::Null => Ok(Self::default()),
            Value::String(text) => Ok(Self { named: vec![(DEFAULT.to_owned(), text.clone())] }),
            Value::Array(entries) => {
                let entry = |entry: &Value| match (entry["name"].as_str(), entry["template"].as_str()) {
                    (Some(name), Some(template)) => Ok((name.to_owned(), template.to_owned())),
                    _ => Err(form(format!("a list with the entry {}", shortened(entry)))),
                };
                Ok(Self { named: entries.iter().map(entry).collect::<Result<_, _>>()? })
            }
            other => Err(form(shortened(other))),
        }
    }

    /// GGUF metadata: `tokenizer.chat_template` and the `tokenizer.chat_template.NAME` beside it.
    pub fn from_gguf(default: Option<&str>, named: impl IntoIterator<Item = (String, String)>) -> Self {
        let default = default.map(|text| (DEFAULT.to_owned(), text.to_owned()));
        Self { named: default.into_iter().chain(named).collect() }
    }

    /// The templates of a checkpoint of either kind.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, TemplateError> {
        const KEY: &str = "tokenizer.chat_template";
        if let Some(gguf) = checkpoint.gguf() {
            let metadata = gguf.metadata();
            let named = metadata.iter().filter_map(|(key, value)| {
                let name = key.strip_prefix(KEY)?.strip_prefix('.')?;
                Some((name.to_owned(), value.as_str()?.to_owned()))
            });
            return Ok(Self::from_gguf(metadata.optional_str(KEY)?, named));
        }
        let Some(folder) = checkpoint.folder() else { return Ok(Self::default()) };
        let config = TokenizerConfig::from_dir(folder)?;
        Self::from_dir(folder, config.chat_template())
    }

    /// A folder of a checkpoint: `chat_template.jinja` and `chat_templates/NAME.jinja`, which come before what the
    /// tokenizer's configuration says, and `chat_template.json` of older multimodal models, which comes last.
    ///
    /// `config`: the value of `chat_template` in `tokenizer_config.json`, if any.
    pub fn from_dir(folder: &Path, config: Option<&Value>) -> Result<Self, TemplateError> {
        let mut sources = Self::default();
        if let Some(text) = read(&folder.join("chat_template.jinja"))? {
            sources.add(DEFAULT.to_owned(), text);
        }
        for path in jinja_files(&[folder.join("chat_templates"), folder.join("additional_chat_templates")]) {
            let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if let Some(text) = read(&path)? {
                sources.add(name, text);
            }
        }
        let mut others = config.map(Self::from_config).transpose()?.unwrap_or_default();
        if let Some(text) = read(&folder.join("chat_template.json"))?
            && let Ok(value) = serde_json::from_str::<Value>(&text)
            && let Some(template) = value.get("chat_template")
        {
            others.named.extend(Self::from_config(template)?.named);
        }
        for (name, text) in others.named {
            sources.add(name, text);
        }
        Ok(sources)
    }

    /// The first source of a name counts.
    fn add(&mut self, name: String, text: String) {
        if !self.named.iter().any(|(known, _)| *known == name) {
            self.named.push((name, text));
        }
    }

    /// Whether the model has no template at all.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// Names and texts, in the order found.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// The template for a conversation: `name` if given; else `tool_use` if there are tools and the model has it; else
    /// `default`; else the only one there is.
    pub fn select(&self, name: Option<&str>, with_tools: bool) -> Result<&str, TemplateError> {
        let find = |name: &str| self.iter().find(|(known, _)| *known == name).map(|(_, text)| text);
        let found = match name {
            Some(name) => find(name),
            None => (with_tools.then(|| find(TOOL_USE)).flatten())
                .or_else(|| find(DEFAULT))
                .or_else(|| self.iter().next().filter(|_| self.named.len() == 1).map(|(_, text)| text)),
        };
        found.ok_or_else(|| {
            let names: Vec<_> = self.iter().map(|(name, _)| name).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            TemplateError::Unknown { name: name.unwrap_or(DEFAULT).to_owned(), known }
        })
    }
}

fn read(path: &Path) -> Result<Option<String>, TemplateError> {
    let text = read_if_there(path, MAX_TEXT).and_then(|content| {
        let not_text = |error: std::string::FromUtf8Error| std::io::Error::new(std::io::ErrorKind::InvalidData, error);
        content.map(|bytes| String::from_utf8(bytes).map_err(not_text)).transpose()
    });
    text.map_err(|source| TemplateError::Read { path: path.to_owned(), source })
}

/// The `.jinja` files of some folders, by name; folders that are missing count as empty.
fn jinja_files(folders: &[PathBuf]) -> Vec<PathBuf> {
    let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let mut files: Vec<_> =
        entries.map(|entry| entry.path()).filter(|p| p.extension().is_some_and(|e| e == "jinja")).collect();
    files.sort();
    files
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}
