//! Names of models on the hub.

use std::str::FromStr;

use super::HubError;

/// A model on the hub: `org/name`, with `@revision` and `:selector` if given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// User or organisation.
    pub owner: String,
    /// Name of the repository.
    pub name: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// A GGUF file of the repository, by name or by part of it such as `Q4_K_M`.
    pub selector: Option<String>,
}

impl HubModel {
    /// `org/name`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }
}

impl std::fmt::Display for HubModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)?;
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        self.selector.iter().try_for_each(|selector| write!(f, ":{selector}"))
    }
}

impl FromStr for HubModel {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let error = |reason| HubError::Name { name: text.to_owned(), reason };
        let (rest, selector) = match text.split_once(':') {
            Some((rest, selector)) => (rest, Some(selector)),
            None => (text, None),
        };
        let (id, revision) = rest.split_once('@').unwrap_or((rest, "main"));
        let (owner, name) = id.split_once('/').ok_or_else(|| error("the slash is missing"))?;
        if !is_part(owner) || !is_part(name) {
            return Err(error("both parts are of letters, digits, '-', '_' and '.', and start with a letter or digit"));
        }
        // Revisions and files become part of paths and addresses.
        if !is_path(revision) {
            return Err(error("the revision is empty or has unusual characters"));
        }
        if selector.is_some_and(|selector| !is_path(selector)) {
            return Err(error("the file is empty or has unusual characters"));
        }
        let selector = selector.map(str::to_owned);
        Ok(Self { owner: owner.to_owned(), name: name.to_owned(), revision: revision.to_owned(), selector })
    }
}

/// One part of `org/name`.
fn is_part(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.len() <= 96
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(allowed)
        && !text.contains("..")
}

/// Whether a path of the hub stays below where it is put, on every system.
pub(super) fn is_path(text: &str) -> bool {
    let allowed = |c: char| !c.is_control() && !matches!(c, '\\' | ':' | '?' | '#' | '%' | '*' | '"' | '<' | '>' | '|');
    !text.is_empty()
        && text.len() <= 1024
        && text.chars().all(allowed)
        && text.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let model: HubModel = "Qwen/Qwen3-0.6B".parse().expect("a name");
        assert_eq!((model.owner.as_str(), model.name.as_str()), ("Qwen", "Qwen3-0.6B"));
        assert_eq!((model.revision.as_str(), model.selector.as_deref()), ("main", None));
        let model: HubModel = "a/b-GGUF@refs/pr/3:sub/x.gguf".parse().expect("a name");
        assert_eq!((model.revision.as_str(), model.selector.as_deref()), ("refs/pr/3", Some("sub/x.gguf")));
        assert_eq!(model.to_string(), "a/b-GGUF@refs/pr/3:sub/x.gguf");
        assert_eq!("a/b:Q4_K_M".parse::<HubModel>().expect("a name").to_string(), "a/b:Q4_K_M");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let bad = [
            "",
            "gpt2",
            "a/",
            "/b",
            "a/b/c",
            "../b",
            "a/..",
            "a/b..c",
            "a b/c",
            "a/b@",
            "a/b@../x",
            "a/b@/x",
            "a/b:",
            "a/b:../x.gguf",
            "a/b:/etc/passwd",
            "a/b:c\\d",
            "a/b@x?y",
            "a/b:x#y",
            "a/.b",
            "a/b:x%2e",
        ];
        for name in bad {
            let error = name.parse::<HubModel>().expect_err(name);
            assert!(error.to_string().starts_with(&format!("\"{name}\" is no name on the hub")), "{error}");
        }
    }
}
