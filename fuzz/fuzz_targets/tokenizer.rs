//! Any `tokenizer.json`, and the template that follows it after a zero byte: an error, or tokens that can be decoded
//! and a text.
#![no_main]

use std::collections::BTreeMap;
use std::path::Path;

use hologram_llm::tokenizer::Tokenizer;
use hologram_llm::{ChatTemplate, Message};
use libfuzzer_sys::fuzz_target;

const TEXT: &str = "  H\u{e9}llo 123 <s><|im_end|>\n\u{1f600} the end";

fuzz_target!(|bytes: &[u8]| {
    let (json, source) = match bytes.iter().position(|b| *b == 0) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, bytes),
    };
    if let Ok(tokenizer) = Tokenizer::from_json(Path::new("tokenizer.json"), json, &serde_json::Map::new())
        && let Ok(ids) = tokenizer.encode_with(TEXT, true, true)
    {
        tokenizer.decode(&ids, true);
    }
    let Ok(source) = std::str::from_utf8(source) else { return };
    let tokens = BTreeMap::from([("bos_token".to_string(), "<s>".to_string())]);
    if let Ok(template) = ChatTemplate::new(Path::new("chat_template.jinja"), source, tokens) {
        let turns = [Message::new("system", "Be brief."), Message::new("user", TEXT), Message::new("assistant", "")];
        let _ = (template.render(&turns[..2], true), template.render(&turns, false));
    }
});
