//! The parameters that requests of several protocols share, by OpenAI's names and those that vLLM and llama.cpp added.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use hologram_llm::engine::{Constraint, MAX_TOP_LOGPROBS, Request};
use hologram_llm::sampling::SamplerConfig;
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::fields::{Fields, integer, short, wrong};
use crate::served::Served;

/// Maximum stop texts of a request.
const MAX_STOPS: usize = 16;
/// Maximum bytes of a stop text.
const MAX_STOP: usize = 4096;
/// The largest number of tokens that anybody may ask for.
pub const MAX_TOKENS: i64 = 1 << 31;

/// How to continue the prompts of a request.
#[derive(Clone, Debug)]
pub struct Params {
    /// Maximum tokens of a reply.
    pub max_tokens: Option<usize>,
    /// How tokens are sampled.
    pub sampling: SamplerConfig,
    /// Replies per prompt.
    pub n: usize,
    /// Stop texts.
    pub stop: Vec<String>,
    /// Stop tokens.
    pub stop_tokens: Vec<u32>,
    /// Added to logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// Whether the model's end tokens do not end a reply.
    pub ignore_end: bool,
    /// Minimum tokens of a reply.
    pub min_tokens: usize,
    /// Alternatives per token to report.
    pub logprobs: Option<usize>,
    /// The form of the replies.
    pub constraint: Option<Constraint>,
    /// Higher runs first.
    pub priority: i32,
    /// Separates cached prefixes.
    pub salt: Option<String>,
    /// Whether replies spell out control tokens.
    pub show_control: bool,
    /// Whether the reply continues the conversation's last message.
    pub continues: bool,
    /// The parameter that gave the constraint.
    pub constraint_name: &'static str,
    /// Whether probabilities are those after sampling.
    pub sampled_probabilities: bool,
    /// Whether to hear how much of the prompt is computed.
    pub progress: bool,
    /// Whether cached beginnings are reused.
    pub reuse: bool,
    /// The slot to take if it is free.
    pub slot: Option<usize>,
    /// The time for a text with a line end, from its first token.
    pub line_timeout: Option<Duration>,
}

impl Params {
    /// Reads the shared parameters.
    ///
    /// # Errors
    /// Names the parameter at fault.
    pub fn parse(fields: &mut Fields, served: &Served, max_n: usize) -> Result<Params> {
        let defaults = SamplerConfig { temperature: 1.0, ..SamplerConfig::GREEDY };
        Params::parse_with(fields, served, max_n, defaults, 2.0)
    }

    /// As [`Params::parse`], with other defaults of temperature and filters, and up to this temperature.
    ///
    /// # Errors
    /// Names the parameter at fault.
    pub fn parse_with(
        fields: &mut Fields,
        served: &Served,
        max_n: usize,
        defaults: SamplerConfig,
        max_temperature: f64,
    ) -> Result<Params> {
        let f32_of = |n: f64| n as f32;
        let SamplerConfig { temperature, top_p, typical_p, top_k, min_p, .. } = defaults;
        let temperature = served.defaults.temperature.unwrap_or(temperature);
        let (vocab, seed) = (served.vocab(), || served.defaults.seed.unwrap_or_else(fresh_seed));
        let sampling = SamplerConfig {
            temperature: fields.number("temperature", 0.0..=max_temperature)?.map_or(temperature, f32_of),
            // Zero keeps the most probable token alone.
            top_p: fields.number("top_p", 0.0..=1.0)?.map_or(top_p, |p| f32_of(p).max(f32::MIN_POSITIVE)),
            typical_p: fields.number("typical_p", 0.0..=1.0)?.map_or(typical_p, |p| f32_of(p).max(f32::MIN_POSITIVE)),
            top_k: fields.integer("top_k", -1..=MAX_TOKENS)?.map_or(top_k, |k| usize::try_from(k).unwrap_or(0)),
            min_p: fields.number("min_p", 0.0..=1.0)?.map_or(min_p, f32_of),
            presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.map_or(0.0, f32_of),
            frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.map_or(0.0, f32_of),
            repeat_penalty: repeat_penalty(fields)?,
            seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map_or_else(seed, |seed| seed as u64),
        };
        let n = fields.integer("n", 1..=max_n as i64)?.unwrap_or(1);
        Ok(Params {
            max_tokens: None,
            sampling,
            n: n as usize,
            stop: stops(fields)?,
            stop_tokens: stop_tokens(fields, vocab)?,
            logit_bias: logit_bias(fields, vocab)?,
            ignore_end: fields.boolean("ignore_eos")?.unwrap_or(false),
            min_tokens: fields.integer("min_tokens", 0..=MAX_TOKENS)?.unwrap_or(0) as usize,
            logprobs: None,
            constraint: None,
            priority: fields.integer("priority", i32::MIN.into()..=i32::MAX.into())?.unwrap_or(0) as i32,
            salt: fields.text("cache_salt")?,
            show_control: !fields.boolean("skip_special_tokens")?.unwrap_or(true),
            continues: false,
            constraint_name: "response_format",
            sampled_probabilities: false,
            progress: false,
            reuse: true,
            slot: None,
            line_timeout: None,
        })
    }

    /// The engine's request for a reply to a prompt. Of several replies each has its own seed.
    pub fn request(&self, prompt: Vec<u32>, reply: usize) -> Request {
        let mut request = Request::new(prompt);
        request.max_tokens = self.max_tokens;
        request.sampling = SamplerConfig { seed: self.sampling.seed.wrapping_add(reply as u64), ..self.sampling };
        request.stop = self.stop.clone();
        request.stop_tokens = self.stop_tokens.clone();
        request.logit_bias = self.logit_bias.clone();
        request.ignore_end = self.ignore_end;
        request.min_tokens = self.min_tokens;
        request.logprobs = self.logprobs;
        request.constraint = self.constraint.clone();
        request.priority = self.priority;
        request.show_control = self.show_control;
        request.sampled_probabilities = self.sampled_probabilities;
        request.progress = self.progress;
        request.reuse = self.reuse;
        request.slot = self.slot;
        request.line_timeout = self.line_timeout;
        request
    }
}

/// vLLM's name or llama.cpp's.
fn repeat_penalty(fields: &mut Fields) -> Result<f32> {
    let range = 0.01..=100.0;
    let named = fields.number("repetition_penalty", range.clone())?;
    Ok(fields.number("repeat_penalty", range)?.or(named).map_or(1.0, |n| n as f32))
}

/// A seed that differs between requests.
pub fn fresh_seed() -> u64 {
    // Below 2^53, which every reader of JSON keeps.
    RandomState::new().hash_one(0) >> 11
}

fn stops(fields: &mut Fields) -> Result<Vec<String>> {
    let name = fields.name("stop");
    let list = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(text) => vec![text],
    };
    if list.len() > MAX_STOPS {
        return Err(ApiError::invalid(&name, format!("at most {MAX_STOPS} stop texts are supported")));
    }
    let text = |value: Value| match value {
        Value::String(text) if text.is_empty() => Err(ApiError::invalid(&name, "a stop text must not be empty")),
        Value::String(text) if text.len() > MAX_STOP => {
            Err(ApiError::invalid(&name, format!("a stop text must have at most {MAX_STOP} bytes")))
        }
        Value::String(text) => Ok(text),
        other => Err(wrong(&name, "a string or a list of strings", &other)),
    };
    list.into_iter().map(text).collect()
}

fn stop_tokens(fields: &mut Fields, vocab: usize) -> Result<Vec<u32>> {
    let name = fields.name("stop_token_ids");
    let list = fields.list("stop_token_ids")?.unwrap_or_default();
    if list.len() > 1024 {
        return Err(ApiError::invalid(name, "at most 1024 stop tokens are supported"));
    }
    list.iter().map(|value| token(value, &name, vocab)).collect()
}

/// A token's number.
///
/// # Errors
/// When it is not in the vocabulary.
pub fn token(value: &Value, name: &str, vocab: usize) -> Result<u32> {
    match value.as_u64().filter(|id| *id >= vocab as u64) {
        Some(id) => {
            let last = vocab.saturating_sub(1);
            Err(ApiError::invalid(name, format!("{name} has the token {id}, but the vocabulary ends at {last}")))
        }
        None => integer(value, name, 0..=vocab as i64 - 1).map(|id| id as u32),
    }
}

fn logit_bias(fields: &mut Fields, vocab: usize) -> Result<Vec<(u32, f32)>> {
    let name = fields.name("logit_bias");
    let Some(map) = fields.map("logit_bias")? else { return Ok(Vec::new()) };
    let entry = |(key, value): (String, Value)| {
        let id = key.parse::<u32>().ok().filter(|id| (*id as usize) < vocab);
        let id = id.ok_or_else(|| {
            let key: String = key.chars().take(40).collect();
            ApiError::invalid(&name, format!("{key:?} is not a token's number below {vocab}"))
        })?;
        match value.as_f64() {
            Some(bias) if (-100.0..=100.0).contains(&bias) => {
                // As OpenAI documents: a ban, not a weight.
                Ok((id, if bias == -100.0 { f32::NEG_INFINITY } else { bias as f32 }))
            }
            Some(bias) => {
                Err(ApiError::invalid(&name, format!("a bias is {}, but must be from -100 to 100", short(bias))))
            }
            None => Err(wrong(&name, "numbers by token", &value)),
        }
    };
    map.into_iter().map(entry).collect()
}

/// Reads `logprobs` and `top_logprobs` of chat completions.
///
/// # Errors
/// Names the parameter at fault.
pub fn chat_logprobs(fields: &mut Fields) -> Result<Option<usize>> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let name = fields.name("top_logprobs");
    let top = fields.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS as i64)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid(name, "top_logprobs needs logprobs: true")),
    }
}

/// Reads `response_format`.
///
/// # Errors
/// Names the member at fault.
pub fn response_format(fields: &mut Fields) -> Result<Option<Constraint>> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(None) };
    let kind = format.one_of("type", &["text", "json_object", "json_schema"])?;
    let constraint = match kind {
        None => return Err(ApiError::invalid(format.name("type"), "a response_format has a type")),
        Some("json_object") => {
            // llama.cpp's clients put a schema here.
            Some(format.take("schema").map_or(Constraint::JsonObject, Constraint::JsonSchema))
        }
        Some("json_schema") => {
            let name = format.name("json_schema");
            let Some(mut named) = format.object("json_schema")? else {
                return Err(ApiError::invalid(name, "a json_schema is required"));
            };
            let name = named.name("schema");
            let Some(schema) = named.take("schema") else {
                return Err(ApiError::invalid(name, "a schema is required"));
            };
            if !(schema.is_object() || schema.is_boolean()) {
                return Err(wrong(&name, "an object", &schema));
            }
            named.text("name")?;
            named.text("description")?;
            // The schema is always kept.
            named.boolean("strict")?;
            named.finish()?;
            Some(Constraint::JsonSchema(schema))
        }
        Some(_) => None,
    };
    format.finish()?;
    Ok(constraint)
}

/// Drops labels, which request nothing from the model, and accepts what changes nothing.
///
/// # Errors
/// Names the parameter at fault.
pub fn labels(fields: &mut Fields) -> Result<()> {
    fields.ignore(&["user", "metadata", "safety_identifier", "prompt_cache_key"]);
    // Routers write out their own settings at their defaults: sglang-router and vllm-router.
    for name in ["no_stop_trim", "return_hidden_states", "include_stop_str_in_output", "use_beam_search"] {
        fields.only(name, &[false.into()])?;
    }
    for name in ["separate_reasoning", "stream_reasoning", "include_reasoning", "spaces_between_special_tokens"] {
        fields.only(name, &[true.into()])?;
    }
    // Chat completions have read these two.
    fields.only("continue_final_message", &[false.into()])?;
    fields.only("add_generation_prompt", &[true.into()])?;
    fields.only("length_penalty", &[json!(1), json!(1.0)])?;
    fields.only("store", &[false.into()])?;
    fields.only("service_tier", &["auto".into(), "default".into()])
}
