//! Streamed messages.

use hologram_llm::Event;
use hologram_llm::engine::Usage;
use serde_json::{Value, json};

use super::{error, stop_reason, usage};
use crate::job;
use crate::reply::{Delta, LastCall, Splitter};
use crate::stream::{Writer, named};

/// Writes a message as events.
pub struct Events {
    id: String,
    model: String,
    splitter: Splitter,
    last_call: LastCall,
    prompt_tokens: usize,
    /// The open block: its number and type.
    open: Option<(usize, &'static str)>,
    /// Blocks so far.
    blocks: usize,
}

impl Events {
    /// A message that begins.
    pub fn new(id: String, model: String, splitter: Splitter, prompt_tokens: usize) -> Events {
        Events { id, model, splitter, last_call: LastCall::default(), prompt_tokens, open: None, blocks: 0 }
    }

    fn begin(&mut self, kind: &'static str, block: Value, out: &mut String) {
        self.close(out);
        self.open = Some((self.blocks, kind));
        event("content_block_start", json!({ "index": self.blocks, "content_block": block }), out);
        self.blocks += 1;
    }

    fn close(&mut self, out: &mut String) {
        if let Some((index, kind)) = self.open.take() {
            if kind == "thinking" {
                let delta = json!({ "type": "signature_delta", "signature": "" });
                event("content_block_delta", json!({ "index": index, "delta": delta }), out);
            }
            event("content_block_stop", json!({ "index": index }), out);
        }
    }

    /// Adds to the open block of this type, which is begun if there is none.
    fn add(&mut self, kind: &'static str, empty: Value, delta: Value, out: &mut String) {
        if self.open.is_none_or(|(_, open)| open != kind) {
            self.begin(kind, empty, out);
        }
        let index = self.open.map_or(0, |(index, _)| index);
        event("content_block_delta", json!({ "index": index, "delta": delta }), out);
    }

    fn deltas(&mut self, deltas: Vec<Delta>, out: &mut String) {
        for delta in deltas {
            self.last_call.note(&delta);
            match delta {
                Delta::Thought(text) => {
                    let empty = json!({ "type": "thinking", "thinking": "", "signature": "" });
                    self.add("thinking", empty, json!({ "type": "thinking_delta", "thinking": text }), out);
                }
                Delta::Answer(text) => {
                    let empty = json!({ "type": "text", "text": "" });
                    self.add("text", empty, json!({ "type": "text_delta", "text": text }), out);
                }
                Delta::Call { id, name, .. } => {
                    let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                    self.begin("tool_use", block, out);
                }
                Delta::Arguments { text, .. } => {
                    self.add("tool_use", Value::Null, json!({ "type": "input_json_delta", "partial_json": text }), out);
                }
            }
        }
    }
}

/// Appends an event; its type is also a member.
fn event(name: &str, mut value: Value, out: &mut String) {
    value["type"] = name.into();
    named(name, &value, out);
}

impl Writer for Events {
    fn event(&mut self, _: usize, got: Event, out: &mut String) {
        match got {
            Event::Started { cached_tokens, .. } => {
                let usage = usage(Usage { prompt_tokens: self.prompt_tokens, cached_tokens, generated_tokens: 0 });
                let message = json!({
                    "id": self.id,
                    "type": "message",
                    "role": "assistant",
                    "model": self.model,
                    "content": [],
                    "stop_reason": null,
                    "stop_sequence": null,
                    "usage": usage,
                });
                event("message_start", json!({ "message": message }), out);
            }
            Event::Progress { .. } | Event::Prompt { .. } => {}
            Event::Token { text, .. } => {
                let deltas = self.splitter.push(&text);
                self.deltas(deltas, out);
            }
            Event::Finished { reason, stop, usage: numbers, .. } => {
                let rest = self.splitter.finish(Some(reason));
                self.deltas(rest, out);
                if self.blocks == 0 {
                    self.begin("text", json!({ "type": "text", "text": "" }), out);
                }
                self.close(out);
                // What was sent of a call cannot be taken back, so even a text that ends the reply in it is a limit.
                let reason = match self.last_call.is_cut(reason) {
                    true => "max_tokens",
                    false => stop_reason(Some(reason), stop.as_deref(), self.splitter.has_calls()),
                };
                let delta = json!({ "stop_reason": reason, "stop_sequence": stop });
                event("message_delta", json!({ "delta": delta, "usage": usage(numbers) }), out);
                event("message_stop", json!({}), out);
            }
            Event::Failed(failure) => named("error", &error(&job::failed(&failure)), out),
        }
    }

    fn end(&mut self, _: &mut String) {}
}
