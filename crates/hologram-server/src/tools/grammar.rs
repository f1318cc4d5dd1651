//! Grammars of replies with calls, in the format of the model: of calls that must be made, of replies that are either
//! calls or an answer with a schema, and of free texts in which calls keep their schemas.

use hologram_llm::engine::Constraint;
use hologram_llm::tokenizer::{TokenType, Tokenizer};
use serde_json::{Value, json};

use super::format::deepseek;
use super::free::loosened;
use super::pairs::{Kind, Tags};
use super::{Choice, Format, Tool, Tools, harmony};
use crate::error::{ApiError, Result};

/// Most calls of a reply that must have some.
const MAX_CALLS: usize = 8;

/// A form of replies.
#[derive(Debug)]
pub struct Form {
    /// The beginning of the reply, which the model is given.
    pub begin: String,
    /// The rest.
    pub rest: Constraint,
    /// Whether the reply may be any text, in which only calls have a form.
    pub is_free: bool,
}

/// The form of a reply. `answer`: the form of its text if it calls nothing. `None`: it is free.
///
/// # Errors
/// 400 when the format has no form for a tool's schema.
pub fn form(tools: &Tools, format: Format, answer: Option<&Constraint>, tokenizer: &Tokenizer) -> Result<Option<Form>> {
    let is_free = tools.choice == Choice::Auto && answer.is_none();
    let required = match tools.choice {
        Choice::Auto if is_free && !tools.list.iter().any(|tool| tool.strict) => return Ok(None),
        Choice::None => return Ok(None),
        Choice::Auto => false,
        Choice::Required | Choice::Named(_) => true,
    };
    let mut grammar = Grammar { tokenizer, rules: String::new(), count: 0, any: None };
    let chosen = |tool: &&Tool| !matches!(&tools.choice, Choice::Named(name) if *name != tool.name);
    let kept = |tool: &Tool| if is_free && !tool.strict { loosened(tool, format) } else { tool.clone() };
    let calls: Vec<String> =
        tools.list.iter().filter(chosen).map(|tool| grammar.call(&kept(tool), format)).collect::<Result<_>>()?;
    let call = grammar.rule(&calls.join(" | "));
    let most = if tools.parallel && !matches!(tools.choice, Choice::Named(_)) { MAX_CALLS } else { 1 };
    let calls = grammar.calls(&call, format, most);
    let opened = grammar.marks(begin(format));
    let start = match answer {
        None if is_free => grammar.free(&calls, format),
        Some(answer) if !required => {
            let answer = match answer {
                Constraint::JsonObject => "%json {\"type\": \"object\"}".to_string(),
                Constraint::JsonSchema(schema) => format!("%json {schema}"),
                _ => return Err(ApiError::unsupported("response_format", "it cannot be combined with tools")),
            };
            let answer = grammar.rule(&answer);
            let head = match format {
                Format::Harmony => grammar.marks(&[harmony::CHANNEL, "final", harmony::MESSAGE]),
                _ => String::new(),
            };
            format!("{head} {answer} | {opened} {calls}")
        }
        _ => format!("{} {calls}", grammar.marks(&begin(format)[given(format)..])),
    };
    let rest = Constraint::Lark(format!("start: {start}\n{}", grammar.rules));
    let begin = if required { begin(format)[..given(format)].concat() } else { String::new() };
    Ok(Some(Form { begin, rest, is_free }))
}

/// What calls begin with, up to where they differ.
pub(super) fn begin(format: Format) -> &'static [&'static str] {
    match format {
        Format::Hermes => &["<tool_call>", "\n{\"name\": \""],
        Format::Llama => &["{\"name\": \""],
        Format::Mistral | Format::MistralArgs => &["[TOOL_CALLS]"],
        Format::Coder => &["<tool_call>", "\n<function="],
        Format::Glm => &["<tool_call>"],
        Format::DeepSeek => &[deepseek::BEGIN, deepseek::CALL],
        Format::DeepSeekFenced => &[deepseek::BEGIN, deepseek::CALL, "function", deepseek::SEPARATOR],
        Format::Gemma => &["<|tool_call>", "call:"],
        Format::FunctionGemma => &["<start_function_call>", "call:"],
        Format::Harmony => &[harmony::CHANNEL, "commentary to=functions."],
    }
}

/// How much of [`begin`] is given to the model: its first tokens. The rest may be one token with what follows.
fn given(format: Format) -> usize {
    match format {
        Format::Llama => 0,
        Format::DeepSeek | Format::DeepSeekFenced => 2,
        _ => 1,
    }
}

/// A grammar in Lark's format that is being written.
pub(super) struct Grammar<'a> {
    tokenizer: &'a Tokenizer,
    rules: String,
    count: usize,
    /// The rule of any value in Gemma's notation.
    any: Option<String>,
}

/// A text as Lark has it.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

impl Grammar<'_> {
    /// Adds a rule. Returns its name.
    pub(super) fn rule(&mut self, body: &str) -> String {
        self.count += 1;
        let name = format!("r{}", self.count);
        self.rules += &format!("{name}: {body}\n");
        name
    }

    /// A text that is a control token if the vocabulary has it as one.
    pub(super) fn mark(&self, text: &str) -> String {
        self.control(text).unwrap_or_else(|| literal(text))
    }

    /// Several of them.
    pub(super) fn marks(&self, texts: &[&str]) -> String {
        texts.iter().map(|text| self.mark(text)).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn control(&self, text: &str) -> Option<String> {
        let id = self.tokenizer.token_id(text)?;
        let is_control = matches!(self.tokenizer.token_type(id), Some(TokenType::Control | TokenType::Unknown));
        is_control.then(|| format!("<[{id}]>"))
    }

    /// Any text up to a mark, and the mark.
    pub(super) fn text_until(&mut self, mark: &str) -> String {
        self.count += 1;
        let name = format!("r{}", self.count);
        match self.control(mark) {
            // Text never contains control tokens.
            Some(token) => self.rules += &format!("{name}: /(?s:.*)/ {token}\n"),
            None => self.rules += &format!("{name}[suffix={}]: /(?s:.*)/\n", literal(mark)),
        }
        name
    }

    /// Adds a terminal, which is matched as a whole. Returns its name.
    pub(super) fn terminal(&mut self, body: &str) -> String {
        self.count += 1;
        let name = format!("T{}", self.count);
        self.rules += &format!("{name}: {body}\n");
        name
    }

    /// A call without its format's [`begin`].
    fn call(&mut self, tool: &Tool, format: Format) -> Result<String> {
        let (name, schema) = (&tool.name, tool.parameters());
        let json = format!("%json {schema}");
        let body = match format {
            Format::Hermes | Format::Llama => {
                let key = format.arguments();
                let arguments = self.rule(&json);
                let end = if format == Format::Llama { "\"}\"".into() } else { self.marks(&["}\n", "</tool_call>"]) };
                format!("{} {arguments} {end}", literal(&format!("{name}\", \"{key}\": ")))
            }
            Format::Mistral => {
                let head = literal(&format!("{{\"name\": \"{name}\", \"arguments\": "));
                format!("{head} {} \"}}\"", self.rule(&json))
            }
            Format::MistralArgs => format!("{} {} {}", literal(name), self.mark("[ARGS]"), self.rule(&json)),
            Format::DeepSeek => {
                let (separator, end) = (self.mark(deepseek::SEPARATOR), self.mark(deepseek::CALL_END));
                format!("{} {separator} {} {end}", literal(name), self.rule(&json))
            }
            Format::DeepSeekFenced => {
                let head = literal(&format!("{name}\n{}\n", deepseek::FENCE));
                format!("{head} {} \"\\n```\" {}", self.rule(&json), self.mark(deepseek::CALL_END))
            }
            Format::Coder => {
                let head = literal(&format!("{name}>\n"));
                let end = self.marks(&["</function>\n", "</tool_call>"]);
                format!("{head} {} {end}", self.pairs(tool, Tags::Coder)?)
            }
            Format::Glm => {
                let head = literal(&format!("{name}\n"));
                format!("{head} {} {}", self.pairs(tool, Tags::Glm)?, self.mark("</tool_call>"))
            }
            Format::Gemma | Format::FunctionGemma => {
                let object = self.braces(schema, format, tool, 0)?;
                let end = if format == Format::Gemma { "<tool_call|>" } else { "<end_function_call>" };
                format!("{} {object} {}", literal(name), self.mark(end))
            }
            Format::Harmony => {
                let (constrain, message) = (self.mark("<|constrain|>"), self.mark(harmony::MESSAGE));
                format!("{} {constrain} \"json\" {message} {}", literal(&format!("{name} ")), self.rule(&json))
            }
        };
        Ok(self.rule(&body))
    }

    /// Several calls without the first one's [`begin`].
    fn calls(&mut self, call: &str, format: Format, most: usize) -> String {
        let separator = match format {
            Format::Hermes | Format::Coder | Format::Glm => literal("\n"),
            Format::Llama => literal("; "),
            _ => String::new(),
        };
        let begin = match format {
            Format::Mistral => literal(", "),
            Format::DeepSeek => self.mark(deepseek::CALL),
            Format::DeepSeekFenced => self.marks(&["\n", deepseek::CALL, "function", deepseek::SEPARATOR]),
            _ => self.marks(begin(format)),
        };
        let more = match most {
            // A message has one call, and its end ends the reply.
            _ if format == Format::Harmony => String::new(),
            1 => String::new(),
            most => {
                let further = self.rule(&format!("{separator} {begin} {call}"));
                format!("{further}{{0,{}}}", most - 1)
            }
        };
        let body = match format {
            Format::Mistral => format!("\" \"? \"[\" {call} {more} \"]\""),
            Format::DeepSeek | Format::DeepSeekFenced => format!("{call} {more} {}", self.mark(deepseek::END)),
            _ => format!("{call} {more}"),
        };
        self.rule(&body)
    }

    /// Arguments in tags.
    fn pairs(&mut self, tool: &Tool, tags: Tags) -> Result<String> {
        let line = if tags == Tags::Coder { "\n" } else { "" };
        let mut pairs = Vec::new();
        for (key, schema, required) in properties(tool.parameters(), tool)? {
            let head = match tags {
                Tags::Coder => literal(&format!("{}{key}>\n", tags.key())),
                Tags::Glm => self.marks(&[tags.key(), key, tags.between()[0], "\n", tags.between()[1]]),
            };
            let end = match tags {
                Tags::Coder => literal(&format!("\n{}", tags.value_end())),
                Tags::Glm => self.mark(tags.value_end()),
            };
            let value = match (Kind::of(schema), listed(schema)) {
                (Kind::Text, None) => self.text_until(&format!("{line}{}", tags.value_end())),
                (Kind::Text, Some(values)) => {
                    let values: Vec<String> = values.iter().filter_map(|v| Some(literal(v.as_str()?))).collect();
                    format!("{} {end}", self.rule(&values.join(" | ")))
                }
                _ => {
                    let schema = with_definitions(schema, tool.parameters());
                    format!("{} {end}", self.rule(&format!("%json {schema}")))
                }
            };
            let pair = self.rule(&format!("{head} {value} \"\\n\""));
            pairs.push(if required { pair } else { format!("{pair}?") });
        }
        Ok(self.rule(&if pairs.is_empty() { "\"\"".to_string() } else { pairs.join(" ") }))
    }

    /// An object in Gemma's notation, its keys sorted as templates sort them.
    fn braces(&mut self, schema: &Value, format: Format, tool: &Tool, depth: usize) -> Result<String> {
        let mut members = properties(schema, tool)?;
        members.sort_by_key(|(key, ..)| key.to_lowercase());
        // Written from the end: what may follow where a member was written, and where none was.
        let (mut after, mut first) = (self.rule("\"\""), self.rule("\"\""));
        for (key, value, required) in members.into_iter().rev() {
            let value = self.value(value, format, tool, depth + 1)?;
            let member = self.rule(&format!("{} {value}", literal(&format!("{key}:"))));
            let skipped = |other: &str| if required { String::new() } else { format!(" | {other}") };
            let next_first = format!("{member} {after}{}", skipped(&first));
            let next_after = format!("\",\" {member} {after}{}", skipped(&after));
            (after, first) = (self.rule(&next_after), self.rule(&next_first));
        }
        Ok(self.rule(&format!("\"{{\" {first} \"}}\"")))
    }

    /// A value in Gemma's notation.
    fn value(&mut self, schema: &Value, format: Format, tool: &Tool, depth: usize) -> Result<String> {
        let unsupported = |what: &str| {
            let message =
                format!("the form of the model's tool calls cannot keep {what} in the schema of {}", tool.name);
            Err(ApiError::unsupported("tools", message))
        };
        if depth > 16 {
            return unsupported("so much nesting");
        }
        if let Some(values) = listed(schema) {
            let values: Vec<String> = values.iter().map(|value| self.constant(value, format)).collect();
            return Ok(self.rule(&values.join(" | ")));
        }
        if let Some(all) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
            let all = all.iter().map(|one| self.value(one, format, tool, depth + 1)).collect::<Result<Vec<_>>>()?;
            return Ok(self.rule(&all.join(" | ")));
        }
        if let Some(types) = schema["type"].as_array() {
            let mut all = Vec::new();
            for of_type in types {
                let mut one = schema.clone();
                one["type"] = of_type.clone();
                all.push(self.value(&one, format, tool, depth + 1)?);
            }
            return Ok(self.rule(&all.join(" | ")));
        }
        let limits = |keys: &[&str]| keys.iter().find(|key| schema.get(*key).is_some()).map(|key| key.to_string());
        match schema["type"].as_str() {
            Some("string") => match limits(&["pattern", "format", "minLength", "maxLength"]) {
                Some(key) => unsupported(&key),
                None => Ok(self.text(format)),
            },
            Some("number" | "integer" | "boolean" | "null") => Ok(self.rule(&format!("%json {schema}"))),
            Some("array") => {
                if let Some(key) = limits(&["prefixItems", "contains", "uniqueItems"]) {
                    return unsupported(&key);
                }
                let item = match schema.get("items") {
                    Some(items) => self.value(items, format, tool, depth + 1)?,
                    None => self.any(format),
                };
                let least = schema["minItems"].as_u64().unwrap_or(0);
                let most = schema["maxItems"].as_u64().map(|most| most.saturating_sub(1).to_string());
                if schema["maxItems"] == 0 {
                    return Ok(literal("[]"));
                }
                let further = self.rule(&format!("\",\" {item}"));
                let items = format!("{item} {further}{{{},{}}}", least.saturating_sub(1), most.unwrap_or_default());
                let items = self.rule(&items);
                Ok(self.rule(&format!("\"[\" {items}{} \"]\"", if least == 0 { "?" } else { "" })))
            }
            Some("object") if schema.get("properties").is_some() => self.braces(schema, format, tool, depth),
            _ => {
                let harmless = ["description", "title", "type", "default", "examples"];
                let other = schema.as_object().and_then(|all| all.keys().find(|key| !harmless.contains(&key.as_str())));
                match other {
                    Some(key) => unsupported(&key.clone()),
                    None => Ok(self.any(format)),
                }
            }
        }
    }

    /// A quoted text.
    fn text(&mut self, format: Format) -> String {
        let (begin, rest) = (self.mark(format.quote()), self.text_until(format.quote()));
        self.rule(&format!("{begin} {rest}"))
    }

    /// Any value.
    fn any(&mut self, format: Format) -> String {
        if let Some(rule) = &self.any {
            return rule.clone();
        }
        let text = self.text(format);
        self.rules += &format!(
            "any: {text} | %json {{\"type\": [\"number\", \"boolean\", \"null\"]}} | \"[\" (any (\",\" any)*)? \"]\" \
             | \"{{\" (any_member (\",\" any_member)*)? \"}}\"\nany_member: /[A-Za-z_][A-Za-z0-9_]*/ \":\" any\n"
        );
        self.any.insert("any".into()).clone()
    }

    /// This value.
    fn constant(&self, value: &Value, format: Format) -> String {
        let quote = self.mark(format.quote());
        match value {
            Value::String(text) => format!("{quote} {} {quote}", literal(text)),
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| self.constant(item, format)).collect();
                format!("\"[\" {} \"]\"", items.join(" \",\" "))
            }
            Value::Object(members) => {
                let member = |(key, value): (&String, &Value)| {
                    format!("{} {}", literal(&format!("{key}:")), self.constant(value, format))
                };
                let members: Vec<String> = members.iter().map(member).collect();
                format!("\"{{\" {} \"}}\"", members.join(" \",\" "))
            }
            other => literal(&other.to_string()),
        }
    }
}

/// The values that a schema lists.
fn listed(schema: &Value) -> Option<Vec<Value>> {
    schema.get("const").map(|value| vec![value.clone()]).or(schema["enum"].as_array().cloned())
}

/// The properties of an object's schema: keys, schemas, and whether they are required.
///
/// # Errors
/// 400 when the schema says more than that.
fn properties<'a>(schema: &'a Value, tool: &Tool) -> Result<Vec<(&'a str, &'a Value, bool)>> {
    const KNOWN: [&str; 12] = [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "description",
        "title",
        "default",
        "examples",
        "$defs",
        "definitions",
        "$schema",
        "$id",
    ];
    let other = schema.as_object().and_then(|all| all.keys().find(|key| !KNOWN.contains(&key.as_str())));
    if let Some(key) = other {
        let message = format!("the form of the model's tool calls cannot keep {key} in the schema of {}", tool.name);
        return Err(ApiError::unsupported("tools", message));
    }
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let all = schema["properties"].as_object().into_iter().flatten();
    let members: Vec<_> = all.map(|(key, value)| (&**key, value, required.contains(&&**key))).collect();
    match required.iter().find(|key| !members.iter().any(|(known, ..)| known == *key)) {
        Some(key) => {
            let message = format!("the schema of {} requires {key}, which is none of its properties", tool.name);
            Err(ApiError::unsupported("tools", message))
        }
        None => Ok(members),
    }
}

/// A property's schema, with the definitions of the whole.
fn with_definitions(schema: &Value, whole: &Value) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(members) = &mut schema {
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = whole.get(key) {
                members.entry(key).or_insert_with(|| definitions.clone());
            }
        }
    } else if schema == json!(true) {
        schema = json!({});
    }
    schema
}
