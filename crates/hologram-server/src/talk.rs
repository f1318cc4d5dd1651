//! A conversation, ready for the engine: what the chat routes of all protocols share.

use hologram_llm::{Conversation, Tags};
use serde_json::{Map, Value};

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::job::{self, Names};
use crate::params::Params;
use crate::reply::Splitter;
use crate::served::Served;
use crate::tools::calls::Calls;
use crate::tools::grammar::{Form, form};
use crate::tools::harmony::{CHANNEL, Harmony, MESSAGE};
use crate::tools::{Choice, Format, Tools};

/// The tag that begins thoughts.
const THINK: &str = "<think>";

/// A conversation and how to continue it.
pub struct Talk {
    /// How to continue.
    pub params: Params,
    /// The conversation's tokens.
    pub prompt: Vec<u32>,
    /// Takes replies apart.
    pub splitter: Splitter,
    /// For errors of the engine.
    pub names: Names,
}

impl Talk {
    /// Writes a conversation as the model knows it.
    ///
    /// # Errors
    /// 400 when the model has no template, or it rejects the conversation.
    pub fn new(served: &Served, mut conversation: Conversation, tools: &Tools, mut params: Params) -> Result<Talk> {
        let template = served.template()?;
        let (mut calls, mut begin) = (None, String::new());
        // For errors: what the constraint comes from.
        let (mut of_tools, mut is_free) = (false, false);
        let offers = !tools.offered().is_empty();
        if offers {
            let format = Format::of(template)?;
            let form = form(tools, format, params.constraint.as_ref(), served.tokenizer()?)?;
            if form.is_some()
                && tools.choice == Choice::Auto
                && let Some(answer) = &params.constraint
            {
                let names = Names { prompt: "messages", constraint: params.constraint_name };
                served.engine.check_constraint(answer).map_err(|e| job::rejected(e, names))?;
            }
            of_tools = form.is_some();
            if let Some(Form { begin: text, rest, is_free: free }) = form {
                (begin, is_free) = (text, free);
                params.constraint = Some(rest);
            }
            calls = Some(Calls::new(format, tools));
        }
        let mut harmony = Harmony::of(template, tools);
        if params.continues {
            // What it continues is an answer.
            harmony.iter_mut().for_each(|harmony| drop(harmony.push(&[CHANNEL, "final", MESSAGE].concat())));
        } else if let (Some(_), false, Some(_)) = (&params.constraint, offers, &harmony) {
            begin = [CHANNEL, "final", MESSAGE].concat();
        }
        conversation.tools = tools.offered().iter().map(|tool| tool.value.clone()).collect();
        let constrained = params.constraint.is_some() && !is_free;
        if constrained && template.has_thinking_switch() {
            // Thoughts have no form.
            conversation.variables.insert("enable_thinking".into(), false.into());
        }
        let mut text = match params.continues {
            true => served.render_open(&conversation)?,
            false => served.render(&conversation, true)?,
        };
        if constrained && text.text().trim_end().ends_with(THINK) {
            // The constraint holds for all that follows.
            text.push("\n\n</think>\n\n");
        }
        text.push(&begin);
        // It is part of the reply, but not of what the model adds.
        let splitter = match &mut harmony {
            Some(harmony) => {
                harmony.push(&begin);
                Splitter::Harmony(harmony.clone())
            }
            None => {
                calls.iter_mut().for_each(|calls| drop(calls.push(&begin)));
                let tags = Tags::of(template.source()).filter(|_| !constrained);
                Splitter::new(&text.text(), tags, calls)
            }
        };
        let prompt = served.encode_written(&text, false, "messages")?;
        let names = Names { prompt: "messages", constraint: if of_tools { "tools" } else { params.constraint_name } };
        // Marks of calls, channels and thoughts may be control tokens.
        params.show_control |= offers || splitter.needs_control();
        Ok(Talk { splitter, prompt, params, names })
    }
}

/// Reads the template's variables: `chat_template_kwargs`, and what `reasoning_effort` means to it.
///
/// # Errors
/// Names the parameter at fault.
pub fn variables(fields: &mut Fields, served: &Served) -> Result<Map<String, Value>> {
    let mut variables = fields.map("chat_template_kwargs")?.unwrap_or_default();
    let efforts = ["none", "minimal", "low", "medium", "high", "xhigh"];
    if let Some(effort) = fields.one_of("reasoning_effort", &efforts)? {
        effort_variables(effort, served, &mut variables).ok_or_else(|| {
            ApiError::unsupported("reasoning_effort", "the model's chat template has no such setting")
        })?;
    }
    Ok(variables)
}

/// What an effort means to the template; `None`: nothing.
pub fn effort_variables(effort: &str, served: &Served, variables: &mut Map<String, Value>) -> Option<()> {
    let template = served.template().ok()?;
    if template.source().contains("reasoning_effort") {
        variables.insert("reasoning_effort".into(), effort.into());
    } else if template.has_thinking_switch() {
        variables.insert("enable_thinking".into(), (effort != "none").into());
    } else {
        return None;
    }
    Some(())
}
