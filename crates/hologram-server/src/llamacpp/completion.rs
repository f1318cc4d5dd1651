//! `POST /completion`: llama.cpp's own form of a completion.

use hologram_llm::Event;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::reply::{Clock, Shape, probabilities, selected};
use super::request::{self, Settings};
use crate::body::{self, Body};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::job::{self, Names, Text};
use crate::options::Limits;
use crate::routes::{Call, Ready, model_name};
use crate::served::Served;
use crate::stream::{Writer, data, sse};

/// A request, ready for the engine.
pub struct Completion {
    settings: Settings,
    prompts: Vec<Vec<u32>>,
}

impl Completion {
    /// Continues prompts, at least one, with what the other parameters say.
    ///
    /// # Errors
    /// When a parameter is at fault, or there are more replies than a request may have.
    pub fn new(mut fields: Fields, served: &Served, limits: &Limits, prompts: Vec<Vec<u32>>) -> Result<Completion> {
        let sequences = served.max_texts(limits);
        let settings = request::settings(&mut fields, served, sequences)?;
        fields.finish()?;
        if prompts.len() * settings.params.n > sequences {
            let message = format!("{} prompts with n = {} exceed {sequences} texts", prompts.len(), settings.params.n);
            return Err(ApiError::invalid("n", message));
        }
        Ok(Completion { settings, prompts })
    }

    /// Answers.
    ///
    /// # Errors
    /// When the engine does not take the request.
    pub async fn answer(self, ready: Ready) -> Result<Response<Body>> {
        let Completion { settings: Settings { params, extras, stream, returns_tokens, fields }, prompts } = self;
        let n = params.n;
        let shape = |prompt: &Vec<u32>| {
            // A stream has sent the tokens.
            let shape = Shape::new(&ready.model, &params, prompt, stream, extras)?;
            Ok(shape.returning_tokens(returns_tokens && !stream))
        };
        let shapes = prompts.iter().map(shape).collect::<Result<Vec<_>>>()?;
        let request = |i: usize| ready.request(&params, prompts[i / n].clone(), i % n);
        let requests: Vec<_> = (0..prompts.len() * n).map(request).collect();
        let names = Names { prompt: "prompt", constraint: params.constraint_name };
        let replies = job::submit(ready, requests, names).await?;
        if stream {
            let reply =
                |i: usize| Reply { shape: shapes[i / n].clone(), clock: Clock::default(), text: Text::default() };
            let replied = (0..prompts.len() * n).map(reply).collect();
            let sampled = params.sampled_probabilities;
            return Ok(sse(replies, Chunks { replies: replied, extras, fields, sampled }));
        }
        let texts = replies.collect().await?;
        let whole = |(i, text): (usize, &Text)| selected(shapes[i / n].whole(i, text), &fields);
        let mut all: Vec<Value> = texts.iter().enumerate().map(whole).collect();
        let value = if all.len() == 1 { all.remove(0) } else { all.into() };
        Ok(body::json(StatusCode::OK, &value))
    }
}

/// Answers a request.
///
/// # Errors
/// When it is at fault, or the engine does not take it.
pub async fn run(call: Call) -> Result<Response<Body>> {
    let parse = |served: &Served, limits: &Limits, mut fields: Fields| {
        served.check_generates()?;
        let prompts = request::prompts(&mut fields, served, served.max_texts(limits))?;
        Completion::new(fields, served, limits, prompts)
    };
    let (completion, ready) = call.prepare(model_name, parse).await?;
    completion.answer(ready).await
}

/// Writes the chunks of a streamed answer: one per token, the last with everything but the text.
struct Chunks {
    replies: Vec<Reply>,
    extras: super::extras::Extras,
    fields: Vec<String>,
    sampled: bool,
}

struct Reply {
    shape: Shape,
    clock: Clock,
    /// What the last chunk tells.
    text: Text,
}

impl Chunks {
    fn chunk(&self, index: usize, content: &str, ids: &[u32]) -> Value {
        let clock = &self.replies[index].clock;
        let mut chunk = json!({
            "index": index,
            "content": content,
            "tokens": ids,
            "stop": false,
            "id_slot": clock.slot(),
            "tokens_predicted": clock.generated(),
            "tokens_evaluated": clock.total(),
        });
        if self.extras.timings {
            chunk["timings"] = clock.timings();
        }
        chunk
    }
}

impl Writer for Chunks {
    fn event(&mut self, index: usize, event: Event, out: &mut String) {
        let reply = &mut self.replies[index];
        reply.clock.observe(&event);
        let progress = reply.clock.progress(&event).filter(|_| self.extras.progress);
        if let Some(progress) = progress {
            let mut chunk = self.chunk(index, "", &[]);
            chunk["prompt_progress"] = progress;
            data(&chunk, out);
        }
        match event {
            Event::Started { .. } | Event::Progress { .. } | Event::Prompt { .. } => {}
            Event::Token { ids, text, logprobs } => {
                // Also where the text is not complete yet: a chunk tells of its tokens.
                let mut chunk = self.chunk(index, &text, &ids);
                if !logprobs.is_empty() {
                    chunk["completion_probabilities"] = probabilities(&logprobs, self.sampled);
                }
                data(&chunk, out);
                self.replies[index].text.text += &text;
            }
            Event::Finished { reason, stop, usage, timings, .. } => {
                let Reply { shape, clock, text } = &mut self.replies[index];
                (text.reason, text.stop, text.usage, text.timings) = (Some(reason), stop, usage, timings);
                text.slot = clock.slot();
                let mut last = shape.whole(index, text);
                last["content"] = "".into();
                data(&selected(last, &self.fields), out);
            }
            Event::Failed(failure) => data(&super::error(&job::failed(&failure)), out),
        }
    }

    fn end(&mut self, _: &mut String) {}
}
