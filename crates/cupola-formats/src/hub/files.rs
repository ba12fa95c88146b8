//! Which files of a repository are needed to run its model.

use std::collections::BTreeMap;

use super::{HubError, HubModel};

/// The files to fetch, and what to open then.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// A checkpoint in safetensors: its folder is opened.
    Folder(Vec<String>),
    /// A GGUF model, in parts if it is split: the first is opened.
    Gguf(Vec<String>),
}

impl Choice {
    pub fn files(&self) -> &[String] {
        match self {
            Choice::Folder(files) | Choice::Gguf(files) => files,
        }
    }
}

/// Quantisations in the order in which one is taken when nothing is asked for: small and good ones first.
const PREFERRED: [&str; 12] =
    ["Q4_K_M", "Q4_K_S", "Q4_K", "Q5_K_M", "Q4_0", "IQ4_NL", "IQ4_XS", "Q5_K_S", "Q4_1", "Q8_0", "BF16", "F16"];

/// Chooses from all files of a repository.
pub(super) fn choose(model: &HubModel, all: &[String]) -> Result<Choice, HubError> {
    let models = gguf_models(all);
    if let Some(selector) = &model.selector {
        return select(model, selector, &models);
    }
    let weights: Vec<&String> = all.iter().filter(|file| is_top(file) && file.ends_with(".safetensors")).collect();
    if !weights.is_empty() && all.iter().any(|file| file == "config.json") {
        // Some repositories hold the weights twice, in their author's layout too.
        let twice = weights.iter().any(|file| file.starts_with("model"));
        let wanted = |file: &&String| {
            is_companion(file) || (weights.contains(file) && !(twice && file.starts_with("consolidated")))
        };
        return Ok(Choice::Folder(all.iter().filter(wanted).cloned().collect()));
    }
    if models.is_empty() {
        return Err(HubError::NoModel { model: model.to_string(), files: listed(all.iter()) });
    }
    let preferred = PREFERRED.iter().find_map(|kind| {
        let mut fitting = models.iter().filter(|(name, _)| fits(name, kind));
        fitting.next().filter(|_| fitting.next().is_none())
    });
    match preferred.or_else(|| models.iter().next().filter(|_| models.len() == 1)) {
        Some((_, parts)) => Ok(Choice::Gguf(parts.clone())),
        None => {
            let files = listed(models.values().filter_map(|parts| parts.first()));
            Err(HubError::Ambiguous { model: model.to_string(), selector: String::new(), files })
        }
    }
}

/// The model that the selector names: a file, its name without `.gguf`, or a part of the name between separators.
fn select(model: &HubModel, selector: &str, models: &BTreeMap<String, Vec<String>>) -> Result<Choice, HubError> {
    if let Some(parts) = models.values().find(|parts| parts.iter().any(|file| file == selector)) {
        return Ok(Choice::Gguf(parts.clone()));
    }
    let fitting: Vec<_> = models.iter().filter(|(name, _)| *name == selector || fits(name, selector)).collect();
    let first_parts = |models: &[(&String, &Vec<String>)]| listed(models.iter().filter_map(|(_, parts)| parts.first()));
    let (model, selector) = (model.id(), selector.to_owned());
    match fitting.as_slice() {
        [(_, parts)] => Ok(Choice::Gguf((*parts).clone())),
        [] => {
            let files = first_parts(&models.iter().collect::<Vec<_>>());
            Err(HubError::NoSuchFile { model, selector, files })
        }
        several => Err(HubError::Ambiguous { model, selector, files: first_parts(several) }),
    }
}

/// Whether `kind` stands in `name` with nothing but separators around it, in either case.
fn fits(name: &str, kind: &str) -> bool {
    let (name, kind) = (name.to_ascii_lowercase(), kind.to_ascii_lowercase());
    let apart = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_');
    name.match_indices(&kind)
        .any(|(at, _)| apart(name[..at].chars().next_back()) && apart(name[at + kind.len()..].chars().next()))
}

/// GGUF models by name without `.gguf`, each with its parts in order. Vision projectors are no models.
fn gguf_models(all: &[String]) -> BTreeMap<String, Vec<String>> {
    let mut models: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in all {
        let Some(name) = file.strip_suffix(".gguf") else { continue };
        if file.rsplit('/').next().is_some_and(|file| file.starts_with("mmproj")) {
            continue;
        }
        let name = whole_name(name).unwrap_or(name);
        models.entry(name.to_owned()).or_default().push(file.clone());
    }
    models.values_mut().for_each(|parts| parts.sort());
    models
}

/// `name` of `name-00001-of-00003`.
fn whole_name(name: &str) -> Option<&str> {
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    let (rest, count) = name.rsplit_once("-of-")?;
    let (rest, number) = rest.rsplit_once('-')?;
    (digits(count) && digits(number)).then_some(rest)
}

fn is_top(file: &str) -> bool {
    !file.contains('/')
}

/// Configuration, tokenizer and chat templates.
fn is_companion(file: &str) -> bool {
    if let Some(template) = file.strip_prefix("chat_templates/").or(file.strip_prefix("additional_chat_templates/")) {
        return is_top(template) && template.ends_with(".jinja");
    }
    let named = ["config.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json"];
    let starts = ["tokenizer", "chat_template.", "quantize_config", "quant_config", "hf_quant_config"];
    is_top(file)
        && (named.contains(&file)
            || file.ends_with(".safetensors.index.json")
            || (starts.iter().any(|start| file.starts_with(start))
                && [".json", ".jinja", ".model"].iter().any(|end| file.ends_with(end))))
}

/// The first few of some files, for messages.
fn listed<'a>(files: impl Iterator<Item = &'a String>) -> String {
    const SHOWN: usize = 30;
    let files: Vec<&str> = files.map(String::as_str).collect();
    match files.len() {
        0 => "none".to_owned(),
        count if count > SHOWN => format!("{}, and {} more", files[..SHOWN].join(", "), count - SHOWN),
        _ => files.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(model: &str, files: &[&str]) -> Result<Vec<String>, HubError> {
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        choose(&model.parse()?, &files).map(|choice| choice.files().to_vec())
    }

    #[test]
    fn a_checkpoint_in_safetensors_comes_with_its_companions_only() {
        let all = [
            ".gitattributes",
            "README.md",
            "config.json",
            "generation_config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "consolidated.safetensors",
            "original/consolidated.00.pth",
            "onnx/model.onnx",
            "onnx/config.json",
            "tokenizer.json",
            "tokenizer.model",
            "tokenizer_config.json",
            "chat_template.jinja",
            "chat_templates/tool_use.jinja",
            "pytorch_model.bin",
            "sub/model.safetensors",
            "image.png",
        ];
        let wanted = [
            "config.json",
            "generation_config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer.model",
            "tokenizer_config.json",
            "chat_template.jinja",
            "chat_templates/tool_use.jinja",
        ];
        assert_eq!(chosen("a/b", &all).expect("a choice"), wanted);
        // By itself the author's layout is taken.
        let only = ["config.json", "consolidated.safetensors"];
        assert_eq!(chosen("a/b", &only).expect("a choice"), only);
    }

    const QUANTS: [&str; 7] = [
        "README.md",
        "m-Q2_K.gguf",
        "m-Q4_K_M.gguf",
        "m-Q8_0.gguf",
        "mmproj-f16.gguf",
        "BF16/m-BF16-00002-of-00002.gguf",
        "BF16/m-BF16-00001-of-00002.gguf",
    ];

    #[test]
    fn one_gguf_file_is_chosen_by_preference_or_selector() {
        assert_eq!(chosen("a/b", &QUANTS).expect("a choice"), ["m-Q4_K_M.gguf"]);
        for selector in ["Q8_0", "q8_0", "m-Q8_0", "m-Q8_0.gguf"] {
            assert_eq!(chosen(&format!("a/b:{selector}"), &QUANTS).expect("a choice"), ["m-Q8_0.gguf"]);
        }
        let split = ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"];
        assert_eq!(chosen("a/b:BF16", &QUANTS).expect("a choice"), split);
        assert_eq!(chosen("a/b", &["strange.gguf"]).expect("a choice"), ["strange.gguf"]);
        // Q4_K is not Q4_K_M.
        assert!(chosen("a/b:Q4_K", &QUANTS).is_err());
    }

    #[test]
    fn what_cannot_be_chosen_is_listed() {
        let message = |model: &str, files: &[&str]| chosen(model, files).expect_err("no choice").to_string();
        let missing = message("a/b:Q5_0", &QUANTS);
        assert_eq!(
            missing,
            "a/b has no GGUF file for \"Q5_0\"; it has BF16/m-BF16-00001-of-00002.gguf, m-Q2_K.gguf, m-Q4_K_M.gguf, \
             m-Q8_0.gguf"
        );
        let several = message("a/b", &["x.gguf", "y.gguf"]);
        assert!(several.contains("several GGUF files") && several.contains("x.gguf, y.gguf"), "{several}");
        let none = message("a/b", &["README.md", "pytorch_model.bin"]);
        assert!(none.contains("neither a GGUF file nor config.json") && none.contains("pytorch_model.bin"), "{none}");
    }
}
