//! Ollama's interface: `/api/chat`, `/api/generate`, `/api/tags`, `/api/ps`, `/api/show`, `/api/version`.

mod keep;
mod request;

use std::time::{Duration, Instant};

use hologram_llm::engine::{Timings, Usage};
use hologram_llm::{Event, Finish};
use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::body::{self, Body};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::job::{self, Names};
use crate::openai::{finish_reason, now};
use crate::options::Limits;
use crate::registry::{Keep, Summary};
use crate::reply::{Delta, Splitter, drop_cut};
use crate::routes::{Call, Ready};
use crate::served::Served;
use crate::stream::{Writer, lines};
use crate::talk::Talk;
use request::Asked;

/// An error in Ollama's form.
pub fn error(error: &ApiError) -> Value {
    json!({ "error": error.message })
}

/// `POST /api/chat`.
///
/// # Errors
/// When the request is at fault, or the engine does not take it.
pub async fn chat(call: Call) -> Result<Response<Body>> {
    run(call, request::chat, "messages").await
}

/// `POST /api/generate`.
///
/// # Errors
/// When the request is at fault, or the engine does not take it.
pub async fn generate(call: Call) -> Result<Response<Body>> {
    run(call, request::generate, "prompt").await
}

type Parse = fn(&Served, &Limits, Fields) -> Result<request::Kept>;

async fn run(call: Call, parse: Parse, prompt_name: &'static str) -> Result<Response<Body>> {
    if let Some(answer) = unload(&call, prompt_name)? {
        return Ok(answer);
    }
    let ((keep, asked), ready) = call.prepare(request::name, parse).await?;
    if let Some(keep) = keep {
        ready.model.keep(keep);
    }
    match asked {
        Asked::Reply(request) => answer(ready, *request, prompt_name).await,
        Asked::Nothing => {
            let reason = if keep == Some(UNLOAD) { "unload" } else { "load" };
            Ok(nothing(&ready.model.names[0], reason, prompt_name))
        }
    }
}

const UNLOAD: Keep = Keep::For(Duration::ZERO);

/// Maximum bytes of a request for nothing.
const SHORT: usize = 4096;

/// Answers a request to unload a model that is not loaded, which must not load it. `None`: it is another request.
fn unload(call: &Call, prompt_name: &'static str) -> Result<Option<Response<Body>>> {
    let Some(map) = (call.body.len() <= SHORT).then(|| crate::json::object(&call.body).ok()).flatten() else {
        return Ok(None);
    };
    let is_empty = map.get(prompt_name).is_none_or(|value| *value == json!("") || *value == json!([]));
    let mut fields = Fields::new(map);
    let (Ok(Some(UNLOAD)), true) = (keep::take(&mut fields), is_empty) else { return Ok(None) };
    let Ok(name) = request::name(&mut fields) else { return Ok(None) };
    let model = call.shared.models()?.find(name.as_deref())?;
    Ok(model.loaded.is_none().then(|| nothing(&model.names[0], "unload", prompt_name)))
}

/// The reply to a request for nothing.
fn nothing(model: &str, reason: &str, prompt_name: &str) -> Response<Body> {
    let mut value = json!({ "model": model, "created_at": timestamp(now()), "done": true, "done_reason": reason });
    match prompt_name {
        "messages" => value["message"] = json!({ "role": "assistant", "content": "" }),
        _ => value["response"] = "".into(),
    }
    body::json(StatusCode::OK, &value)
}

async fn answer(ready: Ready, request: request::Request, prompt_name: &'static str) -> Result<Response<Body>> {
    let request::Request { talk: Talk { params, prompt, splitter, .. }, streams, is_chat } = request;
    let names = Names { prompt: prompt_name, constraint: "format" };
    let started = Instant::now();
    let model = ready.model.names[0].clone();
    let requests = vec![ready.request(&params, prompt, 0)];
    let mut replies = job::submit(ready, requests, names).await?;
    let mut writer = Lines { model, splitter, is_chat, started, texts: Texts::default() };
    if streams {
        return Ok(lines(replies, writer));
    }
    let mut last = Value::Null;
    while let Some((_, event)) = replies.next().await {
        match event {
            Event::Token { text, .. } => writer.push(&text),
            Event::Finished { reason, usage, timings, .. } => {
                last = writer.last(reason, usage, timings);
            }
            Event::Failed(failure) => return Err(job::failed(&failure)),
            Event::Started { .. } | Event::Progress { .. } | Event::Prompt { .. } => {}
        }
    }
    Ok(body::json(StatusCode::OK, &last))
}

/// What a line adds.
#[derive(Default)]
struct Texts {
    answer: String,
    thought: String,
    /// Names and arguments.
    calls: Vec<(String, String)>,
}

impl Texts {
    fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Answer(text) => self.answer += &text,
            Delta::Thought(text) => self.thought += &text,
            Delta::Call { name, .. } => self.calls.push((name, String::new())),
            Delta::Arguments { text, .. } => {
                if let Some(call) = self.calls.last_mut() {
                    call.1 += &text;
                }
            }
        }
    }
}

/// Writes one object per line.
struct Lines {
    model: String,
    splitter: Splitter,
    is_chat: bool,
    started: Instant,
    /// What was not sent yet.
    texts: Texts,
}

impl Lines {
    fn push(&mut self, piece: &str) {
        let deltas = self.splitter.push(piece);
        deltas.into_iter().for_each(|delta| self.texts.add(delta));
    }

    fn line(&self, texts: Texts) -> Value {
        let mut line = json!({ "model": self.model, "created_at": timestamp(now()) });
        let Texts { answer, thought, calls } = texts;
        if self.is_chat {
            let mut message = json!({ "role": "assistant", "content": answer });
            if !thought.is_empty() {
                message["thinking"] = thought.into();
            }
            if !calls.is_empty() {
                let call = |(name, arguments): (String, String)| {
                    let arguments = serde_json::from_str::<Value>(&arguments).unwrap_or_else(|_| json!({}));
                    json!({ "function": { "name": name, "arguments": arguments } })
                };
                message["tool_calls"] = calls.into_iter().map(call).collect();
            }
            line["message"] = message;
        } else {
            line["response"] = answer.into();
            if !thought.is_empty() {
                line["thinking"] = thought.into();
            }
        }
        line["done"] = false.into();
        line
    }

    /// The last line, with all that was not sent yet.
    fn last(&mut self, reason: Finish, usage: Usage, timings: Timings) -> Value {
        let rest = self.splitter.finish(Some(reason));
        rest.into_iter().for_each(|delta| self.texts.add(delta));
        let mut texts = std::mem::take(&mut self.texts);
        drop_cut(&mut texts.calls, Some(reason), |(_, arguments)| arguments);
        let mut line = self.line(texts);
        line["done"] = true.into();
        line["done_reason"] = finish_reason(Some(reason)).into();
        let nanoseconds = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        line["total_duration"] = nanoseconds(self.started.elapsed()).into();
        line["load_duration"] = 0.into();
        line["prompt_eval_count"] = usage.prompt_tokens.into();
        line["prompt_eval_duration"] = nanoseconds(timings.prompt).into();
        line["eval_count"] = usage.generated_tokens.into();
        line["eval_duration"] = nanoseconds(timings.decode).into();
        line
    }
}

impl Writer for Lines {
    fn event(&mut self, _: usize, event: Event, out: &mut String) {
        match event {
            Event::Started { .. } | Event::Progress { .. } | Event::Prompt { .. } => {}
            Event::Token { text, .. } => {
                self.push(&text);
                let Texts { answer, thought, .. } = &mut self.texts;
                if !(answer.is_empty() && thought.is_empty()) {
                    let (answer, thought) = (std::mem::take(answer), std::mem::take(thought));
                    // A call is sent whole, at the end.
                    *out += &format!("{}\n", self.line(Texts { answer, thought, calls: Vec::new() }));
                }
            }
            Event::Finished { reason, usage, timings, .. } => {
                *out += &format!("{}\n", self.last(reason, usage, timings));
            }
            Event::Failed(failure) => *out += &format!("{}\n", error(&job::failed(&failure))),
        }
    }

    fn end(&mut self, _: &mut String) {}
}

/// `GET /api/tags`.
///
/// # Errors
/// 503 while loading.
pub fn tags(call: &Call) -> Result<Response<Body>> {
    let model = |summary: &Summary, name: &String| {
        json!({
            "name": name, "model": name, "modified_at": timestamp(summary.created), "size": summary.bytes, "digest": "",
            "details": details(summary.family),
        })
    };
    let all = call.shared.models()?.list();
    let models: Vec<Value> =
        all.flat_map(|summary| summary.names.iter().map(|name| model(&summary, name)).collect::<Vec<_>>()).collect();
    Ok(body::json(StatusCode::OK, &json!({ "models": models })))
}

/// How long a model stays that is not unloaded for being idle, as in Ollama: the longest time of the language it is
/// written in, some 292 years.
const FOR_EVER: Duration = Duration::from_nanos(i64::MAX as u64);

/// `GET /api/ps`: the models in memory, and when each is unloaded unless it is used again.
///
/// # Errors
/// 503 while loading.
pub fn running(call: &Call) -> Result<Response<Body>> {
    let model = |(summary, left): (Summary, Option<Duration>)| {
        let served = summary.loaded.as_ref()?;
        let (model, name) = (served.engine.model(), &summary.names[0]);
        let on_gpu = !matches!(model.executor().info().backend.name(), "cpu" | "reference");
        let bytes = model.weight_bytes();
        let expires = now().saturating_add(left.unwrap_or(FOR_EVER).as_secs());
        Some(json!({
            "name": name, "model": name, "size": bytes, "size_vram": if on_gpu { bytes } else { 0 }, "digest": "",
            "details": details(summary.family), "expires_at": timestamp(expires), "context_length": served.context,
        }))
    };
    let models: Vec<Value> = call.shared.models()?.running().filter_map(model).collect();
    Ok(body::json(StatusCode::OK, &json!({ "models": models })))
}

fn details(family: Option<&str>) -> Value {
    json!({ "format": "gguf", "family": family, "families": [family], "parameter_size": "", "quantization_level": "" })
}

/// `POST /api/show`.
///
/// # Errors
/// 404 for an unknown model.
pub async fn show(call: Call) -> Result<Response<Body>> {
    let (value, _) = call
        .prepare(request::name_to_show, |served, _, fields| {
            request::show(fields)?;
            let template = served.template().map(|t| t.source().to_string()).unwrap_or_default();
            let encoder = served.engine.model().config().bidirectional;
            let mut capabilities = vec![if encoder { "embedding" } else { "completion" }];
            capabilities.extend((!encoder && template.contains("tools")).then_some("tools"));
            let mut info = Map::new();
            let family = served.engine.model().config().architecture.names.first().copied();
            info.insert("general.architecture".into(), family.into());
            Ok(json!({
                "modified_at": timestamp(served.created), "details": details(family), "model_info": info,
                "template": template, "capabilities": capabilities,
            }))
        })
        .await?;
    Ok(body::json(StatusCode::OK, &value))
}

/// Seconds since 1970 as RFC 3339 writes them.
fn timestamp(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March, so that the leap day is their last; an era of 400 years has 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (year + era * 400 + u64::from(month >= 10), if month < 10 { month + 3 } else { month - 9 });
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::timestamp;

    #[test]
    fn timestamps() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
        ];
        for (seconds, want) in cases {
            assert_eq!(timestamp(seconds), want);
        }
    }
}
