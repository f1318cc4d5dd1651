//! Tokenizers of Hugging Face model folders: `tokenizer.json`, read by the `tokenizers` crate, and
//! `tokenizer_config.json`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use super::index::StringIndex;
use super::special::Specials;
use super::{Model, Spelling, TokenType, Tokenizer, spm};
use crate::error::{LlmError, Result};
use crate::files::open_regular;
use crate::gguf::Strings;

/// Maximum size of a settings file: many times the largest vocabularies.
const MAX_FILE: u64 = 512 << 20;

/// Maximum token id: far above any vocabulary, small enough for a table.
const MAX_TOKENS: usize = 1 << 24;

/// Maximum factor by which a text may grow before tokenization; published models reach 12.
const MAX_GROWTH: usize = 4096;

/// A tokenizer of the `tokenizers` crate.
pub(super) struct Json {
    path: PathBuf,
    /// The library's setting for control tokens is global, so each call sets it.
    inner: Mutex<tokenizers::Tokenizer>,
}

impl Json {
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.set_encode_special_tokens(!parse_special);
        let ids = || inner.encode_fast(text, add_special).map(|e| e.get_ids().to_vec()).map_err(|e| e.to_string());
        caught(ids).and_then(|ids| ids).map_err(|e| LlmError::Tokenizer {
            path: self.path.clone(),
            reason: format!("cannot tokenize the text ({})", first_line(&e)),
        })
    }
}

impl Json {
    /// The tokens of two texts and the segment of each token.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<(Vec<u32>, Vec<u32>)> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.set_encode_special_tokens(true);
        let both = || {
            let encoded = inner.encode_fast((first, second), true);
            encoded.map(|e| (e.get_ids().to_vec(), e.get_type_ids().to_vec())).map_err(|e| e.to_string())
        };
        caught(both).and_then(|both| both).map_err(|e| LlmError::Tokenizer {
            path: self.path.clone(),
            reason: format!("cannot tokenize the texts ({})", first_line(&e)),
        })
    }
}

/// Reads an optional JSON file.
///
/// # Errors
/// When the file exists but cannot be read or is not a JSON object.
pub(crate) fn read_settings(path: &Path) -> Result<Option<serde_json::Map<String, Value>>> {
    let Some(bytes) = read(path)? else { return Ok(None) };
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(map)) => Ok(Some(map)),
        Ok(_) => Err(LlmError::Tokenizer { path: path.into(), reason: "the file is not a JSON object".into() }),
        Err(e) => Err(LlmError::Tokenizer { path: path.into(), reason: format!("the file is not JSON: {e}") }),
    }
}

/// The bytes of an optional file.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    use std::io::Read;
    let io = |reason| LlmError::Io { path: path.into(), reason };
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(LlmError::Io { reason, .. }) if reason.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_FILE {
        let reason = format!("the file is longer than {} MiB", MAX_FILE >> 20);
        return Err(LlmError::Tokenizer { path: path.into(), reason });
    }
    Ok(Some(bytes))
}

/// A token in the settings: its text, or an object with its `content`.
pub(crate) fn named_token<'v>(settings: &'v serde_json::Map<String, Value>, name: &str) -> Option<&'v str> {
    let value = settings.get(name)?;
    value.as_str().or_else(|| value.get("content")?.as_str())
}

impl Tokenizer {
    /// The tokenizer of a folder: `tokenizer.json`, plus BOS, EOS and whether to add them from an optional
    /// `tokenizer_config.json`.
    ///
    /// # Errors
    /// When there is none, it is damaged, or its decoder is not supported.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<Tokenizer> {
        let folder = folder.as_ref();
        let path = folder.join("tokenizer.json");
        let Some(bytes) = read(&path)? else {
            let mut reason = "the folder has no tokenizer.json".to_string();
            if folder.join("tokenizer.model").is_file() {
                reason += "; tokenizer.model is not supported";
            }
            return Err(LlmError::Tokenizer { path: folder.into(), reason });
        };
        let settings = read_settings(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        Tokenizer::from_json(&path, &bytes, &settings)
    }

    /// The tokenizer described by `tokenizer.json` (its bytes; `path` is for error messages) and the keys of
    /// `tokenizer_config.json`.
    ///
    /// # Errors
    /// As [`Tokenizer::from_folder`].
    pub fn from_json(path: &Path, bytes: &[u8], settings: &serde_json::Map<String, Value>) -> Result<Tokenizer> {
        let fail = |reason: String| LlmError::Tokenizer { path: path.into(), reason };
        let damaged = |e: String| fail(format!("not a valid tokenizer: {}", first_line(&e)));
        let spec: Value = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
        if !spec.is_object() {
            return Err(damaged("the file is not a JSON object".into()));
        }
        let (spelling, strip_space) = decoder(&spec["decoder"]).map_err(fail)?;
        if let Some(which) = bad_merge(&spec["model"]).or_else(|| bad_template(&spec["post_processor"])) {
            return Err(damaged(format!("{CONTRADICTORY} ({which})")));
        }
        let read = || tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| e.to_string());
        let mut inner = caught(read).and_then(|read| read).map_err(damaged)?;
        let normalized = inner.get_normalizer().map_or(1, growth);
        let growth = normalized.saturating_mul(inner.get_pre_tokenizer().map_or(1, growth_of_words));
        if growth > MAX_GROWTH {
            let what = "the normalizer and the pre-tokenizer can make a text";
            return Err(fail(format!("{what} {growth} times as long (supported: {MAX_GROWTH})")));
        }
        inner.with_truncation(None).map_err(|e| damaged(e.to_string()))?;
        inner.with_padding(None);

        let vocabulary = inner.get_vocab(true);
        let count = vocabulary.values().map(|&id| id as usize + 1).max().unwrap_or(0);
        if !(1..=MAX_TOKENS).contains(&count) {
            return Err(fail(format!("the vocabulary has {count} tokens")));
        }
        let mut texts = vec![""; count];
        // Numbers may be left out.
        let mut types = vec![TokenType::Unused; count];
        let falls_back = spelling == Spelling::Spaces && has_decoder(&spec["decoder"], "ByteFallback");
        for (text, &id) in &vocabulary {
            let is_byte = falls_back && spm::token_byte(text.as_bytes()).is_some();
            texts[id as usize] = text;
            types[id as usize] = if is_byte { TokenType::Byte } else { TokenType::Normal };
        }
        let tokens = Strings::from_texts(&texts).map_err(|reason| LlmError::Io { path: path.into(), reason })?;
        for (id, token) in inner.get_added_tokens_decoder() {
            if let Some(ty) = types.get_mut(id as usize) {
                *ty = if token.special { TokenType::Control } else { TokenType::UserDefined };
            }
        }
        let mut notes = Vec::new();
        let moved = |token: &Value| {
            let (content, id) = (token["content"].as_str()?, &token["id"]);
            let is = *vocabulary.get(content)?;
            (*id != is)
                .then(|| format!("the added token {content:?} has id {id} in tokenizer.json, but was assigned {is}"))
        };
        notes.extend(spec["added_tokens"].as_array().and_then(|all| all.iter().find_map(moved)));
        let specials = Specials::new(&tokens, &types);
        let index = StringIndex::new(tokens.clone(), |i| !texts[i].is_empty());
        let id = |name: &str| -> Result<Option<u32>> {
            let Some(text) = named_token(settings, name) else { return Ok(None) };
            let known = vocabulary.get(text).copied();
            known.map(Some).ok_or_else(|| fail(format!("the {name} {text:?} is not in the vocabulary")))
        };
        let (bos, eos) = (id("bos_token")?, id("eos_token")?);
        let natural = |id: Option<u32>, at: fn(&[u32]) -> Option<&u32>| {
            // The tokens that the file's own rules add to any text.
            let begun = caught(|| inner.encode_fast("a", true).ok()).ok().flatten();
            id.is_some() && begun.is_some_and(|e| at(e.get_ids()) == id.as_ref())
        };
        let flag = |name: &str, token: Option<u32>, own: bool| match settings.get(name).and_then(Value::as_bool) {
            Some(true) if token.is_none() => {
                Err(fail(format!("{name} is true, but the settings do not define that token")))
            }
            Some(on) => Ok(on),
            None => Ok(own),
        };
        let add_bos = flag("add_bos_token", bos, natural(bos, |ids| ids.first()))?;
        let add_eos = flag("add_eos_token", eos, natural(eos, |ids| ids.last()))?;
        let json = Json { path: path.into(), inner: Mutex::new(inner) };
        // Rejects a vocabulary that cannot encode every text.
        let text = "a \u{e9}\u{4e2d}\u{1f680}\u{10fffd}\0\n";
        let ids = json.encode(text, true, false)?;
        if json.encode(text, false, false)?.is_empty() {
            return Err(fail("the post_processor drops the text".into()));
        }
        if let Some(id) = ids.into_iter().find(|id| *id as usize >= count) {
            return Err(fail(format!("a text gets token {id}, but the vocabulary has only {count} tokens")));
        }
        let mut tokenizer = Tokenizer {
            tokens,
            types,
            index,
            specials,
            model: Model::Json(Box::new(json)),
            spelling,
            strip_space,
            bos,
            eos,
            eot: None,
            ends: Vec::new(),
            add_bos,
            add_eos,
            notes,
        };
        tokenizer.find_ends(eos, None);
        Ok(tokenizer)
    }
}

const CONTRADICTORY: &str = "its parts contradict each other";

/// Calls the library, which may panic on damaged files that [`bad_merge`] and [`bad_template`] do not detect. The
/// process's panic hook still reports such a panic, by default on stderr.
fn caught<T>(call: impl FnOnce() -> T) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| CONTRADICTORY.into())
}

/// Finds a merge of a BPE model whose result is not a token. The library copies the result into a buffer as long as the
/// longest token before it looks it up.
fn bad_merge(model: &Value) -> Option<String> {
    let (vocab, merges) = (model["vocab"].as_object()?, model["merges"].as_array()?);
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or_default();
    let mut token = String::new();
    merges.iter().find_map(|merge| {
        let (a, b) = match merge {
            Value::String(header) if header.starts_with("#version") => return None,
            Value::String(pair) => pair.split_once(' ')?,
            pair => (pair[0].as_str()?, pair[1].as_str()?),
        };
        let known = b.get(prefix.len()..).is_some_and(|b| {
            token.clear();
            token.extend([a, b]);
            vocab.contains_key(&token)
        });
        (!known).then(|| format!("merging {a:?} and {b:?} does not give a token"))
    })
}

/// Finds a piece in a post-processor's template that the post-processor does not define.
fn bad_template(processor: &Value) -> Option<String> {
    if let Some(all) = processor["processors"].as_array() {
        return all.iter().find_map(bad_template);
    }
    let tokens = processor["special_tokens"].as_object()?;
    processor["single"].as_array()?.iter().find_map(|piece| {
        let (token, sequence) = (piece["SpecialToken"]["id"].as_str(), piece["Sequence"]["id"].as_str());
        let unknown = token.filter(|token| !tokens.contains_key(*token));
        unknown
            .or(sequence.filter(|id| *id != "A"))
            .map(|id| format!("the post_processor uses {id:?}, which it does not define"))
    })
}

/// The maximum growth factor of a text through replacements and insertions.
fn growth(normalizer: &NormalizerWrapper) -> usize {
    match normalizer {
        NormalizerWrapper::Sequence(all) => all.as_ref().iter().map(growth).fold(1, usize::saturating_mul),
        NormalizerWrapper::Replace(replace) => replace.content.len().max(1),
        NormalizerWrapper::Prepend(prepend) => prepend.prepend.len() + 1,
        NormalizerWrapper::ByteLevel(_) => 2,
        _ => 1,
    }
}

/// The growth factor of a pre-tokenizer: most bytes take two in GPT-2's alphabet, a space three in SentencePiece's.
fn growth_of_words(pre_tokenizer: &PreTokenizerWrapper) -> usize {
    match pre_tokenizer {
        PreTokenizerWrapper::Sequence(all) => all.as_ref().iter().map(growth_of_words).fold(1, usize::saturating_mul),
        PreTokenizerWrapper::ByteLevel(_) => 2,
        PreTokenizerWrapper::Metaspace(_) => 4,
        _ => 1,
    }
}

/// Reads the decoder of `tokenizer.json`: how it spells tokens, and whether it strips a leading space.
fn decoder(spec: &Value) -> std::result::Result<(Spelling, bool), String> {
    let metaspace = find_decoder(spec, "Metaspace");
    let strips = find_decoder(spec, "Strip").is_some_and(|s| s["start"].as_u64() > Some(0))
        || metaspace.is_some_and(|m| {
            m["prepend_scheme"].as_str() != Some("never") && m["add_prefix_space"].as_bool() != Some(false)
        });
    if let Some(step) = steps(spec).iter().find(|step| !is_known_step(step)) {
        return Err(format!("a tokenizer with decoder {step} is not supported"));
    }
    if has_decoder(spec, "ByteLevel") {
        Ok((Spelling::Letters, false))
    } else if metaspace.is_some() || has_decoder(spec, "ByteFallback") || has_decoder(spec, "Replace") {
        Ok((Spelling::Spaces, strips))
    } else if has_decoder(spec, "WordPiece") {
        Ok((Spelling::Words, true))
    } else {
        let name = spec["type"].as_str().unwrap_or("none");
        Err(format!(
            "a tokenizer with decoder {name} is not supported; supported: ByteLevel, ByteFallback, Metaspace, WordPiece"
        ))
    }
}

/// Whether [`Spelling`] and the stripped space cover a step of a decoder, or the step is rejected elsewhere.
fn is_known_step(step: &Value) -> bool {
    match step["type"].as_str() {
        Some("Replace") => step["pattern"]["String"] == "\u{2581}" && step["content"] == " ",
        Some("Strip") => {
            step["content"] == " " && step["stop"].as_u64() == Some(0) && step["start"].as_u64() <= Some(1)
        }
        _ => true,
    }
}

fn has_decoder(spec: &Value, name: &str) -> bool {
    find_decoder(spec, name).is_some()
}

/// The decoders of a sequence, or the single one.
fn steps(spec: &Value) -> &[Value] {
    spec["decoders"].as_array().map_or(std::slice::from_ref(spec), Vec::as_slice)
}

/// The step of this type.
fn find_decoder<'v>(spec: &'v Value, name: &str) -> Option<&'v Value> {
    steps(spec).iter().find(|step| step["type"] == name)
}

/// The first line of a message; the library's may have several.
fn first_line(message: &str) -> &str {
    message.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(caught(|| 3), Ok(3));
        assert_eq!(caught(|| -> u8 { panic!("a table of {}\nends", 5) }), Err(CONTRADICTORY.into()));
    }
}
