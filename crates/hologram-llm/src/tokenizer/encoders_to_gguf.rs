//! The metadata of GGUF files for the tokenizers of encoders: WordPiece (BERT) and Unigram (XLM-RoBERTa).

use serde_json::{Map, Value};

use super::json::named_token;
use super::to_gguf::{CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, adds_space, padding};
use crate::gguf::{Strings, ValueType};
use crate::quantize::metadata::Stored;

/// SentencePiece's sign for a space; llama.cpp's WordPiece vocabularies begin words with it.
const SPACE: &str = "\u{2581}";

/// A token's text and type.
type Token = (String, i32);

/// The keys after `tokenizer.ggml.` of a WordPiece or Unigram tokenizer, for an embedding of `rows` rows.
///
/// # Errors
/// The reason why GGUF files have no such tokenizer.
pub(super) fn of(
    spec: &Value,
    settings: &Map<String, Value>,
    rows: usize,
) -> Result<Vec<(&'static str, Stored)>, String> {
    let model = &spec["model"];
    let pieces = model["type"] == "WordPiece";
    let mut tokens: Vec<Token> = (0..rows).map(|i| (padding(i), UNUSED)).collect();
    let mut scores = vec![0.0f32; rows];
    let mut place = |id: Option<u64>, text: &str, ty: i32, score: f32| -> Result<(), String> {
        let id = id.and_then(|id| usize::try_from(id).ok()).ok_or_else(|| format!("the token {text:?} has no id"))?;
        // Tokens without a row of the embedding cannot be used.
        if let (Some(token), Some(own)) = (tokens.get_mut(id), scores.get_mut(id)) {
            (*token, *own) = ((text.into(), ty), score);
        }
        Ok(())
    };
    match (&model["vocab"], pieces) {
        (Value::Object(vocab), true) => {
            for (text, id) in vocab {
                let (text, ty) = match text.strip_prefix("##") {
                    Some(rest) if !rest.is_empty() => (rest.to_string(), NORMAL),
                    _ if text.starts_with('[') && text.ends_with(']') => (text.clone(), NORMAL),
                    _ => (format!("{SPACE}{text}"), NORMAL),
                };
                place(id.as_u64(), &text, ty, 0.0)?;
            }
        }
        (Value::Array(vocab), false) => {
            for (id, entry) in (0u64..).zip(vocab) {
                let (text, score) = (entry[0].as_str().unwrap_or_default(), entry[1].as_f64().unwrap_or(0.0));
                place(Some(id), text, NORMAL, score as f32)?;
            }
        }
        _ => return Err("it has no vocabulary".into()),
    }
    for token in spec["added_tokens"].as_array().into_iter().flatten() {
        let ty = if token["special"].as_bool().unwrap_or(false) { CONTROL } else { USER_DEFINED };
        place(token["id"].as_u64(), token["content"].as_str().unwrap_or_default(), ty, 0.0)?;
    }
    let unknown = match pieces {
        true => model["unk_token"].as_str().and_then(|text| tokens.iter().position(|(own, _)| own == text)),
        false => model["unk_id"].as_u64().and_then(|id| usize::try_from(id).ok()),
    };
    if let Some((_, ty)) = unknown.and_then(|id| tokens.get_mut(id)) {
        *ty = UNKNOWN;
    }

    let mut keys = Vec::new();
    keys.push(("model", Stored::Text(if pieces { "bert" } else { "t5" }.into())));
    let texts: Vec<&str> = tokens.iter().map(|(text, _)| text.as_str()).collect();
    keys.push(("tokens", Stored::Texts(Strings::from_texts(&texts).map_err(|e| e.to_string())?)));
    keys.push((
        "token_type",
        Stored::List(ValueType::I32, tokens.iter().flat_map(|(_, ty)| ty.to_le_bytes()).collect()),
    ));
    if pieces {
        let lower = spec["normalizer"]["lowercase"].as_bool().unwrap_or(true);
        keys.push(("normalizer.lowercase", Stored::Bool(lower)));
    } else {
        keys.push(("scores", Stored::List(ValueType::F32, scores.iter().flat_map(|s| s.to_le_bytes()).collect())));
        if let Some(map) = charsmap(&spec["normalizer"]) {
            let bytes = from_base64(map).ok_or("its precompiled_charsmap is not base64")?;
            keys.push(("precompiled_charsmap", Stored::List(ValueType::U8, bytes)));
        }
        let trims = parts(&spec["pre_tokenizer"], "pretokenizers").iter().any(|part| part["type"] == "WhitespaceSplit");
        let space = parts(&spec["pre_tokenizer"], "pretokenizers")
            .into_iter()
            .any(|part| part["type"] == "Metaspace" && part["prepend_scheme"].as_str() != Some("never"));
        keys.push(("add_space_prefix", Stored::Bool(space || adds_space(spec))));
        keys.push(("remove_extra_whitespaces", Stored::Bool(trims)));
    }
    let id = |text: &str| tokens.iter().position(|(own, _)| own == text);
    let ends = ends(&spec["post_processor"]);
    let named = |name: &str| named_token(settings, name).and_then(id);
    let unmatched = |at: usize| ends.get(at).and_then(|text| id(text));
    let (begin, end) = (named("cls_token").or_else(|| unmatched(0)), named("sep_token").or_else(|| unmatched(1)));
    for (name, id) in [
        ("bos_token_id", begin),
        ("cls_token_id", begin),
        ("eos_token_id", end),
        ("seperator_token_id", end),
        ("unknown_token_id", unknown),
        ("padding_token_id", named("pad_token")),
        ("mask_token_id", named("mask_token")),
    ] {
        keys.extend(id.and_then(|id| u32::try_from(id).ok()).map(|id| (name, Stored::U32(id))));
    }
    Ok(keys)
}

/// The parts of a sequence, or the one.
fn parts<'v>(value: &'v Value, key: &str) -> Vec<&'v Value> {
    value[key].as_array().map_or(vec![value], |all| all.iter().collect())
}

fn charsmap(normalizer: &Value) -> Option<&str> {
    parts(normalizer, "normalizers").into_iter().find_map(|part| part["precompiled_charsmap"].as_str())
}

/// The tokens before and after a text.
fn ends(processor: &Value) -> Vec<String> {
    let template = parts(processor, "processors").into_iter().find(|part| part["type"] == "TemplateProcessing");
    let single = template.and_then(|part| part["single"].as_array());
    let tokens = single.into_iter().flatten().filter_map(|part| part["SpecialToken"]["id"].as_str());
    tokens.map(String::from).collect()
}

/// The bytes of a text in base64.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = four.iter().try_fold(0u32, |bits, byte| Some(bits << 6 | u32::from(digit(*byte)?)))?;
        let bits = bits << (6 * (4 - four.len()));
        bytes.extend((0..four.len().checked_sub(1).filter(|n| *n > 0)?).map(|i| (bits >> (16 - 8 * i)) as u8));
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::from_base64;

    #[test]
    fn base64_is_read() {
        for (text, want) in
            [("", Some(&b""[..])), ("TQ==", Some(b"M")), ("TWE=", Some(b"Ma")), ("TWFu/+8=", Some(b"Man\xff\xef"))]
        {
            assert_eq!(from_base64(text).as_deref(), want, "{text}");
        }
        assert_eq!([from_base64("TW?u"), from_base64("TWFuT")], [None, None]);
    }
}
