//! `POST /v1/completions`.

use hologram_llm::{Event, Request};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::logprobs::{Completion, characters};
use super::{Head, Numbers, Total, finish_reason, now, stream};
use crate::body::{self, Body};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::job::{self, Names};
use crate::llamacpp::extras::Extras;
use crate::llamacpp::reply::{Clock, FINGERPRINT, Shape, timings};
use crate::options::Limits;
use crate::params::{self, MAX_TOKENS, Params};
use crate::prompts::{Prompt, prompts};
use crate::routes::{Call, model_name};
use crate::served::Served;
use crate::stream::{Writer, data, sse};
use crate::vllm;

/// The tokens of a reply unless the request says otherwise, as OpenAI documents.
const DEFAULT_TOKENS: usize = 16;
/// The most alternatives per token.
const MAX_LOGPROBS: i64 = hologram_llm::engine::MAX_TOP_LOGPROBS as i64;

/// A request, ready for the engine.
struct Completions {
    params: Params,
    prompts: Vec<Prompt>,
    /// Whether the prompts are part of the texts.
    echo: bool,
    stream: bool,
    numbers: Numbers,
    extras: Extras,
}

/// The bytes of a prompt's first token, and how many characters of its tokens are not in the text: those of BOS, and of
/// a space that the vocabulary needs.
fn begin(prompt: &Prompt, served: &Served) -> Result<(Vec<u8>, usize)> {
    let tokenizer = served.tokenizer()?;
    let first = prompt.tokens.first().map(|id| tokenizer.token_bytes(*id)).unwrap_or_default();
    let spelled: usize = prompt.tokens.iter().map(|id| characters(&tokenizer.token_bytes(*id))).sum();
    Ok((first, spelled.saturating_sub(prompt.text.chars().count())))
}

/// Answers a request.
///
/// # Errors
/// When it is at fault, or the engine does not take it.
pub async fn run(call: Call) -> Result<Response<Body>> {
    let (request, ready) = call.prepare(model_name, parse).await?;
    let Completions { params, prompts, echo, stream, numbers, extras } = request;
    let n = params.n;
    // Choice i is reply i % n to prompt i / n.
    let request = |i: usize| {
        let mut request: Request = ready.request(&params, prompts[i / n].tokens.clone(), i % n);
        request.prompt_logprobs = echo && params.logprobs.is_some();
        request
    };
    let requests = (0..prompts.len() * n).map(request).collect();
    let (id, created, model) = (ready.shared.new_id("cmpl-"), now(), ready.model.names[0].clone());
    let beginnings = prompts.iter().map(|prompt| begin(prompt, &ready.model)).collect::<Result<Vec<_>>>()?;
    let shape = match extras.verbose {
        true => Some(Shape::new(&ready.model, &params, &prompts[0].tokens, stream, extras)?),
        false => None,
    };
    let names = Names { prompt: "prompt", constraint: params.constraint_name };
    let replies = job::submit(ready, requests, names).await?;
    if stream {
        let choice = |i: usize| Choice {
            echo: echo.then(|| prompts[i / n].text.clone()),
            first: beginnings[i / n].0.clone(),
            logprobs: Completion::new(if echo { beginnings[i / n].1 } else { 0 }),
            clock: Clock::default(),
        };
        let choices = (0..prompts.len() * n).map(choice).collect();
        let total = Total::default();
        let head = Head { id, object: "text_completion", created, model, numbers, extras };
        return Ok(sse(replies, Chunks { head, n, choices, total, timings: Value::Null }));
    }
    let texts = replies.collect().await?;
    let (mut total, mut choices) = (Total::default(), Vec::new());
    for (i, text) in texts.iter().enumerate() {
        total.add(text.usage, i % n == 0);
        let (first, hidden) = &beginnings[i / n];
        let mut logprobs = Completion::new(if echo { *hidden } else { 0 });
        text.prompt.iter().for_each(|token| logprobs.push(token.as_ref(), first));
        text.logprobs.iter().for_each(|token| logprobs.push(Some(token), &[]));
        let prompt = if echo { prompts[i / n].text.as_str() } else { "" };
        choices.push(json!({
            "index": i,
            "text": format!("{prompt}{}", text.text),
            "logprobs": logprobs.take(),
            "finish_reason": finish_reason(text.reason),
        }));
    }
    let mut value = json!({
        "id": id,
        "object": "text_completion",
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

fn parse(served: &Served, limits: &Limits, mut fields: Fields) -> Result<Completions> {
    let sequences = served.max_texts(limits);
    served.check_generates()?;
    let prompts = prompts(&mut fields, "prompt", served, sequences, true)?;
    let mut params = Params::parse(&mut fields, served, sequences)?;
    if prompts.len() * params.n > sequences {
        let message = format!("{} prompts with n = {} exceed {sequences} texts", prompts.len(), params.n);
        return Err(ApiError::invalid("n", message));
    }
    let echo = fields.boolean("echo")?.unwrap_or(false);
    // Nothing is generated where only the prompt is asked for.
    let least = i64::from(!echo);
    let max = fields.integer("max_tokens", least..=MAX_TOKENS)?;
    params.max_tokens = max.map(|n| n as usize);
    params.logprobs = fields.integer("logprobs", 0..=MAX_LOGPROBS)?.map(|n| n as usize);
    params.constraint = params::response_format(&mut fields)?;
    vllm::structured_outputs(&mut fields, &mut params)?;
    let extras = Extras::parse(&mut fields, &mut params, served)?;
    params.max_tokens.get_or_insert(DEFAULT_TOKENS);
    if let Some(best) = fields.integer("best_of", 1..=sequences as i64)?
        && best as usize != params.n
    {
        return Err(ApiError::unsupported("best_of", "best_of is supported only with the same value as n"));
    }
    let (stream, numbers) = stream(&mut fields)?;
    let extras = extras.check(stream)?;
    params::labels(&mut fields)?;
    fields.finish()?;
    Ok(Completions { params, prompts, echo, stream, numbers, extras })
}

/// Writes the chunks of a streamed response.
struct Chunks {
    head: Head,
    n: usize,
    choices: Vec<Choice>,
    total: Total,
    /// Of the reply that ended last.
    timings: Value,
}

struct Choice {
    /// The prompt, until it is sent.
    echo: Option<String>,
    /// The bytes of the prompt's first token, which has no probability.
    first: Vec<u8>,
    logprobs: Completion,
    clock: Clock,
}

impl Chunks {
    fn text(&mut self, index: usize, text: &str, finish: Option<&str>, out: &mut String) {
        let echo = self.choices[index].echo.take().unwrap_or_default();
        let logprobs = self.choices[index].logprobs.take();
        let text = format!("{echo}{text}");
        let choice = json!([{ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish }]);
        let mut chunk = self.head.chunk_at(choice, &self.choices[index].clock);
        if finish.is_some() {
            chunk["timings"] = self.timings.clone();
        }
        data(&chunk, out);
    }
}

impl Writer for Chunks {
    fn event(&mut self, index: usize, event: Event, out: &mut String) {
        self.choices[index].clock.observe(&event);
        let choice = json!([{ "index": index, "text": "", "logprobs": null, "finish_reason": null }]);
        self.head.progress(choice, &self.choices[index].clock, &event, out);
        match event {
            Event::Started { .. } | Event::Progress { .. } => {}
            Event::Prompt { logprobs } => {
                let Choice { first, logprobs: all, .. } = &mut self.choices[index];
                logprobs.iter().for_each(|token| all.push(token.as_ref(), first));
            }
            Event::Token { text, logprobs, .. } => {
                logprobs.iter().for_each(|token| self.choices[index].logprobs.push(Some(token), &[]));
                if !text.is_empty() {
                    self.text(index, &text, None, out);
                }
            }
            Event::Finished { reason, usage, timings: times, .. } => {
                self.timings = timings(usage, times);
                self.total.add(usage, index.is_multiple_of(self.n));
                self.text(index, "", Some(finish_reason(Some(reason))), out);
            }
            Event::Failed(failure) => data(&job::failed(&failure).openai(), out),
        }
    }

    fn end(&mut self, out: &mut String) {
        self.head.end(&self.total, &self.timings, out);
    }
}
