//! Tools: which ones a request offers, how its model writes calls, and how calls are read.

mod braces;
pub mod calls;
pub mod format;
mod free;
pub mod grammar;
pub mod harmony;
mod head;
pub mod native;
mod pairs;
mod scan;

use serde_json::{Map, Value, json};

use crate::error::{ApiError, Result};
use crate::fields::{Fields, wrong};

pub use format::Format;

/// Maximum tools of a request.
const MAX_TOOLS: usize = 128;

/// Which tool a reply must call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Any or none, as the model sees fit.
    #[default]
    Auto,
    /// None.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// A function that a reply may call.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// As templates see it.
    pub value: Value,
    /// Whether its arguments keep their schema also where the model may call it or not.
    pub strict: bool,
}

impl Tool {
    /// A tool.
    ///
    /// # Errors
    /// When its name or schema is faulty; `param` is its own name.
    pub fn new(name: String, description: Option<String>, parameters: Option<Value>, param: &str) -> Result<Tool> {
        let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if !(1..=128).contains(&name.len()) || !name.chars().all(valid) {
            let message = "a function's name has 1 to 128 letters, digits, underscores, dashes and dots";
            return Err(ApiError::invalid(format!("{param}.name"), message));
        }
        let parameters = parameters.unwrap_or_else(|| json!({ "type": "object", "properties": {} }));
        if !parameters.is_object() {
            return Err(wrong(&format!("{param}.parameters"), "an object", &parameters));
        }
        let mut function = Map::new();
        function.insert("name".into(), name.clone().into());
        function.extend(description.map(|text| ("description".into(), text.into())));
        function.insert("parameters".into(), parameters);
        Ok(Tool { name, value: json!({ "type": "function", "function": function }), strict: false })
    }

    /// The JSON schema of its arguments.
    pub fn parameters(&self) -> &Value {
        &self.value["function"]["parameters"]
    }
}

/// The tools of a request.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    /// The tools.
    pub list: Vec<Tool>,
    /// Which must be called.
    pub choice: Choice,
    /// Whether a reply may call several.
    pub parallel: bool,
}

impl Tools {
    /// Tools, checked.
    ///
    /// # Errors
    /// When there are too many, two have the same name, or the chosen one is missing.
    pub fn new(list: Vec<Tool>, choice: Choice, parallel: bool) -> Result<Tools> {
        if list.len() > MAX_TOOLS {
            return Err(ApiError::invalid("tools", format!("at most {MAX_TOOLS} tools are supported")));
        }
        if let Some(tool) = list.iter().enumerate().find(|(i, t)| list[..*i].iter().any(|other| other.name == t.name)) {
            return Err(ApiError::invalid("tools", format!("two tools have the name {}", tool.1.name)));
        }
        match &choice {
            Choice::Named(name) if !list.iter().any(|tool| tool.name == *name) => {
                Err(ApiError::invalid("tool_choice", format!("there is no tool {name:?}")))
            }
            Choice::Required if list.is_empty() => {
                Err(ApiError::invalid("tool_choice", "there are no tools to choose"))
            }
            _ => Ok(Tools { list, choice, parallel }),
        }
    }

    /// Those that the model hears of.
    pub fn offered(&self) -> &[Tool] {
        match self.choice {
            Choice::None => &[],
            _ => &self.list,
        }
    }

    /// Reads `tools`, `tool_choice` and `parallel_tool_calls` of OpenAI's chat completions.
    ///
    /// # Errors
    /// Names the member at fault.
    pub fn parse(fields: &mut Fields) -> Result<Tools> {
        let list = fields.list("tools")?.unwrap_or_default();
        let list = list.into_iter().enumerate().map(|(i, value)| {
            let mut tool = Fields::of(value, &format!("tools[{i}]"))?.known_as("Tool");
            tool.one_of("type", &["function"])?;
            let name = tool.name("function");
            let Some(function) = tool.object("function")? else {
                return Err(ApiError::invalid(name, "a tool has a function"));
            };
            tool.finish()?;
            function_of(function, &name)
        });
        let list = list.collect::<Result<Vec<_>>>()?;
        let choice = match fields.take("tool_choice") {
            None => Choice::Auto,
            Some(Value::String(word)) => word_of(&word)?,
            Some(value) => {
                let mut choice = Fields::of(value, "tool_choice")?;
                choice.one_of("type", &["function"])?;
                let mut function = choice.object("function")?;
                let name = match &mut function {
                    Some(function) => function.text("name")?,
                    None => choice.text("name")?,
                };
                function.map_or(Ok(()), Fields::finish)?;
                choice.finish()?;
                Choice::Named(name.ok_or_else(|| ApiError::invalid("tool_choice", "the choice has a function's name"))?)
            }
        };
        let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
        Tools::new(list, choice, parallel)
    }
}

/// Reads a function's `name`, `description`, `parameters` and `strict`.
///
/// # Errors
/// Names the member at fault.
pub fn function_of(mut function: Fields, param: &str) -> Result<Tool> {
    let Some(name) = function.text("name")? else {
        return Err(ApiError::invalid(format!("{param}.name"), "a function has a name"));
    };
    let tool = Tool::new(name, function.text("description")?, function.take("parameters"), param)?;
    let strict = function.boolean("strict")?.unwrap_or(false);
    function.finish()?;
    Ok(Tool { strict, ..tool })
}

/// A choice by its word.
///
/// # Errors
/// When there is no such word.
pub fn word_of(word: &str) -> Result<Choice> {
    match word {
        "auto" => Ok(Choice::Auto),
        "none" => Ok(Choice::None),
        "required" => Ok(Choice::Required),
        _ => Err(ApiError::invalid("tool_choice", "tool_choice must be auto, none, required or a function")),
    }
}

/// The inside of a JSON string with this text.
fn json_text(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].into()
}

/// Bytes at the end of a text that one of the marks may begin with.
fn held(text: &str, marks: &[&str]) -> usize {
    let of = |mark: &&str| mark.char_indices().map(|(n, _)| n).rev().find(|n| text.ends_with(&mark[..*n])).unwrap_or(0);
    marks.iter().map(of).max().unwrap_or(0)
}
