//! A conversation, ready for the engine: what the chat routes of all protocols share.

use hologram_llm::Conversation;
use serde_json::{Map, Value};

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::params::Params;
use crate::reply::Splitter;
use crate::served::Served;
use crate::tools::calls::Calls;
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
}

impl Talk {
    /// Writes a conversation as the model knows it.
    ///
    /// # Errors
    /// 400 when the model has no template, or it rejects the conversation.
    pub fn new(served: &Served, mut conversation: Conversation, tools: &Tools, params: Params) -> Result<Talk> {
        let template = served.template()?;
        let calls = match tools.offered() {
            [] => None,
            _ => Some(Calls::new(Format::of(template)?, tools)),
        };
        if !matches!(tools.choice, Choice::Auto | Choice::None) {
            let message = "the engine cannot require a call yet; tool_choice must be auto or none";
            return Err(ApiError::unsupported("tool_choice", message));
        }
        conversation.tools = tools.offered().iter().map(|tool| tool.value.clone()).collect();
        let constrained = params.constraint.is_some();
        if constrained && template.has_thinking_switch() {
            // Thoughts have no form.
            conversation.variables.insert("enable_thinking".into(), false.into());
        }
        let mut text = served.render(&conversation, true)?;
        if constrained && text.trim_end().ends_with(THINK) {
            // The constraint holds for all that follows.
            text += "\n\n</think>\n\n";
        }
        let thinks = template.source().contains("think>") && !constrained;
        let prompt = served.encode(&text, false, "messages")?;
        Ok(Talk { splitter: Splitter::new(&text, thinks, calls), prompt, params })
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
