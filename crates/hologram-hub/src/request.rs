//! Names of models: `hf:OWNER/NAME`, `hf:OWNER/NAME:FILE`, `hf:OWNER/NAME:TYPE`.

use std::fmt;
use std::str::FromStr;

use crate::error::HubError;

/// A repository of the hub.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Repo {
    owner: String,
    name: String,
}

impl Repo {
    /// The repository `owner/name`. `None` if either is not a name of the hub.
    pub fn new(owner: &str, name: &str) -> Option<Repo> {
        // Rules of the Hub: letters, digits, `-`, `_`, `.`; no `--` and no `..`; at most 96 characters.
        let part = |part: &str| {
            !part.is_empty()
                && part.len() <= 96
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
                && !part.starts_with(['-', '.'])
                && !part.ends_with(['-', '.'])
                && !part.contains("--")
                && !part.contains("..")
        };
        (part(owner) && part(name)).then(|| Repo { owner: owner.into(), name: name.into() })
    }

    /// The repository's folder in a Hugging Face cache.
    pub fn folder(&self) -> String {
        format!("models--{}--{}", self.owner, self.name)
    }

    /// The repository of a folder in a Hugging Face cache.
    pub fn from_folder(folder: &str) -> Option<Repo> {
        let (owner, name) = folder.strip_prefix("models--")?.split_once("--")?;
        Repo::new(owner, name)
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

/// Which of a repository's files are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The hub's files decide: see [`Choice`](crate::Choice).
    Any,
    /// This file, by its path in the repository.
    File(String),
    /// The GGUF file of this type, such as `Q4_K_M`.
    Type(String),
}

/// A model by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The repository.
    pub repo: Repo,
    /// The file.
    pub wanted: Wanted,
}

impl Request {
    /// Whether a word begins as names of models do: `hf:`, in any case.
    pub fn looks_like(word: &str) -> bool {
        without_prefix(word).is_some()
    }
}

impl FromStr for Request {
    type Err = HubError;

    /// Reads `hf:OWNER/NAME[:FILE or TYPE]`.
    fn from_str(name: &str) -> Result<Request, HubError> {
        let bad = |reason: &str| HubError::BadName { name: name.into(), reason: reason.into() };
        let rest = without_prefix(name).ok_or_else(|| bad("it must begin with hf:"))?;
        if rest.contains("://") {
            return Err(bad("give hf:OWNER/NAME:FILE instead of an address"));
        }
        let (repo, wanted) = rest.split_once(':').map_or((rest, None), |(repo, wanted)| (repo, Some(wanted)));
        let form = "a model has an owner and a name, as hf:Qwen/Qwen3-0.6B-GGUF, and perhaps a type or file after it, as \
                    hf:Qwen/Qwen3-0.6B-GGUF:Q8_0 (it must be hf:OWNER/NAME[:TYPE or FILE])";
        let (owner, model) = repo.split_once('/').ok_or_else(|| bad(form))?;
        let repo = Repo::new(owner, model).ok_or_else(|| bad(form))?;
        let wanted = match wanted {
            None => Wanted::Any,
            Some("") => return Err(bad("the file or type after the second colon is empty")),
            Some(wanted) if is_file(wanted) => Wanted::File(wanted.into()),
            Some(wanted) if wanted.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) => {
                Wanted::Type(wanted.into())
            }
            Some(_) => return Err(bad("a type has letters, digits and _ only, as Q4_K_M; a file ends in .gguf")),
        };
        Ok(Request { repo, wanted })
    }
}

fn without_prefix(word: &str) -> Option<&str> {
    let (prefix, rest) = word.split_at_checked(3)?;
    prefix.eq_ignore_ascii_case("hf:").then_some(rest)
}

fn is_file(wanted: &str) -> bool {
    let lower = wanted.to_ascii_lowercase();
    [".gguf", ".safetensors", ".json"].iter().any(|end| lower.ends_with(end)) || wanted.contains('/')
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.wanted {
            Wanted::Any => write!(f, "hf:{}", self.repo),
            Wanted::File(wanted) | Wanted::Type(wanted) => write!(f, "hf:{}:{wanted}", self.repo),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_printed() {
        for (name, wanted) in [
            ("hf:Qwen/Qwen3-0.6B", Wanted::Any),
            ("hf:a/b:q4_k_m", Wanted::Type("q4_k_m".into())),
            ("hf:a/b:UD-Q4_K_XL", Wanted::Type("UD-Q4_K_XL".into())),
            ("hf:a/b:x.Q8_0.gguf", Wanted::File("x.Q8_0.gguf".into())),
            ("hf:a/b:Q8_0/x-00001-of-00002.GGUF", Wanted::File("Q8_0/x-00001-of-00002.GGUF".into())),
        ] {
            let request: Request = name.parse().unwrap();
            assert_eq!(request.wanted, wanted, "{name}");
            assert_eq!(request.to_string(), name);
            assert_eq!(Repo::from_folder(&request.repo.folder()), Some(request.repo));
        }
        assert_eq!("HF:me/one".parse::<Request>().unwrap().to_string(), "hf:me/one");
        for name in [
            "a/b",
            "hf:",
            "hf:a",
            "hf:a/",
            "hf:/b",
            "hf:a/b/c",
            "hf:../b",
            "hf:a/..",
            "hf:a/b:",
            "hf:a b/c",
            "hf:a/b:Q4 K",
            "hf:a--b/c",
            "hf:a/b\\c",
            "hf:.a/b",
            "hf:https://huggingface.co/a/b",
            "hf:a/b\0",
        ] {
            assert!(name.parse::<Request>().is_err(), "{name}");
        }
    }
}
