//! What llama.cpp's clients may add to a request of any form.

use std::time::Duration;

use hologram_llm::engine::Constraint;
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::params::{MAX_TOKENS, Params};
use crate::served::Served;

/// What an answer tells besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras {
    /// Whether each chunk has the times so far.
    pub timings: bool,
    /// Whether chunks tell how much of the prompt is computed.
    pub progress: bool,
    /// Whether the answer has llama.cpp's own form too, as `__verbose`.
    pub verbose: bool,
}

impl Extras {
    /// Rejects what an answer of OpenAI's form does not have when it is streamed.
    ///
    /// # Errors
    /// Names the parameter.
    pub fn check(self, stream: bool) -> Result<Extras> {
        match stream && self.verbose {
            true => Err(ApiError::unsupported("verbose", "verbose is supported only without stream")),
            false => Ok(self),
        }
    }

    /// Reads llama.cpp's parameters. What OpenAI's say counts first.
    ///
    /// # Errors
    /// Names the parameter at fault.
    pub fn parse(fields: &mut Fields, params: &mut Params, served: &Served) -> Result<Extras> {
        let slots = served.engine.options().max_sequences as i64;
        // All slots share one cache: whatever the slot, a known beginning is reused.
        params.slot = fields.integer("id_slot", -1..=slots - 1)?.and_then(|slot| usize::try_from(slot).ok());
        params.reuse = fields.boolean("cache_prompt")?.unwrap_or(true);
        // -1 is no limit but the context.
        let most = fields.integer("n_predict", -1..=MAX_TOKENS)?.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        params.max_tokens = params.max_tokens.or(most);
        let time = fields.integer("t_max_predict_ms", -1..=i64::MAX)?.and_then(|ms| u64::try_from(ms).ok());
        params.line_timeout = time.filter(|ms| *ms > 0).map(Duration::from_millis);
        constraint(fields, params)?;
        params.progress = fields.boolean("return_progress")?.unwrap_or(false);
        Ok(Extras {
            timings: fields.boolean("timings_per_token")?.unwrap_or(false),
            progress: params.progress,
            verbose: fields.boolean("verbose")?.unwrap_or(false),
        })
    }
}

/// Reads `json_schema` and `grammar`.
fn constraint(fields: &mut Fields, params: &mut Params) -> Result<()> {
    let schema = fields.take("json_schema").map(|schema| match schema {
        // Any object.
        Value::Object(map) if map.is_empty() => json!({ "type": "object" }),
        schema => schema,
    });
    // An empty grammar is none.
    let grammar = fields.text("grammar")?.filter(|text| !text.trim().is_empty());
    let (name, found) = match (schema, grammar) {
        (None, None) => return Ok(()),
        (Some(_), Some(_)) => return Err(ApiError::invalid("grammar", "give a grammar or a json_schema, not both")),
        (Some(schema), None) => ("json_schema", Constraint::JsonSchema(schema)),
        (None, Some(grammar)) => {
            ("grammar", Constraint::gbnf(&grammar).map_err(|reason| ApiError::invalid("grammar", reason))?)
        }
    };
    if params.constraint.is_some() {
        return Err(ApiError::invalid(name, format!("give {name} or response_format, not both")));
    }
    (params.constraint, params.constraint_name) = (Some(found), name);
    Ok(())
}
