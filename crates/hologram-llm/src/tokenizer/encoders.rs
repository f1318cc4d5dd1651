//! WordPiece (BERT) and Unigram (XLM-RoBERTa, T5) from a GGUF file, as the `tokenizer.json` that the model came from.

use serde_json::{Map, Value, json};

use super::{TokenType, Tokenizer, token_types};
use crate::error::{LlmError, Result};
use crate::gguf::{FromValue, GgufFile, Numbers, Strings};

/// SentencePiece's sign for a space; llama.cpp's WordPiece vocabularies begin words with it.
const SPACE: &str = "\u{2581}";

/// A control token: its text and its id.
type Control<'a> = (&'a str, u32);

impl Tokenizer {
    /// The tokenizer of a file whose `tokenizer.ggml.model` is `bert` or `t5`.
    ///
    /// # Errors
    /// When its parts contradict each other.
    pub(super) fn from_gguf_encoder(file: &GgufFile, kind: &str) -> Result<Tokenizer> {
        let fail = |reason: String| LlmError::Tokenizer { path: file.path().into(), reason };
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let tokens = file.get::<&Strings>(&key("tokens"))?;
        let types = token_types(file, tokens.len())?;
        let texts: Vec<&str> = tokens
            .iter()
            .map(|token| std::str::from_utf8(token).map_err(|_| fail("a token is not UTF-8".into())))
            .collect::<Result<_>>()?;
        let control = |names: &[&str], spelled: &[&str]| -> Result<Option<Control<'_>>> {
            for name in names {
                if let Some(id) = file.get_opt::<u32>(&key(name))? {
                    let text = texts.get(id as usize).copied();
                    let text = text.ok_or_else(|| fail(format!("{name} is {id}, which is not a token")))?;
                    return Ok(Some((text, id)));
                }
            }
            let found = texts.iter().position(|text| spelled.contains(text));
            Ok(found.map(|id| (texts[id], id as u32)))
        };
        let begin = control(&["cls_token_id", "bos_token_id"], &["[CLS]", "<s>"])?;
        let end = control(&["seperator_token_id", "eos_token_id"], &["[SEP]", "</s>"])?;
        let unknown = control(&["unknown_token_id"], &["[UNK]", "<unk>"])?;
        let unknown = unknown.ok_or_else(|| fail("the vocabulary has no token for unknown words".into()))?;
        let mut added = Vec::new();
        for ((id, text), ty) in (0u32..).zip(&texts).zip(&types) {
            let bracketed = kind == "bert" && text.starts_with('[') && text.ends_with(']') && text.len() > 2;
            let special = *ty == TokenType::Control || bracketed && *ty != TokenType::Normal;
            if special || *ty == TokenType::UserDefined || id == unknown.1 {
                added.push(json!({
                    "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": *ty != TokenType::UserDefined,
                }));
            }
        }
        let (model, normalizer, words, decoder) = if kind == "bert" {
            let lower: Option<bool> = file.get_opt(&key("normalizer.lowercase"))?;
            word_piece(&texts, &types, unknown, lower.unwrap_or(true)).map_err(fail)?
        } else {
            let scores = file.get::<Numbers>(&key("scores"))?;
            if scores.len() != texts.len() {
                return Err(fail(format!("there are {} scores for {} tokens", scores.len(), texts.len())));
            }
            let scores: Vec<f32> = scores.iter().map(|s| f32::from_value(s).unwrap_or(0.0)).collect();
            let map = file.get_opt::<Numbers>(&key("precompiled_charsmap"))?;
            let map: Vec<u8> = map.iter().flat_map(|map| map.iter()).filter_map(|v| byte(&v)).collect();
            let prefix = file.get_opt::<bool>(&key("add_space_prefix"))?.unwrap_or(true);
            let trims = file.get_opt::<bool>(&key("remove_extra_whitespaces"))?.unwrap_or(false);
            unigram(&texts, &scores, unknown, &map, prefix, trims)
        };
        let spec = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": words, "post_processor": ends(begin, end, kind == "t5"), "decoder": decoder,
            "model": model,
        });
        let bytes = serde_json::to_vec(&spec).map_err(|e| fail(e.to_string()))?;
        Tokenizer::from_json(file.path(), &bytes, &Map::new())
    }
}

/// A byte of a list of numbers.
fn byte(value: &crate::gguf::Value<'_>) -> Option<u8> {
    u8::try_from(i32::from_value(*value).ok()? & 0xff).ok()
}

/// Model, normalizer, pre-tokenizer and decoder.
type Parts = (Value, Value, Value, Value);

fn word_piece(
    texts: &[&str],
    types: &[TokenType],
    unknown: Control<'_>,
    lower: bool,
) -> std::result::Result<Parts, String> {
    let mut vocab = Map::new();
    for ((id, text), ty) in texts.iter().enumerate().zip(types) {
        let spelled = match text.strip_prefix(SPACE) {
            Some(word) => word.to_string(),
            None if *ty != TokenType::Normal || (text.starts_with('[') && text.ends_with(']')) => text.to_string(),
            None => format!("##{text}"),
        };
        if vocab.insert(spelled, id.into()).is_some() {
            return Err(format!("the token {text:?} occurs twice"));
        }
    }
    let model = json!({
        "type": "WordPiece", "unk_token": unknown.0, "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": vocab,
    });
    let normalizer = json!({
        "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
        "lowercase": lower,
    });
    let decoder = json!({ "type": "WordPiece", "prefix": "##", "cleanup": true });
    Ok((model, normalizer, json!({ "type": "BertPreTokenizer" }), decoder))
}

fn unigram(texts: &[&str], scores: &[f32], unknown: Control<'_>, map: &[u8], prefix: bool, trims: bool) -> Parts {
    let vocab: Vec<Value> = texts.iter().zip(scores).map(|(text, score)| json!([text, score])).collect();
    let model = json!({ "type": "Unigram", "unk_id": unknown.1, "vocab": vocab, "byte_fallback": false });
    let normalizer = match map {
        [] => Value::Null,
        map => json!({ "type": "Precompiled", "precompiled_charsmap": base64(map) }),
    };
    let scheme = if prefix { "always" } else { "never" };
    let spaces = json!({ "type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": true });
    let words = match trims {
        true => json!({ "type": "Sequence", "pretokenizers": [{ "type": "WhitespaceSplit" }, spaces] }),
        false => spaces.clone(),
    };
    (model, normalizer, words, spaces)
}

/// The tokens around one text and two. XLM-RoBERTa has two between texts.
fn ends(begin: Option<Control<'_>>, end: Option<Control<'_>>, twice: bool) -> Value {
    let token = |(text, _): Control<'_>, segment: u32| json!({ "SpecialToken": { "id": text, "type_id": segment } });
    let text = |which: &str, segment: u32| json!({ "Sequence": { "id": which, "type_id": segment } });
    let second = if twice { 0 } else { 1 };
    let mut single: Vec<Value> = begin.iter().map(|t| token(*t, 0)).collect();
    single.push(text("A", 0));
    single.extend(end.iter().map(|t| token(*t, 0)));
    let mut pair = single.clone();
    pair.extend(end.iter().filter(|_| twice).map(|t| token(*t, 0)));
    pair.push(text("B", second));
    pair.extend(end.iter().map(|t| token(*t, second)));
    let named = |(text, id): &Control<'_>| (text.to_string(), json!({ "id": text, "ids": [id], "tokens": [text] }));
    let tokens: Map<String, Value> = begin.iter().chain(&end).map(named).collect();
    json!({ "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens })
}

/// Bytes in base64.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for i in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * i)) as usize & 63] as char;
            text.push(if i <= three.len() { digit } else { '=' });
        }
    }
    text
}
