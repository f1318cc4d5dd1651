//! What vLLM's clients may add to requests, and SageMaker's names of routes, which vLLM has too.

use hologram_llm::engine::{Constraint, Logprob, MAX_TOP_LOGPROBS, TokenLogprobs};
use hyper::Response;
use serde_json::{Map, Value, json};

use crate::body::Body;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::job::Text;
use crate::llamacpp::gbnf;
use crate::openai::logprobs::{finite, text};
use crate::openai::{chat, completions, embeddings};
use crate::openapi;
use crate::params::Params;
use crate::routes::Call;

/// What an answer tells of tokens besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    /// Whether it has the numbers of the tokens.
    pub ids: bool,
    /// Whether log-probabilities name tokens by their numbers, as `token_id:42`.
    pub named_by_id: bool,
    /// Alternatives per token of the prompt to report.
    pub prompt: Option<usize>,
}

impl Told {
    /// Reads `return_token_ids`, `return_tokens_as_token_ids` and `prompt_logprobs`.
    ///
    /// # Errors
    /// Names the parameter at fault.
    pub fn parse(fields: &mut Fields, streams: bool) -> Result<Told> {
        let prompt = fields.integer("prompt_logprobs", 0..=MAX_TOP_LOGPROBS as i64)?;
        if streams && prompt.is_some() {
            return Err(ApiError::invalid(
                "prompt_logprobs",
                "a stream has no prompt_logprobs: ask for a whole answer",
            ));
        }
        Ok(Told {
            ids: fields.boolean("return_token_ids")?.unwrap_or(false),
            named_by_id: fields.boolean("return_tokens_as_token_ids")?.unwrap_or(false),
            prompt: prompt.map(|n| n as usize),
        })
    }

    /// Tokens, if they are asked for.
    pub fn ids(&self, ids: &[u32]) -> Value {
        if self.ids { json!(ids) } else { Value::Null }
    }

    /// A reply's tokens, if they are asked for.
    pub fn reply(&self, text: &Text) -> Value {
        self.ids(&[&text.ids[..], text.end.as_slice()].concat())
    }

    /// The probabilities of the prompt's tokens, if they are asked for: per token its own and those of the best, by
    /// their numbers.
    pub fn prompt(&self, tokens: &[Option<TokenLogprobs>]) -> Value {
        let Some(most) = self.prompt else { return Value::Null };
        let entry = |token: &Logprob| {
            let value = json!({ "logprob": finite(token.logprob), "rank": token.rank, "decoded_token": text(token) });
            (token.id.to_string(), value)
        };
        let of = |token: &Option<TokenLogprobs>| {
            let token = token.as_ref()?;
            Some(std::iter::once(&token.token).chain(token.top.iter().take(most)).map(entry).collect::<Map<_, _>>())
        };
        json!(tokens.iter().map(of).collect::<Vec<_>>())
    }
}

/// `stop_reason`: the text or token that ended a reply, where it is one of the request's.
pub fn stop_reason(stop: Option<&str>, end: Option<u32>, stop_tokens: &[u32]) -> Value {
    match (stop, end) {
        (Some(text), _) => text.into(),
        (None, Some(id)) if stop_tokens.contains(&id) => id.into(),
        _ => Value::Null,
    }
}

/// The most texts to choose from.
const MAX_CHOICES: usize = 1024;

/// Reads `structured_outputs`: one of a JSON schema, a regular expression, texts to choose from, or a grammar in the
/// form of llama.cpp, Lark or vLLM's backends.
///
/// # Errors
/// Names the member at fault.
pub fn structured_outputs(fields: &mut Fields, params: &mut Params) -> Result<()> {
    const NAME: &str = "structured_outputs";
    let Some(mut outputs) = fields.object(NAME)? else { return Ok(()) };
    let mut found = Vec::new();
    if let Some(schema) = outputs.take("json") {
        let schema = match schema {
            Value::String(text) => crate::json::object(text.as_bytes())
                .map_err(|e| ApiError::invalid(outputs.name("json"), e.message))?
                .into(),
            schema => schema,
        };
        found.push(Constraint::JsonSchema(schema));
    }
    found.extend(outputs.boolean("json_object")?.filter(|wanted| *wanted).map(|_| Constraint::JsonObject));
    found.extend(outputs.text("regex")?.map(Constraint::Regex));
    if let Some(choices) = outputs.list("choice")? {
        found.push(Constraint::Lark(choice(&choices, &outputs.name("choice"))?));
    }
    if let Some(grammar) = outputs.text("grammar")? {
        let lark = if grammar.contains("::=") { gbnf::to_lark(&grammar) } else { Ok(grammar) };
        found.push(Constraint::Lark(lark.map_err(|reason| ApiError::invalid(outputs.name("grammar"), reason))?));
    }
    outputs.finish()?;
    match (found.pop(), found.is_empty(), params.constraint.is_none()) {
        (Some(constraint), true, true) => {
            (params.constraint, params.constraint_name) = (Some(constraint), NAME);
            Ok(())
        }
        _ => Err(ApiError::invalid(NAME, "structured_outputs has one of json, json_object, regex, choice and grammar")),
    }
}

/// A grammar of texts to choose from.
fn choice(choices: &[Value], name: &str) -> Result<String> {
    if choices.is_empty() || choices.len() > MAX_CHOICES {
        return Err(ApiError::invalid(name, format!("{name} has from 1 to {MAX_CHOICES} texts")));
    }
    let text = |choice: &Value| match choice {
        // JSON's form of a text is Lark's.
        Value::String(text) => Ok(Value::from(text.as_str()).to_string()),
        other => Err(wrong(name, "a list of strings", other)),
    };
    let texts = choices.iter().map(text).collect::<Result<Vec<_>>>()?;
    Ok(format!("start: {}\n", texts.join(" | ")))
}

/// `POST /invocations`: what a request is for follows from what it has.
///
/// # Errors
/// As of the route that it is for, and 400 if it is for none.
pub async fn invocations(call: Call) -> Result<Response<Body>> {
    let body = crate::json::object(&call.body)?;
    let has = |name| body.get(name).is_some_and(|value: &Value| !value.is_null());
    let of = |path| Call { accepts: openapi::bodies(path).request, ..call };
    match (has("messages"), has("prompt"), has("input")) {
        (true, ..) => chat::run(of("/v1/chat/completions")).await,
        (_, true, _) => completions::run(of("/v1/completions")).await,
        (_, _, true) => embeddings::run(of("/v1/embeddings")).await,
        _ => Err(ApiError::bad_request("an invocation has messages, a prompt or an input")),
    }
}
