//! Reads arguments that are written as pairs of tags, and writes them as JSON.

use serde_json::Value;

use super::scan::Found;
use super::{Tool, held, json_text};

/// The tags around keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tags {
    /// `<parameter=key>value</parameter>`, then `</function>`.
    Coder,
    /// `<arg_key>key</arg_key><arg_value>value</arg_value>`, then `</tool_call>`.
    Glm,
}

impl Tags {
    /// Before a key.
    pub fn key(self) -> &'static str {
        if self == Tags::Coder { "<parameter=" } else { "<arg_key>" }
    }

    /// Between a key and its value, in parts that white space may separate.
    pub fn between(self) -> &'static [&'static str] {
        if self == Tags::Coder { &[">"] } else { &["</arg_key>", "<arg_value>"] }
    }

    /// After a value.
    pub fn value_end(self) -> &'static str {
        if self == Tags::Coder { "</parameter>" } else { "</arg_value>" }
    }

    /// After the last pair.
    pub fn end(self) -> &'static str {
        if self == Tags::Coder { "</function>" } else { "</tool_call>" }
    }
}

/// How the value of a property is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As it is: any text.
    Text,
    /// As it is, or as a JSON string, which is what a schema can constrain.
    Bounded,
    /// As JSON.
    Json,
}

impl Kind {
    /// How the values of a schema are written.
    pub fn of(schema: &Value) -> Kind {
        let texts = |value: &Value| value.as_array().is_some_and(|all| all.iter().all(Value::is_string));
        let is_text = schema["type"] == "string" || texts(&schema["enum"]) || schema["const"].is_string();
        if !is_text {
            return Kind::Json;
        }
        let harmless = ["type", "description", "title", "default", "examples", "enum", "const"];
        let plain = schema.as_object().is_some_and(|all| all.keys().all(|key| harmless.contains(&key.as_str())));
        if plain { Kind::Text } else { Kind::Bounded }
    }
}

/// Arguments that are being read.
#[derive(Clone, Debug)]
pub struct Pairs {
    name: Option<String>,
    schema: Value,
    tags: Tags,
    state: State,
    /// Text that was not yet understood.
    pending: String,
    /// Whether a key was written.
    any: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Between,
    /// In a value; whether some of it was written, and how it is written.
    Value(bool, Kind),
    Done,
}

impl Pairs {
    /// Arguments of this function.
    pub fn new(tool: &Tool, tags: Tags) -> Pairs {
        Pairs {
            name: Some(tool.name.clone()),
            schema: tool.parameters().clone(),
            tags,
            state: State::Between,
            pending: String::new(),
            any: false,
        }
    }

    /// What the next piece adds.
    pub fn push(&mut self, piece: &str) -> Vec<Found> {
        self.pending += piece;
        let mut json = String::new();
        while self.step(&mut json) {}
        let name = self.name.take().map(Found::Name);
        name.into_iter().chain((!json.is_empty()).then_some(Found::Arguments(json))).collect()
    }

    /// Whether the arguments have ended.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The text after the end.
    pub fn rest(&self) -> &str {
        &self.pending
    }

    /// Moves on with the pending text. Returns whether there may be more to do.
    fn step(&mut self, json: &mut String) -> bool {
        match self.state {
            State::Between => self.between(json),
            State::Value(begun, kind) => self.value(begun, kind, json),
            State::Done => false,
        }
    }

    fn between(&mut self, json: &mut String) -> bool {
        let text = self.pending.trim_start();
        if let Some(after) = text.strip_prefix(self.tags.key()) {
            let Some((key, mut rest)) = after.split_once(self.tags.between()[0]) else { return false };
            for part in &self.tags.between()[1..] {
                let trimmed = rest.trim_start();
                match trimmed.strip_prefix(part) {
                    Some(after) => rest = after,
                    None if part.starts_with(trimmed) => return false,
                    // A key without a value.
                    None => break,
                }
            }
            let key = key.trim();
            *json += if std::mem::replace(&mut self.any, true) { ", " } else { "{" };
            *json += &format!("\"{}\": ", json_text(key));
            self.state = State::Value(false, Kind::of(&self.schema["properties"][key]));
            self.pending = rest.into();
            return true;
        }
        if self.tags.key().starts_with(text) || (self.tags.end().starts_with(text) && text != self.tags.end()) {
            return false;
        }
        // Also where something else follows.
        self.pending = text.strip_prefix(self.tags.end()).unwrap_or(text).into();
        *json += if self.any { "}" } else { "{}" };
        self.state = State::Done;
        false
    }

    fn value(&mut self, begun: bool, kind: Kind, json: &mut String) -> bool {
        let end = self.tags.value_end();
        let lines = self.tags == Tags::Coder;
        let found = self.pending.find(end);
        if kind != Kind::Text {
            let Some(at) = found else { return false };
            *json += &written(self.pending[..at].trim(), kind);
            self.end_value(at + end.len());
            return true;
        }
        if !begun {
            // Whether a line end follows the tag decides nothing until it is there.
            if self.pending.is_empty() {
                return false;
            }
            if lines && self.pending.starts_with('\n') {
                self.pending.remove(0);
            }
            json.push('"');
            self.state = State::Value(true, kind);
            return true;
        }
        if let Some(at) = found {
            let text = &self.pending[..at];
            *json += &json_text(if lines { text.strip_suffix('\n').unwrap_or(text) } else { text });
            json.push('"');
            self.end_value(at + end.len());
            return true;
        }
        // The line end before the tag is not part of the text.
        let mark = if lines { format!("\n{end}") } else { end.into() };
        let rest = self.pending.split_off(self.pending.len() - held(&self.pending, &[&mark, end]));
        *json += &json_text(&std::mem::replace(&mut self.pending, rest));
        false
    }

    fn end_value(&mut self, bytes: usize) {
        self.pending.drain(..bytes);
        self.state = State::Between;
    }
}

/// A value as JSON.
fn written(text: &str, kind: Kind) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(value) if kind == Kind::Json || value.is_string() => text.into(),
        _ if kind == Kind::Json && text == "True" => "true".into(),
        _ if kind == Kind::Json && text == "False" => "false".into(),
        _ if kind == Kind::Json && text == "None" => "null".into(),
        _ => format!("\"{}\"", json_text(text)),
    }
}
