//! `POST /v1/completions`.

use hologram_llm::engine::Logprob;
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
use crate::vllm::{self, Told};

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
    told: Told,
}

/// A prompt's first token, which has no probability, and how many characters of its tokens the text lacks: those of
/// BOS, and of a space that the vocabulary needs.
fn begin(prompt: &Prompt, served: &Served) -> Result<(Logprob, usize)> {
    let tokenizer = served.tokenizer()?;
    let id = prompt.tokens.first().copied().unwrap_or_default();
    let first = Logprob { id, logprob: 0.0, rank: 1, bytes: tokenizer.token_bytes(id) };
    let spelled: usize = prompt.tokens.iter().map(|id| characters(&tokenizer.token_bytes(*id))).sum();
    Ok((first, spelled.saturating_sub(prompt.text.chars().count())))
}

/// Answers a request.
///
/// # Errors
/// When it is at fault, or the engine does not take it.
pub async fn run(call: Call) -> Result<Response<Body>> {
    let (request, ready) = call.prepare(model_name, parse).await?;
    let Completions { params, prompts, echo, stream, numbers, extras, told } = request;
    let n = params.n;
    // Choice i is reply i % n to prompt i / n.
    let request = |i: usize| {
        let mut request: Request = ready.request(&params, prompts[i / n].tokens.clone(), i % n);
        request.prompt_logprobs = told.prompt.max(params.logprobs.filter(|_| echo));
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
    let most = params.logprobs.unwrap_or(0);
    if stream {
        let choice = |i: usize| Choice {
            echo: echo.then(|| prompts[i / n].text.clone()),
            first: beginnings[i / n].0.clone(),
            logprobs: Completion::new(if echo { beginnings[i / n].1 } else { 0 }, most, told.named_by_id),
            clock: Clock::default(),
            prompt_ids: told.ids.then(|| prompts[i / n].tokens.clone()),
            ids: Vec::new(),
            text: String::new(),
        };
        let choices = (0..prompts.len() * n).map(choice).collect();
        let total = Total::default();
        let head = Head { id, object: "text_completion", created, model, numbers, extras };
        let stop_tokens = params.stop_tokens;
        return Ok(sse(replies, Chunks { head, n, choices, total, told, stop_tokens, timings: Value::Null }));
    }
    let texts = replies.collect().await?;
    let (mut total, mut choices) = (Total::default(), Vec::new());
    for (i, text) in texts.iter().enumerate() {
        total.add(text.usage, i % n == 0);
        let (first, hidden) = &beginnings[i / n];
        let mut logprobs = Completion::new(if echo { *hidden } else { 0 }, most, told.named_by_id);
        if echo && params.logprobs.is_some() {
            text.prompt.iter().for_each(|token| logprobs.push(token.as_ref(), first));
        }
        text.logprobs.iter().for_each(|token| logprobs.push(Some(token), first));
        let prompt = if echo { prompts[i / n].text.as_str() } else { "" };
        choices.push(json!({
            "index": i,
            "text": format!("{prompt}{}", text.text),
            "logprobs": logprobs.take(),
            "finish_reason": finish_reason(text.reason),
            "stop_reason": vllm::stop_reason(text.stop.as_deref(), text.end, &params.stop_tokens),
            "prompt_logprobs": told.prompt(&text.prompt),
            "prompt_token_ids": told.ids(&prompts[i / n].tokens),
            "token_ids": told.reply(text),
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
    let told = Told::parse(&mut fields, stream)?;
    // Without one, a list of embeddings asks for nothing.
    fields.only("prompt_embeds", &[json!([])])?;
    params::labels(&mut fields)?;
    fields.finish()?;
    Ok(Completions { params, prompts, echo, stream, numbers, extras, told })
}

/// Writes the chunks of a streamed response.
struct Chunks {
    head: Head,
    n: usize,
    choices: Vec<Choice>,
    total: Total,
    told: Told,
    stop_tokens: Vec<u32>,
    /// Of the reply that ended last.
    timings: Value,
}

struct Choice {
    /// The prompt, until it is sent.
    echo: Option<String>,
    /// The prompt's first token, which has no probability.
    first: Logprob,
    clock: Clock,
    /// The prompt's tokens, until they are sent.
    prompt_ids: Option<Vec<u32>>,
    /// What was not sent yet: tokens, their probabilities, and their text.
    ids: Vec<u32>,
    logprobs: Completion,
    text: String,
}

impl Chunks {
    /// Sends what was not sent yet of a reply. `finish`: why it has ended.
    fn send(&mut self, index: usize, finish: Option<[Value; 2]>, out: &mut String) {
        let choice = &mut self.choices[index];
        let echo = choice.echo.take().unwrap_or_default();
        let text = format!("{echo}{}", std::mem::take(&mut choice.text));
        let (logprobs, ids) = (choice.logprobs.take(), std::mem::take(&mut choice.ids));
        let mut value = json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": null });
        if self.told.ids {
            value["token_ids"] = ids.into();
            if let Some(ids) = choice.prompt_ids.take() {
                value["prompt_token_ids"] = ids.into();
            }
        }
        let ended = finish.is_some();
        if let Some([reason, stop]) = finish {
            (value["finish_reason"], value["stop_reason"]) = (reason, stop);
        }
        let mut chunk = self.head.chunk_at(json!([value]), &choice.clock);
        if ended {
            chunk["timings"] = self.timings.clone();
        }
        data(&chunk, out);
    }
}

impl Writer for Chunks {
    fn event(&mut self, index: usize, event: Event, out: &mut String) {
        // A text's last piece goes with the reason of its end.
        if !matches!(event, Event::Finished { .. }) && !self.choices[index].text.is_empty() {
            self.send(index, None, out);
        }
        self.choices[index].clock.observe(&event);
        let choice = json!([{ "index": index, "text": "", "logprobs": null, "finish_reason": null }]);
        self.head.progress(choice, &self.choices[index].clock, &event, out);
        match event {
            Event::Started { .. } | Event::Progress { .. } => {}
            Event::Prompt { logprobs } => {
                let Choice { first, logprobs: all, .. } = &mut self.choices[index];
                logprobs.iter().for_each(|token| all.push(token.as_ref(), first));
            }
            Event::Token { text, logprobs, ids } => {
                let Choice { first, logprobs: all, ids: own, text: kept, .. } = &mut self.choices[index];
                logprobs.iter().for_each(|token| all.push(Some(token), first));
                own.extend(ids);
                *kept = text;
            }
            Event::Finished { reason, stop, end, usage, timings: times } => {
                self.timings = timings(usage, times);
                self.total.add(usage, index.is_multiple_of(self.n));
                self.choices[index].ids.extend(end);
                let stop = vllm::stop_reason(stop.as_deref(), end, &self.stop_tokens);
                self.send(index, Some([finish_reason(Some(reason)).into(), stop]), out);
            }
            Event::Failed(failure) => data(&job::failed(&failure).openai(), out),
        }
    }

    fn flush(&mut self, out: &mut String) {
        for index in 0..self.choices.len() {
            if !self.choices[index].text.is_empty() {
                self.send(index, None, out);
            }
        }
    }

    fn end(&mut self, out: &mut String) {
        self.head.end(&self.total, &self.timings, out);
    }
}
