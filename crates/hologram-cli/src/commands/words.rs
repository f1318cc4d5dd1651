//! What positional arguments mean: `hologram run model.gguf "Hello"`, `hologram run -m model.gguf "Hello"`,
//! `hologram run "Hello"`.

use std::path::{Path, PathBuf};

use hologram_hub::Request;

use crate::args::usage;
use crate::text::shown;

/// The model and the text among up to two arguments, and an option for the model. A lone argument is the model if it
/// looks like one: a path is never taken for a prompt of the built-in model.
///
/// # Errors
/// A usage error when there are two of either.
pub fn model_and_text(words: &[String], model: Option<&Path>) -> anyhow::Result<(Option<PathBuf>, Option<String>)> {
    let given = model.map(Path::to_path_buf);
    match (given, words) {
        (given, []) => Ok((given, None)),
        (Some(_), [word]) if is_second(word) => {
            usage(format!("-m already names a model: {} is another; one model at a time", shown(word)))
        }
        (Some(_), [first, ..]) if words.len() > 1 && (is_second(first) || Request::looks_like(first)) => {
            usage(format!("the model is given twice, as {} and by -m: leave one of them out", shown(first)))
        }
        (Some(given), [text]) => Ok((Some(given), Some(text.clone()))),
        (None, [word]) if names_model(word) => Ok((Some(word.into()), None)),
        (None, [text]) if begins_with_model(text) => {
            usage(format!("{} names a model and a prompt: end the quotes after the model", shown(text)))
        }
        (None, [text]) => Ok((None, Some(text.clone()))),
        (None, [first, text]) if names_model(first) => Ok((Some(first.into()), Some(text.clone()))),
        (None, [first, _]) if first.is_empty() => usage("the model's name before the prompt is empty"),
        // A prompt in quotes has a model before it.
        (None, [first, text]) if text.contains(char::is_whitespace) && !first.trim().contains(char::is_whitespace) => {
            Ok((Some(first.into()), Some(text.clone())))
        }
        (None, [first, rest @ ..]) if names_model(first) => {
            usage(format!("the prompt is in {} words: put the prompt in quotes, after the model", rest.len()))
        }
        (given, words) => {
            let place = if given.is_some() { "" } else { ", with the model before it" };
            usage(format!("the prompt is in {} words: put the prompt in quotes{place}", words.len()))
        }
    }
}

/// The model and the texts among arguments, and an option for the model. `call` is a right call, for messages.
///
/// # Errors
/// A usage error when there is no model, or two.
pub fn model_and_texts<'a>(
    words: &'a [String],
    model: Option<&Path>,
    call: &str,
) -> anyhow::Result<(PathBuf, &'a [String])> {
    match (model, words) {
        (Some(_), [first, ..]) if is_second(first) && !Path::new(first).is_dir() => {
            usage(format!("the model is given twice, as {} and by -m: leave one of them out", shown(first)))
        }
        (Some(model), texts) => Ok((model.into(), texts)),
        (None, [first, texts @ ..]) if names_model(first) => Ok((first.into(), texts)),
        (None, [first, ..]) => usage(format!("{} names no model: hologram {call}", shown(first))),
        (None, []) => usage(format!("give a model: hologram {call}")),
    }
}

/// Whether a word is a model, or what other tools take for one.
fn names_model(word: &str) -> bool {
    is_model(word) || is_repository(word) || is_name_elsewhere(word)
}

/// Whether quotes are around a model's file and a prompt.
fn begins_with_model(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default();
    first.to_ascii_lowercase().ends_with(".gguf") && Path::new(first).is_file()
}

/// The families whose names alone are models in other tools.
const FAMILIES: &[&str] = &[
    "llama",
    "codellama",
    "tinyllama",
    "mistral",
    "mixtral",
    "ministral",
    "qwen",
    "qwq",
    "gemma",
    "phi",
    "deepseek",
    "gpt-oss",
    "granite",
    "smollm",
    "olmo",
    "falcon",
    "glm",
    "nemotron",
    "bitnet",
    "starcoder",
    "command-r",
];

/// Whether a word is a model's name as Ollama and others write it: `llama3.2:1b`, `ollama:mistral`.
pub fn is_name_elsewhere(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    let word = word.strip_prefix("ollama:").unwrap_or(&word);
    let rest = FAMILIES.iter().filter_map(|family| word.strip_prefix(family)).min_by_key(|rest| rest.len());
    rest.is_some_and(|rest| {
        let begins = rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_digit() || "-:._".contains(c));
        begins && rest.chars().all(|c| c.is_ascii_alphanumeric() || "-:._".contains(c))
    })
}

/// Whether a word names a model rather than being a prompt: something that exists, or the name of a model file.
fn is_model(word: &str) -> bool {
    let path = Path::new(word);
    // Perhaps with a tag, as Ollama writes them.
    let untagged = Path::new(word.split([':', '@']).next().unwrap_or_default());
    let ending =
        untagged.extension().is_some_and(|e| ["gguf", "safetensors"].iter().any(|known| e.eq_ignore_ascii_case(known)));
    let written_as_path =
        ["/", "./", "../", "~/"].iter().any(|start| word.len() > start.len() && word.starts_with(start));
    let named = ending || written_as_path || Request::looks_like(word) || word.contains("://");
    !word.is_empty() && (path.exists() || named && !word.contains(char::is_whitespace))
}

/// Whether a word beside `-m` is another model. The name of a folder may well be a question.
fn is_second(word: &str) -> bool {
    let path = Path::new(word);
    is_model(word) && if path.is_dir() { path.join("config.json").exists() } else { path.exists() }
}

/// Whether a word is a name on Hugging Face without `hf:` before it: `owner/name`, `owner/name:type` and
/// `hf.co/owner/name`.
pub fn is_repository(name: &str) -> bool {
    let name = without_host(name);
    let (name, kind) = name.split_once(':').unwrap_or((name, "any"));
    let part = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            && !part.starts_with('.')
    };
    part(kind) && name.split_once('/').is_some_and(|(owner, name)| part(owner) && part(name))
}

/// A name on Hugging Face without the host before it.
pub fn without_host(name: &str) -> &str {
    ["hf.co/", "huggingface.co/", "HF:"].iter().find_map(|host| name.strip_prefix(host)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_told_from_prompts() {
        let folder = env!("CARGO_MANIFEST_DIR");
        let given = |words: &[&str], model: Option<&str>| {
            let words: Vec<String> = words.iter().map(|w| w.to_string()).collect();
            let (model, text) = model_and_text(&words, model.map(Path::new)).map_err(|e| e.to_string())?;
            Ok::<_, String>((model.map(|m| m.display().to_string()), text))
        };
        let ok = |model: Option<&str>, text: Option<&str>| Ok((model.map(String::from), text.map(String::from)));
        assert_eq!(given(&[], None), ok(None, None));
        assert_eq!(given(&["Hello"], None), ok(None, Some("Hello")));
        assert_eq!(given(&["none.gguf"], None), ok(Some("none.gguf"), None));
        assert_eq!(given(&["None.GGUF", "Hi"], None), ok(Some("None.GGUF"), Some("Hi")));
        assert_eq!(given(&["/no/such"], None), ok(Some("/no/such"), None));
        assert_eq!(given(&["/no such thing"], None), ok(None, Some("/no such thing")));
        assert_eq!(given(&["what is model.gguf"], None), ok(None, Some("what is model.gguf")));
        assert_eq!(given(&[folder], None), ok(Some(folder), None));
        assert_eq!(given(&["hf:org/model"], None), ok(Some("hf:org/model"), None));
        assert_eq!(given(&["https://hf.co/a/b", "Hi"], None), ok(Some("https://hf.co/a/b"), Some("Hi")));
        assert_eq!(given(&["org/model"], None), ok(Some("org/model"), None));
        assert_eq!(given(&["org/model", "Hi"], None), ok(Some("org/model"), Some("Hi")));
        for name in
            ["llama3.2", "Mistral", "ollama:phi", "qwen3:0.6b", "gpt-oss-20b", "hf.co/a/b", "a/b:Q4_K_M", "HF:a/b"]
        {
            assert_eq!(given(&[name], None), ok(Some(name), None), "{name}");
            assert_eq!(given(&[name, "Hi there"], None), ok(Some(name), Some("Hi there")), "{name}");
        }
        for prompt in ["philosophy", "llamas", "Hello", "qwen!", "a:b"] {
            assert_eq!(given(&[prompt], None), ok(None, Some(prompt)), "{prompt}");
        }
        assert_eq!(given(&["my.ggfu", "Hi there"], None), ok(Some("my.ggfu"), Some("Hi there")));
        assert_eq!(given(&["Hi"], Some("m.gguf")), ok(Some("m.gguf"), Some("Hi")));
        assert_eq!(given(&["other.gguf"], Some("m.gguf")), ok(Some("m.gguf"), Some("other.gguf")));
        let error = |words: &[&str], model| given(words, model).unwrap_err();
        assert!(error(&["hello", "world"], None).contains("put the prompt in quotes"));
        assert!(error(&["hello", "world"], Some("m.gguf")).contains("put the prompt in quotes"));
        let model = format!("{folder}/../hologram-llm/tests/fixtures/qwen3");
        assert!(error(&[&model], Some("m.gguf")).contains("one model at a time"));
        assert_eq!(given(&[folder], Some("m.gguf")), ok(Some("m.gguf"), Some(folder)));
        assert!(is_repository("Qwen/Qwen3-0.6B") && !is_repository("a/b/c") && !is_repository("../model"));
    }
}
