//! `POST /v1/chat/completions`.

use hologram_llm::{Conversation, Event};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::{Head, Numbers, Total, finish_reason, logprobs, messages, now, stream};
use crate::body::{self, Body};
use crate::error::Result;
use crate::fields::Fields;
use crate::job::{self, Text};
use crate::llamacpp::extras::Extras;
use crate::llamacpp::reply::{Clock, FINGERPRINT, Shape, timings};
use crate::options::Limits;
use crate::params::{self, MAX_TOKENS, Params};
use crate::reply::{Delta, LastCall, Splitter, drop_cut};
use crate::routes::{Call, model_name};
use crate::served::Served;
use crate::stream::{Writer, data, sse};
use crate::talk::{self, Talk};
use crate::tools::Tools;
use crate::vllm;

/// A request, ready for the engine.
pub struct Chat {
    talk: Talk,
    stream: bool,
    numbers: Numbers,
    extras: Extras,
}

impl Chat {
    /// The number of the conversation's tokens.
    pub fn prompt_tokens(&self) -> usize {
        self.talk.prompt.len()
    }
}

/// Answers a request.
///
/// # Errors
/// When it is at fault, or the engine does not take it.
pub async fn run(call: Call) -> Result<Response<Body>> {
    let (Chat { talk, stream, numbers, extras }, ready) = call.prepare(model_name, parse).await?;
    let Talk { params, prompt, splitter, names } = talk;
    let requests = (0..params.n).map(|i| ready.request(&params, prompt.clone(), i)).collect();
    let (id, created, model) = (ready.shared.new_id("chatcmpl-"), now(), ready.model.names[0].clone());
    let shape = match extras.verbose {
        true => Some(Shape::new(&ready.model, &params, &prompt, stream, extras)?),
        false => None,
    };
    let replies = job::submit(ready, requests, names).await?;
    if stream {
        let replied = |_| Choice {
            clock: Clock::default(),
            splitter: splitter.clone(),
            last_call: LastCall::default(),
            began: false,
            logprobs: Vec::new(),
        };
        let choices = (0..params.n).map(replied).collect();
        let wants_logprobs = params.logprobs.is_some();
        let total = Total::default();
        let head = Head { id, object: "chat.completion.chunk", created, model, numbers, extras };
        return Ok(sse(replies, Chunks { head, choices, wants_logprobs, total, timings: Value::Null }));
    }
    let texts = replies.collect().await?;
    let mut total = Total::default();
    for (i, text) in texts.iter().enumerate() {
        total.add(text.usage, i == 0);
    }
    let choice = |(i, text): (usize, &Text)| {
        let (message, reason) = message(text, splitter.clone());
        let logprobs = params.logprobs.map(|_| {
            let content: Vec<Value> = text.logprobs.iter().map(logprobs::chat).collect();
            json!({ "content": content, "refusal": null })
        });
        json!({ "index": i, "message": message, "logprobs": logprobs, "finish_reason": reason })
    };
    let choices: Vec<Value> = texts.iter().enumerate().map(choice).collect();
    let mut value = json!({
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "system_fingerprint": FINGERPRINT,
        "choices": choices,
        "usage": total.json(),
    });
    if let [text] = &texts[..] {
        value["timings"] = timings(text.usage, text.timings);
        if let Some(shape) = shape {
            value["__verbose"] = shape.whole(0, text);
        }
    }
    Ok(body::json(StatusCode::OK, &value))
}

/// The message of a complete reply, and why it ended.
fn message(text: &Text, mut splitter: Splitter) -> (Value, &'static str) {
    let (mut answer, mut thought, mut calls) = (String::new(), String::new(), Vec::<(Value, String)>::new());
    for delta in splitter.push(&text.text).into_iter().chain(splitter.finish(text.reason)) {
        match delta {
            Delta::Answer(piece) => answer += &piece,
            Delta::Thought(piece) => thought += &piece,
            Delta::Call { id, name, .. } => {
                calls.push((json!({ "id": id, "type": "function", "function": { "name": name } }), String::new()));
            }
            Delta::Arguments { index, text } => calls[index].1 += &text,
        }
    }
    drop_cut(&mut calls, text.reason, |(_, arguments)| arguments);
    let mut message = json!({ "role": "assistant", "content": answer, "refusal": null });
    if !thought.is_empty() {
        message["reasoning_content"] = thought.into();
    }
    if calls.is_empty() {
        return (message, finish_reason(text.reason));
    }
    let calls = calls.into_iter().map(|(mut call, arguments)| {
        call["function"]["arguments"] = arguments.into();
        call
    });
    message["tool_calls"] = calls.collect();
    if message["content"] == "" {
        message["content"] = Value::Null;
    }
    (message, called(finish_reason(text.reason)))
}

/// Why a reply with calls ended.
fn called(reason: &'static str) -> &'static str {
    if reason == "stop" { "tool_calls" } else { reason }
}

/// Reads a request and writes its conversation.
///
/// # Errors
/// Names the parameter at fault.
pub fn parse(served: &Served, limits: &Limits, mut fields: Fields) -> Result<Chat> {
    let messages = messages::parse(&mut fields)?;
    let mut params = Params::parse(&mut fields, served, served.max_texts(limits))?;
    let older = fields.integer("max_tokens", 1..=MAX_TOKENS)?;
    params.max_tokens = fields.integer("max_completion_tokens", 1..=MAX_TOKENS)?.or(older).map(|n| n as usize);
    params.logprobs = params::chat_logprobs(&mut fields)?;
    params.constraint = params::response_format(&mut fields)?;
    vllm::structured_outputs(&mut fields, &mut params)?;
    let extras = Extras::parse(&mut fields, &mut params, served)?;
    let (stream, numbers) = stream(&mut fields)?;
    let extras = extras.check(stream)?;
    params::labels(&mut fields)?;
    fields.only("modalities", &[json!(["text"])])?;
    let tools = Tools::parse(&mut fields)?;
    let variables = talk::variables(&mut fields, served)?;
    fields.finish()?;
    let talk = Talk::new(served, Conversation { messages, variables, ..Conversation::default() }, &tools, params)?;
    Ok(Chat { talk, stream, numbers, extras })
}

/// Writes `chat.completion.chunk`s.
struct Chunks {
    head: Head,
    choices: Vec<Choice>,
    wants_logprobs: bool,
    total: Total,
    /// Of the reply that ended last.
    timings: Value,
}

struct Choice {
    clock: Clock,
    splitter: Splitter,
    last_call: LastCall,
    /// Whether the first chunk, which has the role, was sent.
    began: bool,
    /// Of tokens whose text was not sent yet.
    logprobs: Vec<Value>,
}

impl Chunks {
    fn delta(&mut self, index: usize, delta: Value, finish: Option<&str>, out: &mut String) {
        let choice = &mut self.choices[index];
        if !std::mem::replace(&mut choice.began, true) {
            let first = json!({ "role": "assistant", "content": null });
            let first = json!([{ "index": index, "delta": first, "logprobs": null, "finish_reason": null }]);
            data(&self.head.chunk(first), out);
        }
        let pending = std::mem::take(&mut choice.logprobs);
        let logprobs =
            (self.wants_logprobs && !pending.is_empty()).then(|| json!({ "content": pending, "refusal": null }));
        let entry = json!([{ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish }]);
        let mut chunk = self.head.chunk_at(entry, &choice.clock);
        if finish.is_some() {
            chunk["timings"] = self.timings.clone();
        }
        data(&chunk, out);
    }

    fn deltas(&mut self, index: usize, deltas: Vec<Delta>, out: &mut String) {
        for delta in deltas {
            self.choices[index].last_call.note(&delta);
            let delta = match delta {
                Delta::Answer(text) => json!({ "content": text }),
                Delta::Thought(text) => json!({ "reasoning_content": text }),
                Delta::Call { index, id, name } => {
                    let function = json!({ "name": name, "arguments": "" });
                    json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": function }] })
                }
                Delta::Arguments { index, text } => {
                    json!({ "tool_calls": [{ "index": index, "function": { "arguments": text } }] })
                }
            };
            self.delta(index, delta, None, out);
        }
    }
}

impl Writer for Chunks {
    fn event(&mut self, index: usize, event: Event, out: &mut String) {
        self.choices[index].clock.observe(&event);
        let choice = json!([{ "index": index, "delta": {}, "logprobs": null, "finish_reason": null }]);
        self.head.progress(choice, &self.choices[index].clock, &event, out);
        match event {
            Event::Started { .. } | Event::Progress { .. } | Event::Prompt { .. } => {}
            Event::Token { text, logprobs, .. } => {
                self.choices[index].logprobs.extend(logprobs.iter().map(logprobs::chat));
                let deltas = self.choices[index].splitter.push(&text);
                self.deltas(index, deltas, out);
            }
            Event::Finished { reason, usage, timings: times, .. } => {
                self.timings = timings(usage, times);
                let rest = self.choices[index].splitter.finish(Some(reason));
                self.deltas(index, rest, out);
                self.total.add(usage, index == 0);
                let choice = &self.choices[index];
                // What was sent of a call cannot be taken back, so even a text of `stop` in it is a limit.
                let reason = match finish_reason(Some(reason)) {
                    _ if choice.last_call.is_cut(reason) => "length",
                    reason if choice.splitter.has_calls() => called(reason),
                    reason => reason,
                };
                self.delta(index, json!({}), Some(reason), out);
            }
            Event::Failed(failure) => data(&job::failed(&failure).openai(), out),
        }
    }

    fn end(&mut self, out: &mut String) {
        self.head.end(&self.total, &self.timings, out);
    }
}
