//! Tokenizers: text to token ids and back, from the vocabulary in a GGUF file or a folder's `tokenizer.json`.
//!
//! Of GGUF files byte-level BPE (`bpe.rs`) and SentencePiece BPE (`spm.rs`) are read here: tokens and merges stay in
//! the mapped file; loading only indexes them. The `tokenizers` crate handles `tokenizer.json` (`json.rs`) and the
//! tokenizers of encoders (`encoders.rs`).

mod bpe;
mod decode;
mod encoders;
mod encoders_to_gguf;
mod index;
pub(crate) mod json;
mod marked;
mod merge;
mod pre;
mod special;
mod spm;
pub(crate) mod to_gguf;

pub use bpe::BYTE_TO_CHAR;
pub use decode::TokenDecoder;

use crate::error::{LlmError, Result};
use crate::gguf::{FromValue, GgufFile, Numbers, Strings, Value};
use bpe::Bpe;
use index::StringIndex;
use json::Json;
use pre::PreTokenizer;
use special::{Fragment, Specials};
use spm::Spm;
use std::borrow::Cow;
use std::path::Path;

/// The purpose of a token, with GGUF's numbers 1 to 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// A piece of text.
    Normal,
    /// Stands for text without tokens.
    Unknown,
    /// Marks structure, such as the end of the text.
    Control,
    /// Added by the user; matched in any text before everything else.
    UserDefined,
    /// May occur while merging, but never in the result.
    Unused,
    /// One byte, written like `<0x0A>`.
    Byte,
}

/// Tokens that end a text, under all names that models use, in addition to a file's EOS, EOT and EOM.
const END_TEXTS: [&str; 13] = [
    "</s>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "<eos>",
    "<EOT>",
    "<turn|>",
    "[EOS]",
];

enum Model {
    Bpe(Box<Bpe>),
    Spm(Box<Spm>),
    Json(Box<Json>),
}

/// How the vocabulary spells text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    /// In GPT-2's alphabet of bytes.
    Letters,
    /// Unchanged, except U+2581 for a space.
    Spaces,
    /// As words, and as parts of words that begin with `##`.
    Words,
}

/// The tokenizer of a model.
pub struct Tokenizer {
    tokens: Strings,
    types: Vec<TokenType>,
    /// Normal, user-defined and unused tokens: those that text can produce.
    index: StringIndex,
    specials: Specials,
    model: Model,
    spelling: Spelling,
    /// Whether the first space is not part of the text.
    strip_space: bool,
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    ends: Vec<u32>,
    add_bos: bool,
    add_eos: bool,
    notes: Vec<String>,
}

impl Tokenizer {
    /// The tokenizer that a file describes under `tokenizer.ggml.`.
    ///
    /// # Errors
    /// When there is none, its kind is not supported, or its parts contradict each other.
    pub fn from_gguf(file: &GgufFile) -> Result<Tokenizer> {
        let fail = |reason: String| LlmError::Tokenizer { path: file.path().into(), reason };
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let Some(model) = file.get_opt::<&str>(&key("model"))? else {
            let hint = "bench and logits work without one";
            return Err(fail(format!("the file has no tokenizer (missing key tokenizer.ggml.model); {hint}")));
        };
        if matches!(model, "bert" | "t5") {
            return Tokenizer::from_gguf_encoder(file, model);
        }
        let tokens = file.get::<&Strings>(&key("tokens"))?.clone();
        if tokens.is_empty() || u32::try_from(tokens.len()).is_err() {
            return Err(fail(format!("the vocabulary has {} tokens", tokens.len())));
        }
        let types = token_types(file, tokens.len())?;
        let id = |name: &str, default: Option<u32>| -> Result<Option<u32>> {
            let key = key(name);
            let Some(id) = file.get_opt::<u32>(&key)? else {
                return Ok(default.filter(|&id| (id as usize) < tokens.len()));
            };
            let reason = || format!("is {id}, but must be below {}, the size of the vocabulary", tokens.len());
            if (id as usize) < tokens.len() {
                Ok(Some(id))
            } else {
                Err(LlmError::BadKey { path: file.path().into(), key, reason: reason() })
            }
        };
        let text_like =
            |i| matches!(types.get(i), Some(TokenType::Normal | TokenType::UserDefined | TokenType::Unused));
        let index = StringIndex::new(tokens.clone(), text_like);
        let specials = Specials::new(&tokens, &types);
        let mut notes = Vec::new();

        // The SentencePiece ids default to those of Llama's vocabulary.
        let spm_default = |id| (model == "llama").then_some(id);
        let unknown = id("unknown_token_id", spm_default(0))?;
        let bos = id("bos_token_id", spm_default(1))?;
        let eos = id("eos_token_id", spm_default(2))?;
        let eot = id("eot_token_id", None)?;
        let eom = id("eom_token_id", None)?;

        let (model, add_bos) = match model {
            "gpt2" | "gemma4" => {
                let as_text = model == "gemma4";
                let pre = match file.get_opt::<&str>(&key("pre"))? {
                    _ if as_text => "gemma4",
                    Some(name) => name,
                    None => {
                        // Early conversions of Llama 3 and of models with its vocabulary lack the key.
                        let llama3 = specials.get("<|begin_of_text|>").is_some();
                        let name = if llama3 { "llama-bpe" } else { "gpt-2" };
                        notes.push(format!("the file has no tokenizer.ggml.pre; using the pre-tokenizer {name}"));
                        name
                    }
                };
                let pre = PreTokenizer::new(pre).map_err(fail)?;
                let add_bos = pre.add_bos();
                let merges = file.get::<&Strings>(&key("merges"))?;
                // No token contains a space.
                let is_pair =
                    |merge: &[u8]| matches!(merge.iter().position(|b| *b == b' '), Some(1..)) && !merge.ends_with(b" ");
                if let Some((i, merge)) = merges.iter().enumerate().find(|(_, merge)| !is_pair(merge)) {
                    let text = String::from_utf8_lossy(merge);
                    return Err(fail(format!("merge {i} is {text:?}, but must be two tokens separated by a space")));
                }
                let merges = StringIndex::new(merges.clone(), |_| true);
                let bpe = match as_text {
                    true => Bpe::of_text(pre, merges, byte_tokens(&tokens, &types), unknown),
                    false => Bpe::new(pre, merges, &index, unknown),
                };
                if bpe.lost_bytes() > 0 {
                    notes.push(format!("{} byte values have no token and are lost from texts", bpe.lost_bytes()));
                }
                (Model::Bpe(Box::new(bpe)), add_bos)
            }
            "llama" => {
                let prefix = file.get_opt::<bool>(&key("add_space_prefix"))?.unwrap_or(true);
                let scores = file.get::<Numbers>(&key("scores"))?;
                if scores.len() != tokens.len() {
                    return Err(fail(format!("there are {} scores for {} tokens", scores.len(), tokens.len())));
                }
                let scores = scores.iter().map(|s| f32::from_value(s).unwrap_or(0.0));
                let bytes = byte_tokens(&tokens, &types);
                (Model::Spm(Box::new(Spm::new(prefix, scores, bytes, unknown).map_err(fail)?)), true)
            }
            other => {
                return Err(fail(format!(
                    "the tokenizer model {other} is not supported; supported: gpt2, llama, gemma4, bert, t5"
                )));
            }
        };
        let flag = |name: &str, id: Option<u32>, id_name: &str, default: bool| -> Result<bool> {
            match file.get_opt::<bool>(&key(name))? {
                Some(true) if id.is_none() => {
                    Err(fail(format!("tokenizer.ggml.{name} is true, but there is no tokenizer.ggml.{id_name}")))
                }
                Some(on) => Ok(on),
                None => Ok(default && id.is_some()),
            }
        };
        let add_bos = flag("add_bos_token", bos, "bos_token_id", add_bos)?;
        let add_eos = flag("add_eos_token", eos, "eos_token_id", false)?;

        let (spelling, strip_space) = match &model {
            Model::Spm(spm) => (Spelling::Spaces, spm.add_space_prefix),
            Model::Bpe(bpe) if !bpe.alphabet => (Spelling::Spaces, false),
            _ => (Spelling::Letters, false),
        };
        let ends = Vec::new();
        let mut tokenizer = Tokenizer {
            tokens,
            types,
            index,
            specials,
            model,
            spelling,
            strip_space,
            bos,
            eos,
            eot,
            ends,
            add_bos,
            add_eos,
            notes,
        };
        tokenizer.find_ends(eos, eom);
        Ok(tokenizer)
    }

    /// Compares the vocabulary with the model's embedding, which has `rows` rows. Tokens that were only added to the
    /// tokenizer, such as padding, need no row: a note says that they cannot be used.
    ///
    /// # Errors
    /// When other tokens have no row.
    pub(crate) fn fit(mut self, path: &Path, rows: usize) -> Result<Tokenizer> {
        let (tokens, without) = (self.types.len(), self.types.get(rows..).unwrap_or_default());
        if without.iter().any(|ty| !matches!(ty, TokenType::Control | TokenType::UserDefined)) {
            let reason = format!("the tokenizer has {tokens} tokens, but the model has only {rows}");
            return Err(LlmError::Tokenizer { path: path.into(), reason });
        }
        if let Some(first) = self.token_text(rows as u32).filter(|_| !without.is_empty()) {
            let note = format!(
                "the tokenizer has {tokens} tokens, but the model has only {rows}: tokens from {first} on cannot be used"
            );
            self.notes.push(note);
        }
        Ok(self)
    }

    /// Collects the tokens that end a text: these, and those spelled like one.
    fn find_ends(&mut self, eos: Option<u32>, eom: Option<u32>) {
        let special = |text: &&str| self.specials.get(text);
        let mut ends: Vec<u32> = [eos, self.eot, eom].into_iter().flatten().collect();
        ends.extend(END_TEXTS.iter().filter_map(special));
        ends.sort_unstable();
        ends.dedup();
        self.eot =
            self.eot.or_else(|| ["<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<turn|>"].iter().find_map(special));
        self.ends = ends;
    }

    /// The tokens of a text, with control tokens as plain text. `add_special` adds BOS and EOS if the model expects
    /// them.
    ///
    /// # Errors
    /// When a `tokenizer.json` has no tokens for the text. GGUF vocabularies cover any text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        self.encode_with(text, add_special, false)
    }

    /// As [`Tokenizer::encode`]. With `parse_special`, control tokens that are spelled out in the text are recognised,
    /// as in the output of a chat template, and a text that begins with BOS gets no second one. User-defined tokens are
    /// always recognised.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_with(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let mut out = Vec::new();
        if let Model::Json(json) = &self.model {
            out = json.encode(text, add_special, parse_special)?;
            if add_special {
                self.correct_ends(&mut out, parse_special);
            }
            return Ok(out);
        }
        // Text at the start and after a control token is encoded like a new text.
        let mut fresh = true;
        let mut failed = None;
        self.specials.split(text, parse_special, |fragment| match fragment {
            Fragment::Token(id) => {
                out.push(id);
                fresh = true;
            }
            Fragment::Text(text) => {
                failed = self.encode_plain(text, fresh, &mut out).err().or(failed.take());
                fresh = false;
            }
        });
        if let Some(e) = failed {
            return Err(e);
        }
        if add_special {
            self.add_ends(&mut out);
        }
        Ok(out)
    }

    /// The tokens of two texts for a model that reads them together, with the control tokens around them, and the
    /// segment of each token.
    ///
    /// # Errors
    /// When the tokenizer does not say how to join texts.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<(Vec<u32>, Vec<u32>)> {
        match &self.model {
            Model::Json(json) => json.encode_pair(first, second),
            _ => {
                let (Some(begin), Some(end), true, true) = (self.bos, self.eos, self.add_bos, self.add_eos) else {
                    let reason = "has no tokens around and between two texts".into();
                    return Err(LlmError::Tokenizer { path: "the tokenizer".into(), reason });
                };
                let (mut ids, mut rest) = (self.encode(first, false)?, self.encode(second, false)?);
                ids.insert(0, begin);
                ids.push(end);
                rest.push(end);
                let segments = (0..ids.len() + rest.len()).map(|i| u32::from(i >= ids.len())).collect();
                ids.extend(rest);
                Ok((ids, segments))
            }
        }
    }

    /// Appends the tokens of a text without control tokens. `fresh`: it is at the start or after a control token.
    fn encode_plain(&self, text: &str, fresh: bool, out: &mut Vec<u32>) -> Result<()> {
        match &self.model {
            Model::Bpe(bpe) => bpe.encode(&self.index, text, out),
            Model::Spm(spm) => spm.encode(&self.index, &self.types, text, fresh, out),
            Model::Json(json) => out.extend(json.encode(text, false, false)?),
        }
        Ok(())
    }

    /// Adds BOS, unless the text begins with it, and EOS if the model expects them.
    fn add_ends(&self, ids: &mut Vec<u32>) {
        if self.add_bos && (ids.first().copied() != self.bos || ids.is_empty()) {
            ids.splice(0..0, self.bos);
        }
        if self.add_eos {
            ids.extend(self.eos);
        }
    }

    /// Applies the settings for BOS and EOS, which may differ from the rules in `tokenizer.json`. BOS and EOS in the
    /// text itself are kept.
    fn correct_ends(&self, ids: &mut Vec<u32>, parse_special: bool) {
        if let Some(bos) = self.bos.filter(|_| self.add_bos || !parse_special) {
            let has = ids.iter().take(2).take_while(|id| **id == bos).count();
            ids.splice(..has, std::iter::repeat_n(bos, usize::from(self.add_bos)));
        }
        if let Some(eos) = self.eos.filter(|_| self.add_eos || !parse_special) {
            match (self.add_eos, ids.last() == Some(&eos)) {
                (true, false) => ids.push(eos),
                (false, true) => ids.truncate(ids.len() - 1),
                _ => {}
            }
        }
    }

    /// The text of tokens from its beginning: the leading space that `encode` adds is removed. Control tokens are
    /// omitted, or spelled out with `show_control`. To continue a text, or to print tokens one by one, use
    /// [`TokenDecoder`].
    pub fn decode(&self, ids: &[u32], show_control: bool) -> String {
        let mut decoder = if show_control { TokenDecoder::with_control() } else { TokenDecoder::new() };
        let mut text = String::new();
        for &id in ids {
            text.push_str(decoder.push(self, id));
        }
        text.push_str(decoder.finish());
        if self.strip_space && text.starts_with(' ') {
            text.remove(0);
        }
        text
    }

    /// Appends the bytes of a token; false if the token does not exist.
    fn append_bytes(&self, id: u32, show_control: bool, out: &mut Vec<u8>) -> bool {
        let (Some(text), Some(ty)) = (self.tokens.get(id as usize), self.types.get(id as usize)) else { return false };
        match (ty, self.spelling) {
            // A number without a token, or what a GGUF file has in its place.
            (TokenType::Unused, _) if text.is_empty() || text == to_gguf::padding(id as usize).as_bytes() => {
                return false;
            }
            (TokenType::Control, _) if !show_control => {}
            (TokenType::Control, _) => out.extend_from_slice(text),
            // As SentencePiece prints it: a double question mark between spaces.
            (TokenType::Unknown, _) if !show_control => out.extend_from_slice(" \u{2047} ".as_bytes()),
            (TokenType::Unknown, _) => out.extend_from_slice(text),
            (TokenType::Byte, _) => match spm::token_byte(text) {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(text),
            },
            (TokenType::UserDefined, Spelling::Letters) => out.extend_from_slice(text),
            (_, Spelling::Letters) => bpe::decode(text, out),
            (_, Spelling::Spaces) => spm::decode(text, out),
            (_, Spelling::Words) => match text.strip_prefix(b"##") {
                Some(rest) => out.extend_from_slice(rest),
                None => out.extend(b" ".iter().chain(text)),
            },
        }
        true
    }

    /// The number of tokens in the vocabulary. A model's output may have more rows.
    pub fn vocab_len(&self) -> usize {
        self.tokens.len()
    }

    /// A token as the vocabulary spells it: "Ġthe", "▁the", "<|eot_id|>".
    pub fn token_text(&self, id: u32) -> Option<Cow<'_, str>> {
        self.tokens.get(id as usize).map(String::from_utf8_lossy)
    }

    /// What a token is for.
    pub fn token_type(&self, id: u32) -> Option<TokenType> {
        self.types.get(id as usize).copied()
    }

    /// The token with this spelling.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.specials.get(text).or_else(|| self.index.get(text.as_bytes()))
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The token that ends a turn of a conversation.
    pub fn eot(&self) -> Option<u32> {
        self.eot
    }

    /// The bytes of a token, control tokens as the vocabulary spells them; empty for an unknown id.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_bytes(id, true, &mut bytes);
        bytes
    }

    /// The tokens that end a generation, in ascending order.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Whether generation ends with this token.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// The most bytes of text that a token stands for.
    pub fn longest_token(&self) -> usize {
        self.tokens.iter().map(<[u8]>::len).max().unwrap_or(0)
    }

    /// Whether `encode` with `add_special` adds BOS.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Warnings for the user: what was assumed because the file does not specify it.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let model = match &self.model {
            Model::Bpe(bpe) if !bpe.alphabet => "gemma4",
            Model::Bpe(_) => "gpt2",
            Model::Spm(_) => "llama",
            Model::Json(_) => "tokenizer.json",
        };
        f.debug_struct("Tokenizer").field("model", &model).field("tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}

/// The type of each token; all are normal if the file does not specify it. An unknown number counts as normal text.
fn token_types(file: &GgufFile, count: usize) -> Result<Vec<TokenType>> {
    let key = "tokenizer.ggml.token_type";
    let Some(numbers) = file.get_opt::<Numbers>(key)? else { return Ok(vec![TokenType::Normal; count]) };
    if numbers.len() != count {
        let reason = format!("has {} elements, but there are {count} tokens", numbers.len());
        return Err(LlmError::BadKey { path: file.path().into(), key: key.into(), reason });
    }
    let ty = |v: Value<'_>| match i32::from_value(v) {
        Ok(2) => TokenType::Unknown,
        Ok(3) => TokenType::Control,
        Ok(4) => TokenType::UserDefined,
        Ok(5) => TokenType::Unused,
        Ok(6) => TokenType::Byte,
        _ => TokenType::Normal,
    };
    Ok(numbers.iter().map(ty).collect())
}

/// The tokens of the 256 bytes. Without token types, by their spelling.
fn byte_tokens(tokens: &Strings, types: &[TokenType]) -> [Option<u32>; 256] {
    let typed = types.contains(&TokenType::Byte);
    let mut bytes = [None; 256];
    for ((text, &ty), id) in tokens.iter().zip(types).zip(0u32..) {
        if (ty == TokenType::Byte || !typed)
            && let Some(byte) = spm::token_byte(text)
        {
            bytes[usize::from(byte)].get_or_insert(id);
        }
    }
    bytes
}
