//! `POST /v1/chat/completions`.

use hologram_llm::{Conversation, Event};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::{Head, Numbers, Total, finish_reason, logprobs, messages, now, stream};
use crate::body::{self, Body};
use crate::error::{ApiError, Result};
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
use crate::vllm::{self, Told};

/// A request, ready for the engine.
pub struct Chat {
    talk: Talk,
    stream: bool,
    numbers: Numbers,
    extras: Extras,
    told: Told,
    /// What the answer begins with: the message that it continues.
    echo: String,
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
    let (Chat { talk, stream, numbers, extras, told, echo }, ready) = call.prepare(model_name, parse).await?;
    let Talk { params, prompt, splitter, names } = talk;
    let request = |i| {
        let mut request = ready.request(&params, prompt.clone(), i);
        // It is the same for all replies.
        request.prompt_logprobs = told.prompt.filter(|_| i == 0);
        request
    };
    let requests = (0..params.n).map(request).collect();
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
            ids: Vec::new(),
        };
        let choices = (0..params.n).map(replied).collect();
        let (total, timings) = (Total::default(), Value::Null);
        let head = Head { id, object: "chat.completion.chunk", created, model, numbers, extras };
        return Ok(sse(replies, Chunks { head, choices, params, prompt, echo, total, told, timings }));
    }
    let texts = replies.collect().await?;
    let mut total = Total::default();
    for (i, text) in texts.iter().enumerate() {
        total.add(text.usage, i == 0);
    }
    let choice = |(i, text): (usize, &Text)| {
        let (message, reason) = message(text, splitter.clone(), &echo);
        let logprobs = params.logprobs.map(|_| {
            let content: Vec<Value> = text.logprobs.iter().map(|t| logprobs::chat(t, told.named_by_id)).collect();
            json!({ "content": content, "refusal": null })
        });
        let stop = vllm::stop_reason(text.stop.as_deref(), text.end, &params.stop_tokens);
        json!({
            "index": i, "message": message, "logprobs": logprobs, "finish_reason": reason, "stop_reason": stop,
            "token_ids": told.reply(text),
        })
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
        "prompt_logprobs": texts.first().map(|text| told.prompt(&text.prompt)),
        "prompt_token_ids": told.ids(&prompt),
    });
    if let [text] = &texts[..] {
        value["timings"] = timings(text.usage, text.timings);
        if let Some(shape) = shape {
            value["__verbose"] = shape.whole(0, text);
        }
    }
    Ok(body::json(StatusCode::OK, &value))
}

/// The message of a complete reply after this text, and why it ended.
fn message(text: &Text, mut splitter: Splitter, echo: &str) -> (Value, &'static str) {
    let (mut answer, mut thought, mut calls) = (echo.to_string(), String::new(), Vec::<(Value, String)>::new());
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
    params.continues = continues(&mut fields, &messages)?;
    let echoes = fields.boolean("echo")?.unwrap_or(false);
    let last = messages.last().filter(|message| echoes && message["role"] == "assistant");
    let echo = last.and_then(|message| message["content"].as_str()).unwrap_or_default().to_string();
    params.constraint = params::response_format(&mut fields)?;
    vllm::structured_outputs(&mut fields, &mut params)?;
    let extras = Extras::parse(&mut fields, &mut params, served)?;
    let (stream, numbers) = stream(&mut fields)?;
    let extras = extras.check(stream)?;
    let told = Told::parse(&mut fields, stream)?;
    params::labels(&mut fields)?;
    fields.only("modalities", &[json!(["text"])])?;
    let tools = Tools::parse(&mut fields)?;
    let variables = talk::variables(&mut fields, served)?;
    fields.finish()?;
    let talk = Talk::new(served, Conversation { messages, variables, ..Conversation::default() }, &tools, params)?;
    Ok(Chat { talk, stream, numbers, extras, told, echo })
}

/// Reads vLLM's `continue_final_message` and `add_generation_prompt`.
fn continues(fields: &mut Fields, messages: &[Value]) -> Result<bool> {
    const NAME: &str = "continue_final_message";
    let continues = fields.boolean(NAME)?.unwrap_or(false);
    match fields.boolean("add_generation_prompt")? {
        Some(true) if continues => {
            let message = "a reply either continues the last message or begins a new one (add_generation_prompt)";
            return Err(ApiError::invalid(NAME, message));
        }
        Some(false) if !continues => {
            let message = "add_generation_prompt is supported as false only with continue_final_message";
            return Err(ApiError::unsupported("add_generation_prompt", message));
        }
        _ => {}
    }
    if continues && messages.last().is_none_or(|message| message["role"] != "assistant") {
        return Err(ApiError::invalid(NAME, "a reply continues only a message of the assistant"));
    }
    Ok(continues)
}

/// Writes `chat.completion.chunk`s.
struct Chunks {
    head: Head,
    choices: Vec<Choice>,
    params: Params,
    prompt: Vec<u32>,
    echo: String,
    total: Total,
    told: Told,
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
    /// Those tokens.
    ids: Vec<u32>,
}

impl Chunks {
    fn delta(&mut self, index: usize, delta: Value, finish: Option<(&str, Value)>, out: &mut String) {
        let choice = &mut self.choices[index];
        let entry = |delta: Value| json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": null });
        if !std::mem::replace(&mut choice.began, true) {
            let first = entry(json!({ "role": "assistant", "content": null }));
            let mut chunk = self.head.chunk_before(json!([first]), &choice.clock);
            if self.told.ids {
                chunk["prompt_token_ids"] = json!(self.prompt);
            }
            data(&chunk, out);
            if !self.echo.is_empty() {
                let echo = entry(json!({ "content": self.echo }));
                data(&self.head.chunk_before(json!([echo]), &choice.clock), out);
            }
        }
        let mut entry = entry(delta);
        let pending = std::mem::take(&mut choice.logprobs);
        if self.params.logprobs.is_some() && !pending.is_empty() {
            entry["logprobs"] = json!({ "content": pending, "refusal": null });
        }
        if self.told.ids {
            entry["token_ids"] = std::mem::take(&mut choice.ids).into();
        }
        let ended = finish.is_some();
        if let Some((reason, stop)) = finish {
            (entry["finish_reason"], entry["stop_reason"]) = (reason.into(), stop);
        }
        let mut chunk = self.head.chunk_at(json!([entry]), &choice.clock);
        if ended {
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
            Event::Token { text, logprobs, ids } => {
                let by_id = self.told.named_by_id;
                self.choices[index].logprobs.extend(logprobs.iter().map(|token| logprobs::chat(token, by_id)));
                self.choices[index].ids.extend(ids);
                let deltas = self.choices[index].splitter.push(&text);
                self.deltas(index, deltas, out);
            }
            Event::Finished { reason, stop, end, usage, timings: times } => {
                self.timings = timings(usage, times);
                let rest = self.choices[index].splitter.finish(Some(reason));
                self.deltas(index, rest, out);
                self.choices[index].ids.extend(end);
                self.total.add(usage, index == 0);
                let choice = &self.choices[index];
                // What was sent of a call cannot be taken back, so even a text of `stop` in it is a limit.
                let reason = match finish_reason(Some(reason)) {
                    _ if choice.last_call.is_cut(reason) => "length",
                    reason if choice.splitter.has_calls() => called(reason),
                    reason => reason,
                };
                let stop = vllm::stop_reason(stop.as_deref(), end, &self.params.stop_tokens);
                self.delta(index, json!({}), Some((reason, stop)), out);
            }
            Event::Failed(failure) => data(&job::failed(&failure).openai(), out),
        }
    }

    fn end(&mut self, out: &mut String) {
        self.head.end(&self.total, &self.timings, out);
    }
}
