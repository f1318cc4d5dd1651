//! The items of a response, and the events of their making.

use serde_json::{Value, json};

use crate::reply::Delta;
use crate::stream::named;

/// The items of a response.
pub struct Items {
    /// Part of all ids.
    key: String,
    done: Vec<Value>,
    open: Option<Item>,
    /// Whether the last item was left out.
    dropped: bool,
    /// Events so far.
    sequence: usize,
}

struct Item {
    kind: Kind,
    id: String,
    text: String,
}

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call { id: String, name: String },
}

impl Item {
    fn value(&self, status: &str) -> Value {
        let Item { kind, id, text } = self;
        match kind {
            Kind::Reasoning => {
                let content = if text.is_empty() { json!([]) } else { json!([self.part()]) };
                json!({ "type": "reasoning", "id": id, "summary": [], "content": content, "status": status })
            }
            Kind::Message => {
                let content = if status == "in_progress" { json!([]) } else { json!([self.part()]) };
                json!({ "type": "message", "id": id, "role": "assistant", "status": status, "content": content })
            }
            Kind::Call { id: call, name } => json!({
                "type": "function_call", "id": id, "call_id": call, "name": name, "arguments": text, "status": status,
            }),
        }
    }

    fn part(&self) -> Value {
        match self.kind {
            Kind::Reasoning => json!({ "type": "reasoning_text", "text": self.text }),
            _ => json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] }),
        }
    }
}

impl Items {
    /// No items. `key` makes their ids unique.
    pub fn new(key: String) -> Items {
        Items { key, done: Vec::new(), open: None, dropped: false, sequence: 0 }
    }

    /// The complete items.
    pub fn done(&self) -> &[Value] {
        &self.done
    }

    /// Appends an event.
    pub fn send(&mut self, name: &str, mut event: Value, out: &mut String) {
        event["type"] = name.into();
        event["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        named(name, &event, out);
    }

    /// Adds to the items.
    pub fn add(&mut self, delta: Delta, out: &mut String) {
        match delta {
            Delta::Thought(text) => self.text(Kind::Reasoning, "response.reasoning_text.delta", text, out),
            Delta::Answer(text) => self.text(Kind::Message, "response.output_text.delta", text, out),
            Delta::Call { id, name, .. } => self.begin(Kind::Call { id, name }, out),
            Delta::Arguments { text, .. } => {
                let index = self.done.len();
                let Some(item) = &mut self.open else { return };
                item.text += &text;
                let event = json!({ "item_id": item.id, "output_index": index, "delta": text });
                self.send("response.function_call_arguments.delta", event, out);
            }
        }
    }

    fn text(&mut self, kind: Kind, name: &str, text: String, out: &mut String) {
        if self.open.as_ref().is_none_or(|item| item.kind != kind) {
            self.begin(kind, out);
        }
        let index = self.done.len();
        let Some(item) = &mut self.open else { return };
        item.text += &text;
        let mut event = json!({ "item_id": item.id, "output_index": index, "content_index": 0, "delta": text });
        if item.kind == Kind::Message {
            event["logprobs"] = json!([]);
        }
        self.send(name, event, out);
    }

    fn begin(&mut self, kind: Kind, out: &mut String) {
        self.close("completed", out);
        let index = self.done.len();
        let prefix = match kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call { .. } => "fc_",
        };
        let item = Item { kind, id: format!("{prefix}{}{index}", self.key), text: String::new() };
        self.send(
            "response.output_item.added",
            json!({ "output_index": index, "item": item.value("in_progress") }),
            out,
        );
        if !matches!(item.kind, Kind::Call { .. }) {
            let event = json!({ "item_id": item.id, "output_index": index, "content_index": 0, "part": item.part() });
            self.send("response.content_part.added", event, out);
        }
        self.open = Some(item);
    }

    fn close(&mut self, status: &str, out: &mut String) {
        let Some(item) = self.open.take() else { return };
        let index = self.done.len();
        let mut event = json!({ "item_id": item.id, "output_index": index });
        if let Kind::Call { name, .. } = &item.kind {
            event["name"] = name.as_str().into();
            event["arguments"] = item.text.as_str().into();
            self.send("response.function_call_arguments.done", event, out);
        } else {
            event["content_index"] = 0.into();
            let mut part = event.clone();
            event["text"] = item.text.as_str().into();
            part["part"] = item.part();
            if item.kind == Kind::Message {
                event["logprobs"] = json!([]);
                self.send("response.output_text.done", event, out);
            } else {
                self.send("response.reasoning_text.done", event, out);
            }
            self.send("response.content_part.done", part, out);
        }
        let value = item.value(status);
        self.done.push(value.clone());
        self.send("response.output_item.done", json!({ "output_index": index, "item": value }), out);
    }

    /// Ends the last item, a call that was cut off within its arguments. The response lacks it: half of a call must not
    /// be made. A stream, which has sent its beginning, says that it is incomplete.
    pub fn drop_call(&mut self, out: &mut String) {
        let Some(item) = self.open.take_if(|item| matches!(item.kind, Kind::Call { .. })) else { return };
        let event = json!({ "output_index": self.done.len(), "item": item.value("incomplete") });
        self.send("response.output_item.done", event, out);
        self.dropped = true;
    }

    /// Ends the last item; a response has at least one.
    pub fn end(&mut self, status: &str, out: &mut String) {
        if self.done.is_empty() && self.open.is_none() && !self.dropped {
            self.begin(Kind::Message, out);
        }
        self.close(status, out);
    }
}
