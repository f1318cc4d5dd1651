//! OpenAI's `POST /v1/responses`, without state: nothing is stored, so a request holds the whole conversation.

mod items;
mod request;

use hologram_llm::{Event, Finish};
use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::body::{self, Body};
use crate::error::Result;
use crate::job::{self, Replies};
use crate::llamacpp::reply::timings;
use crate::openai::now;
use crate::reply::{Delta, LastCall, Splitter};
use crate::routes::{Call, model_name};
use crate::stream::{Writer, sse};
use crate::talk::Talk;

use items::Items;

/// Answers a request.
///
/// # Errors
/// When it is at fault, or the engine does not take it.
pub async fn run(call: Call) -> Result<Response<Body>> {
    let (request::Request { talk, streams, echo }, ready) = call.prepare(model_name, request::parse).await?;
    let Talk { params, prompt, splitter, names } = talk;
    let names =
        job::Names { prompt: "input", constraint: if names.constraint == "tools" { "tools" } else { "text.format" } };
    let shared = &ready.shared;
    let writer = Output {
        id: shared.new_id("resp_"),
        created: now(),
        model: ready.model.names[0].clone(),
        echo,
        splitter,
        last_call: LastCall::default(),
        items: Items::new(shared.new_id("")),
        last: Value::Null,
    };
    let requests = vec![ready.request(&params, prompt, 0)];
    let replies = job::submit(ready, requests, names).await?;
    if streams {
        return Ok(sse(replies, writer));
    }
    Ok(body::json(StatusCode::OK, &whole(replies, writer).await?))
}

async fn whole(mut replies: Replies, mut writer: Output) -> Result<Value> {
    // The events of a stream end with the whole response.
    let mut events = String::new();
    while let Some((reply, event)) = replies.next().await {
        if let Event::Failed(failure) = &event {
            return Err(job::failed(failure));
        }
        writer.event(reply, event, &mut events);
        events.clear();
    }
    Ok(writer.last)
}

/// Writes a response, and the events of its making.
struct Output {
    id: String,
    created: u64,
    model: String,
    /// What the response repeats of the request.
    echo: Map<String, Value>,
    splitter: Splitter,
    last_call: LastCall,
    items: Items,
    /// The whole response, at the end.
    last: Value,
}

impl Output {
    fn add(&mut self, deltas: Vec<Delta>, out: &mut String) {
        for delta in deltas {
            self.last_call.note(&delta);
            self.items.add(delta, out);
        }
    }

    fn response(&self, status: &str) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "model": self.model,
            "output": self.items.done(),
            "usage": null,
        });
        for (name, value) in &self.echo {
            response[name] = value.clone();
        }
        response
    }
}

impl Writer for Output {
    fn event(&mut self, _: usize, event: Event, out: &mut String) {
        match event {
            Event::Started { .. } => {
                let response = self.response("in_progress");
                self.items.send("response.created", json!({ "response": response }), out);
                self.items.send("response.in_progress", json!({ "response": response }), out);
            }
            Event::Progress { .. } | Event::Prompt { .. } => {}
            Event::Token { text, .. } => {
                let deltas = self.splitter.push(&text);
                self.add(deltas, out);
            }
            Event::Finished { reason, usage, timings: times, .. } => {
                let deltas = self.splitter.finish(Some(reason));
                self.add(deltas, out);
                let cut = self.last_call.is_cut(reason);
                let complete = matches!(reason, Finish::EndOfText | Finish::Stop) && !cut;
                let status = if complete { "completed" } else { "incomplete" };
                if cut {
                    self.items.drop_call(out);
                }
                self.items.end(status, out);
                let mut response = self.response(status);
                if !complete {
                    response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
                }
                response["usage"] = json!({
                    "input_tokens": usage.prompt_tokens,
                    "input_tokens_details": { "cached_tokens": usage.cached_tokens },
                    "output_tokens": usage.generated_tokens,
                    "output_tokens_details": { "reasoning_tokens": 0 },
                    "total_tokens": usage.prompt_tokens + usage.generated_tokens,
                });
                response["timings"] = timings(usage, times);
                self.items.send(&format!("response.{status}"), json!({ "response": response }), out);
                self.last = response;
            }
            Event::Failed(failure) => {
                let error = job::failed(&failure);
                let event = json!({ "code": error.kind, "message": error.message, "param": error.param });
                self.items.send("error", event, out);
            }
        }
    }

    fn end(&mut self, _: &mut String) {}
}
