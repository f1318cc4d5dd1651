//! Reads arguments in Gemma's notation, `{key:<|"|>text<|"|>,other:[1,true]}`, and writes them as JSON.

use serde_json::Value;

use super::scan::Found;
use super::{held, json_text};

/// Arguments that are being read.
#[derive(Clone, Debug)]
pub struct Braces {
    name: Option<String>,
    quote: &'static str,
    depth: usize,
    /// Within a quoted text.
    text: bool,
    done: bool,
    /// Text that was not yet understood.
    pending: String,
}

impl Braces {
    /// Arguments of this function; `quote` surrounds texts.
    pub fn new(name: &str, quote: &'static str) -> Braces {
        Braces { name: Some(name.into()), quote, depth: 0, text: false, done: false, pending: String::new() }
    }

    /// What the next piece adds.
    pub fn push(&mut self, piece: &str) -> Vec<Found> {
        self.pending += piece;
        let mut json = String::new();
        while !self.done && self.step(&mut json) {}
        let name = self.name.take().map(Found::Name);
        name.into_iter().chain((!json.is_empty()).then_some(Found::Arguments(json))).collect()
    }

    /// Whether the arguments have ended.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// The text after the end.
    pub fn rest(&self) -> &str {
        &self.pending
    }

    /// Moves on with the pending text. Returns whether there may be more to do.
    fn step(&mut self, json: &mut String) -> bool {
        if self.text {
            let (text, ended) = match self.pending.find(self.quote) {
                Some(at) => (at, true),
                None => (self.pending.len() - held(&self.pending, &[self.quote]), false),
            };
            *json += &json_text(&self.pending[..text]);
            self.pending.drain(..text + if ended { self.quote.len() } else { 0 });
            if ended {
                json.push('"');
                self.text = false;
            }
            return ended;
        }
        let text = self.pending.trim_start();
        if let Some(rest) = text.strip_prefix(self.quote) {
            self.pending = rest.into();
            json.push('"');
            self.text = true;
            return true;
        }
        if self.quote.starts_with(text) {
            return false;
        }
        let Some(first) = text.chars().next() else { return false };
        if "{}[],:".contains(first) {
            match first {
                '{' | '[' => self.depth += 1,
                '}' | ']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            json.push(first);
            if matches!(first, ',' | ':') {
                json.push(' ');
            }
            self.pending = text[1..].into();
            self.done = self.depth == 0;
            return true;
        }
        // A key, a number or a word, known when something follows.
        let Some(end) = text.find(['{', '}', '[', ']', ',', ':']) else { return false };
        let word = text[..end].trim_end();
        let is_value = !text[end..].starts_with(':')
            && serde_json::from_str::<Value>(word).is_ok_and(|value| !value.is_array() && !value.is_object());
        *json += &if is_value { word.to_string() } else { format!("\"{}\"", json_text(word)) };
        self.pending = text[end..].into();
        true
    }
}
