//! The metadata of GGUF files for the tokenizer of a folder.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::json::{named_token, read, read_settings};
use super::pre;
use super::{Tokenizer, encoders_to_gguf, spm};
use crate::error::{LlmError, Result};
use crate::gguf::{Strings, ValueType};
use crate::quantize::metadata::{Metadata, Stored};

/// `tokenizer.ggml.token_type`.
pub(super) const NORMAL: i32 = 1;
pub(super) const UNKNOWN: i32 = 2;
pub(super) const CONTROL: i32 = 3;
pub(super) const USER_DEFINED: i32 = 4;
pub(super) const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// The text of a row of the embedding without a token, as llama.cpp's converter writes it.
pub(super) fn padding(row: usize) -> String {
    format!("[PAD{row}]")
}

/// The keys for a folder's tokenizer with the end tokens of its settings, for an embedding of `rows` rows; none where
/// the folder has no `tokenizer.json`.
///
/// # Errors
/// When the files are damaged, or GGUF files have no such tokenizer.
pub(crate) fn of_folder(folder: &Path, ends: &[u32], rows: usize) -> Result<Metadata> {
    let path = folder.join("tokenizer.json");
    let Some(bytes) = read(&path)? else { return Ok(Vec::new()) };
    let tokenizer = Tokenizer::from_folder(folder)?;
    let of_settings = folder.join("tokenizer_config.json");
    let settings = read_settings(&of_settings)?.unwrap_or_default();
    let fail = |reason: String| LlmError::Tokenizer { path: path.clone(), reason };
    let spec: Value = serde_json::from_slice(&bytes).map_err(|e| fail(e.to_string()))?;
    let model = &spec["model"];
    match model["type"].as_str() {
        None | Some("BPE") => {}
        Some("WordPiece" | "Unigram") => {
            let keys = encoders_to_gguf::of(&spec, &settings, rows).map_err(fail)?;
            return Ok(keys.into_iter().map(|(name, value)| (format!("tokenizer.ggml.{name}"), value)).collect());
        }
        Some(kind) => {
            return Err(fail(format!("a tokenizer of the kind {kind} cannot be written to a GGUF file")));
        }
    }

    let vocabulary = model["vocab"].as_object().ok_or_else(|| fail("it has no vocabulary".into()))?;
    let added = spec["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
    let ids = vocabulary.iter().map(|(text, id)| (text.as_str(), id.as_u64(), false, false));
    let of_added = added.iter().map(|t| {
        (t["content"].as_str().unwrap_or_default(), t["id"].as_u64(), true, t["special"].as_bool().unwrap_or(false))
    });
    let byte_level = pre_stages(&spec["pre_tokenizer"]);
    let falls_back = model["byte_fallback"].as_bool().unwrap_or(false);
    let unknown = model["unk_token"].as_str();
    let mut texts: Vec<Option<String>> = vec![None; rows];
    let mut types = vec![UNUSED; rows];
    for (text, id, is_added, special) in ids.chain(of_added) {
        let id =
            id.and_then(|id| usize::try_from(id).ok()).ok_or_else(|| fail(format!("the token {text:?} has no id")))?;
        // Tokens without a row of the embedding cannot be used.
        let Some(slot) = texts.get_mut(id) else { continue };
        *slot = Some(text.into());
        types[id] = match () {
            () if Some(text) == unknown && byte_level.is_none() => UNKNOWN,
            () if special => CONTROL,
            () if is_added => USER_DEFINED,
            () if falls_back && spm::token_byte(text.as_bytes()).is_some() => BYTE,
            () => NORMAL,
        };
    }
    let texts: Vec<String> =
        texts.into_iter().enumerate().map(|(i, text)| text.unwrap_or_else(|| padding(i))).collect();
    let mut merges = Vec::new();
    for merge in model["merges"].as_array().map_or(&[][..], Vec::as_slice) {
        let pair = match merge {
            Value::String(text) => text.split_once(' ').map(|(a, b)| (a.to_string(), b.to_string())),
            Value::Array(parts) => match &parts[..] {
                [Value::String(a), Value::String(b)] => Some((a.clone(), b.clone())),
                _ => None,
            },
            _ => None,
        };
        merges.push(pair.ok_or_else(|| fail(format!("the merge {merge} is not a pair of tokens")))?);
    }

    let mut keys = Metadata::new();
    let mut add = |name: &str, value: Stored| keys.push((format!("tokenizer.ggml.{name}"), value));
    let strings = |texts: &[&str]| -> Result<Stored> {
        let list = Strings::from_texts(texts).map_err(|reason| LlmError::Io { path: path.clone(), reason })?;
        Ok(Stored::Texts(list))
    };
    let list = strings(&texts.iter().map(String::as_str).collect::<Vec<_>>())?;
    let of_types = Stored::List(ValueType::I32, types.iter().flat_map(|ty| ty.to_le_bytes()).collect());
    if let Some(stages) = byte_level {
        let whole = model["ignore_merges"].as_bool().unwrap_or(false);
        let stages = stages.map_err(&fail)?;
        let name = pre::named(&stages, whole)
            .ok_or_else(|| fail(format!("its pre-tokenizer has no name in GGUF files ({})", stages.join(" | "))))?;
        add("model", Stored::Text("gpt2".into()));
        add("pre", Stored::Text(name.into()));
        add("tokens", list);
        add("token_type", of_types);
        let merges: Vec<String> = merges.iter().map(|(a, b)| format!("{a} {b}")).collect();
        add("merges", strings(&merges.iter().map(String::as_str).collect::<Vec<_>>())?);
    } else {
        if !falls_back {
            return Err(fail("a BPE without bytes cannot be written to a GGUF file".into()));
        }
        // SentencePiece merges the pair of the greatest score; that of a token is minus the rank of its first merge.
        let mut ranks: HashMap<String, usize> = HashMap::new();
        for (rank, (a, b)) in merges.iter().enumerate() {
            ranks.entry(format!("{a}{b}")).or_insert(rank + 1);
        }
        let last = merges.len() + 1;
        let score = |text: &String, ty: i32| match ty {
            NORMAL => -(ranks.get(text).copied().unwrap_or(last) as f32),
            _ => 0.0,
        };
        let scores = texts.iter().zip(&types).flat_map(|(text, ty)| score(text, *ty).to_le_bytes()).collect();
        add("model", Stored::Text("llama".into()));
        add("pre", Stored::Text("default".into()));
        add("tokens", list);
        add("scores", Stored::List(ValueType::F32, scores));
        add("token_type", of_types);
        add("add_space_prefix", Stored::Bool(adds_space(&spec)));
    }
    let id = |text: Option<&str>| text.and_then(|text| tokenizer.token_id(text));
    let eos = tokenizer.eos().or_else(|| ends.first().copied());
    for (name, id) in [("bos_token_id", tokenizer.bos()), ("eos_token_id", eos)] {
        id.into_iter().for_each(|id| add(name, Stored::U32(id)));
    }
    for (name, end) in ["eot_token_id", "eom_token_id"].into_iter().zip(ends.iter().filter(|id| Some(**id) != eos)) {
        add(name, Stored::U32(*end));
    }
    for (name, token) in [("unknown_token_id", unknown), ("padding_token_id", named_token(&settings, "pad_token"))] {
        id(token).into_iter().for_each(|id| add(name, Stored::U32(id)));
    }
    add("add_bos_token", Stored::Bool(tokenizer.add_bos));
    add("add_eos_token", Stored::Bool(tokenizer.add_eos));
    if let Some(template) = template(folder, &settings)? {
        keys.push(("tokenizer.chat_template".into(), Stored::Text(template)));
    }
    Ok(keys)
}

/// The patterns of a byte-level pre-tokenizer; `None` where it is not one. The error says which part is not supported.
fn pre_stages(spec: &Value) -> Option<std::result::Result<Vec<String>, String>> {
    let parts = match spec["pretokenizers"].as_array() {
        Some(parts) => parts.iter().collect(),
        None => vec![spec],
    };
    parts.iter().find(|part| part["type"] == "ByteLevel")?;
    let stage = |part: &&Value| match part["type"].as_str().unwrap_or_default() {
        "Split" => part["pattern"]["Regex"].as_str().map(|pattern| Ok(pattern.to_string())),
        "Digits" if part["individual_digits"] == true => Some(Ok(r"\p{N}".into())),
        "ByteLevel" if part["use_regex"].as_bool().unwrap_or(true) => Some(Ok(pre::GPT2_PATTERN.into())),
        "ByteLevel" => None,
        other => Some(Err(format!("its pre-tokenizer {other} cannot be written to a GGUF file"))),
    };
    Some(parts.iter().filter_map(stage).collect())
}

/// Whether a text begins with a space that it does not have.
pub(super) fn adds_space(spec: &Value) -> bool {
    let normalizer = &spec["normalizer"];
    let all = normalizer["normalizers"].as_array().map_or(vec![normalizer], |all| all.iter().collect());
    let pre = &spec["pre_tokenizer"];
    let metaspace = pre["type"] == "Metaspace" && pre["prepend_scheme"].as_str() != Some("never");
    metaspace || all.iter().any(|n| n["type"] == "Prepend")
}

fn template(folder: &Path, settings: &Map<String, Value>) -> Result<Option<String>> {
    let file = folder.join("chat_template.jinja");
    if let Some(bytes) = read(&file)? {
        let text = String::from_utf8(bytes);
        return text.map(Some).map_err(|_| LlmError::Template { path: file, reason: "is not UTF-8".into() });
    }
    let own = &settings.get("chat_template").unwrap_or(&Value::Null);
    let default = || {
        let list = own.as_array()?;
        list.iter().find(|t| t["name"] == "default").or(list.first())?["template"].as_str()
    };
    Ok(own.as_str().or_else(default).map(String::from))
}

/// Texts whose tokens must be the same.
const SAMPLES: [&str; 6] = [
    "Hello world! How's it going?",
    "  two spaces, a\ttab\n\nand lines \r\n end  ",
    "1234567 + 89.5 = x_1 * (y-2);",
    "Grüße, 世界 – naïve façade 🚀",
    "fn main() { println!(\"{}\", a[0]); }",
    "don't DON'T we'll",
];

/// Checks that both tokenizers give the same tokens.
///
/// # Errors
/// When they do not.
pub(crate) fn same(of_folder: &Tokenizer, of_file: &Tokenizer, path: &Path) -> Result<()> {
    for text in SAMPLES {
        let (want, got) = (of_folder.encode(text, true)?, of_file.encode(text, true)?);
        if want != got {
            let reason = format!(
                "its tokenizer cannot be written to a GGUF file: {text:?} would be {got:?} instead of {want:?}"
            );
            return Err(LlmError::Tokenizer { path: path.into(), reason });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_patterns_have_names() {
        for (pattern, whole, name) in [
            (pre::GPT2_PATTERN, false, "gpt-2"),
            (
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                true,
                "llama-bpe",
            ),
            (
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                false,
                "qwen2",
            ),
        ] {
            assert_eq!(pre::named(&[pattern.to_string()], whole), Some(name));
        }
        assert_eq!(pre::named(&[r"\w+".to_string()], false), None);
    }
}
