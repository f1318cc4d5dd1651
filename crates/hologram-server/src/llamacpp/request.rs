//! The parameters of `/completion`.

use hologram_llm::engine::MAX_TOP_LOGPROBS;
use hologram_llm::sampling::{RECENT, SamplerConfig};
use serde_json::Value;

use super::extras::Extras;
use super::settings::SAMPLERS;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};
use crate::params::{self, MAX_TOKENS, Params};
use crate::prompts;
use crate::served::Served;

/// The highest temperature.
const MAX_TEMPERATURE: f64 = 1e6;
/// The most members that an answer is reduced to.
const MAX_FIELDS: usize = 128;

/// How to continue prompts.
pub struct Settings {
    pub params: Params,
    pub extras: Extras,
    pub stream: bool,
    pub returns_tokens: bool,
    /// The members of answers; empty: all.
    pub fields: Vec<String>,
}

/// Reads all parameters but the prompts.
///
/// # Errors
/// Names the parameter at fault.
pub fn settings(fields: &mut Fields, served: &Served, max_n: usize) -> Result<Settings> {
    let bias = logit_bias(fields, served)?;
    // -1 is any.
    if fields.peek("seed").and_then(Value::as_i64) == Some(-1) {
        fields.take("seed");
    }
    let several = fields.integer("n_cmpl", 1..=max_n as i64)?;
    let defaults = SamplerConfig { min_p: 0.05, ..SamplerConfig::default() };
    let mut params = Params::parse_with(fields, served, max_n, defaults, MAX_TEMPERATURE)?;
    params.n = several.map_or(params.n, |n| n as usize);
    params.logit_bias = bias;
    let older = fields.integer("max_tokens", -1..=MAX_TOKENS)?;
    let most = fields.integer("max_completion_tokens", -1..=MAX_TOKENS)?.or(older);
    let extras = Extras::parse(fields, &mut params, served)?;
    let most = most.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    params.max_tokens = params.max_tokens.or(most);
    let most = MAX_TOP_LOGPROBS as i64;
    let named = fields.integer("logprobs", 0..=most)?;
    let wanted = fields.integer("n_probs", 0..=most)?.or(named);
    params.logprobs = wanted.filter(|n| *n > 0).map(|n| n as usize);
    params.sampled_probabilities = fields.boolean("post_sampling_probs")?.unwrap_or(false);
    samplers(fields, &mut params.sampling)?;
    without_effect(fields, &mut params.sampling)?;
    if params.ignore_end && params.constraint.is_none() {
        // As llama.cpp does. A constraint needs them where it is fulfilled.
        let tokenizer = served.tokenizer()?;
        let mut ends = [tokenizer.ends(), served.engine.model().end_tokens()].concat();
        ends.sort_unstable();
        ends.dedup();
        params.logit_bias.extend(ends.into_iter().map(|id| (id, f32::NEG_INFINITY)));
    }
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let returns_tokens = fields.boolean("return_tokens")?.unwrap_or(false);
    let names = fields.list("response_fields")?.unwrap_or_default();
    if names.len() > MAX_FIELDS {
        return Err(ApiError::invalid("response_fields", format!("at most {MAX_FIELDS} fields are supported")));
    }
    let name = |value: Value| match value {
        Value::String(name) => Ok(name),
        other => Err(wrong("response_fields", "a list of strings", &other)),
    };
    let names = names.into_iter().map(name).collect::<Result<Vec<_>>>()?;
    params::labels(fields)?;
    Ok(Settings { params, extras, stream, returns_tokens, fields: names })
}

/// Reads `logit_bias`: pairs of a token or a text and a bias, in a list or an object; `false` is a ban.
fn logit_bias(fields: &mut Fields, served: &Served) -> Result<Vec<(u32, f32)>> {
    const NAME: &str = "logit_bias";
    let pairs: Vec<(Value, Value)> = match fields.take(NAME) {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => {
            let key = |key: String| key.parse::<u32>().map_or_else(|_| Value::from(key.clone()), Value::from);
            map.into_iter().map(|(token, bias)| (key(token), bias)).collect()
        }
        Some(Value::Array(list)) => {
            let pair = |value: Value| match value {
                Value::Array(pair) => <[Value; 2]>::try_from(pair).ok().map(|[token, bias]| (token, bias)),
                _ => None,
            };
            let pairs = list.into_iter().map(pair).collect::<Option<Vec<_>>>();
            pairs.ok_or_else(|| ApiError::invalid(NAME, "logit_bias must be a list of pairs or an object"))?
        }
        Some(other) => return Err(wrong(NAME, "a list of pairs or an object", &other)),
    };
    let mut biases = Vec::new();
    for (token, bias) in pairs {
        let bias = match bias {
            Value::Bool(false) => f32::NEG_INFINITY,
            Value::Number(number) => number.as_f64().unwrap_or(0.0).clamp(f32::MIN.into(), f32::MAX.into()) as f32,
            other => return Err(wrong(NAME, "numbers or false by token", &other)),
        };
        let tokens = match &token {
            Value::String(text) => served.encode_part(text, false, NAME)?,
            id => vec![params::token(id, NAME, served.vocab())?],
        };
        biases.extend(tokens.into_iter().map(|id| (id, bias)));
    }
    Ok(biases)
}

/// Reads `samplers`: those that are not named are switched off. The order is the server's.
fn samplers(fields: &mut Fields, sampling: &mut SamplerConfig) -> Result<()> {
    let Some(list) = fields.list("samplers")? else { return Ok(()) };
    let mut known = Vec::new();
    for value in &list {
        let Some(name) = value.as_str() else { return Err(wrong("samplers", "a list of strings", value)) };
        match SAMPLERS.iter().position(|own| *own == name || (*own == "typ_p" && name == "typical_p")) {
            Some(at) => known.push(at),
            // Without their parameters, which the server does not have, these do nothing.
            None if ["dry", "top_n_sigma", "xtc", "adaptive_p"].contains(&name) => {}
            None => {
                let message = format!("samplers are supported only of {}", SAMPLERS.join(", "));
                return Err(ApiError::unsupported("samplers", message));
            }
        }
    }
    if !known.is_sorted() {
        let message = format!("samplers are supported only in the order {}", SAMPLERS.join(", "));
        return Err(ApiError::unsupported("samplers", message));
    }
    let off = SamplerConfig { temperature: 1.0, seed: sampling.seed, ..SamplerConfig::GREEDY };
    let own = *sampling;
    *sampling = off;
    for at in known {
        match SAMPLERS[at] {
            "penalties" => {
                sampling.repeat_penalty = own.repeat_penalty;
                sampling.presence_penalty = own.presence_penalty;
                sampling.frequency_penalty = own.frequency_penalty;
            }
            "top_k" => sampling.top_k = own.top_k,
            "typ_p" => sampling.typical_p = own.typical_p,
            "top_p" => sampling.top_p = own.top_p,
            "min_p" => sampling.min_p = own.min_p,
            _ => sampling.temperature = own.temperature,
        }
    }
    Ok(())
}

/// Whether a number switches a parameter off.
type IsOff = fn(f64) -> bool;

/// Accepts parameters of what the server does not have where they switch it off, or belong to what is off.
fn without_effect(fields: &mut Fields, sampling: &mut SamplerConfig) -> Result<()> {
    let off: [(&str, &str, IsOff); 13] = [
        ("dynatemp_range", "0", |n| n == 0.0),
        ("top_n_sigma", "0 or less", |n| n <= 0.0),
        ("xtc_probability", "0", |n| n == 0.0),
        ("dry_multiplier", "0", |n| n == 0.0),
        ("mirostat", "0", |n| n == 0.0),
        ("adaptive_target", "a number below 0", |n| n < 0.0),
        ("n_indent", "0", |n| n == 0.0),
        ("n_discard", "0", |n| n == 0.0),
        ("n_cache_reuse", "0", |n| n == 0.0),
        ("min_keep", "0 or 1", |n| n == 0.0 || n == 1.0),
        ("repeat_last_n", "0 or 64", |n| n == 0.0 || n == RECENT as f64),
        // A full context ends a reply: nothing is shifted out of it.
        ("n_keep", "-1 or more", |n| n >= -1.0),
        ("sse_ping_interval", "15", |n| n == 15.0),
    ];
    let last = fields.peek("repeat_last_n").and_then(Value::as_f64);
    for (name, values, is_off) in off {
        if fields.number(name, f64::MIN..=f64::MAX)?.is_some_and(|n| !is_off(n)) {
            return Err(ApiError::unsupported(name, format!("{name} is supported only as {values}")));
        }
    }
    if last == Some(0.0) {
        let SamplerConfig { repeat_penalty, presence_penalty, frequency_penalty, .. } = SamplerConfig::GREEDY;
        *sampling = SamplerConfig { repeat_penalty, presence_penalty, frequency_penalty, ..*sampling };
    }
    let of_those = ["dynatemp_exponent", "xtc_threshold", "dry_base", "dry_allowed_length", "dry_penalty_last_n"];
    for name in of_those.into_iter().chain(["mirostat_tau", "mirostat_eta", "adaptive_decay"]) {
        fields.number(name, f64::MIN..=f64::MAX)?;
    }
    fields.list("dry_sequence_breakers")?;
    fields.only("lora", &[Value::Array(Vec::new())])?;
    // Where tokens are sampled is the engine's choice, and changes none.
    fields.boolean("backend_sampling")?;
    Ok(())
}

/// Reads `prompt`.
///
/// # Errors
/// Names the prompt at fault.
pub fn prompts(fields: &mut Fields, served: &Served, max: usize) -> Result<Vec<Vec<u32>>> {
    let prompts = prompts::prompts(fields, "prompt", served, max, true)?;
    Ok(prompts.into_iter().map(|prompt| prompt.tokens).collect())
}
