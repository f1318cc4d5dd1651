//! Chat templates turn a conversation into the text format that a model was trained on.
//!
//! Templates are Jinja, from the key `tokenizer.chat_template` of a GGUF file, or from a folder's `chat_template.jinja`
//! or `tokenizer_config.json`. They see what the transformers library gives them: `messages`, `add_generation_prompt`,
//! the special tokens, `tools`, `documents` (none), further variables, `raise_exception`, `strftime_now`, Python's
//! string and dictionary methods, and `tojson` as Python writes JSON.

mod bounds;
mod python;
mod source;
mod thinking;
mod written;

use std::collections::BTreeMap;
use std::error::Error as _;
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value};

use serde_json::{Map, Value as Json, json};

pub use thinking::{Part, Tags, Thoughts};
pub use written::Written;

use crate::error::{LlmError, Result};
use crate::gguf::GgufFile;
use crate::tokenizer::Tokenizer;
use crate::tokenizer::json::{named_token, read, read_settings};

/// Maximum steps of a template: many times those of long conversations.
const FUEL: u64 = 2_000_000;

/// A turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The speaker: `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A turn.
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into() }
    }
}

/// What a template sees of a request, in the JSON of OpenAI's interface.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// The messages: objects with `role`, `content` and, in a conversation with tools, `tool_calls`, whose arguments
    /// are objects, and `tool_call_id`.
    pub messages: Vec<Json>,
    /// The tools, each `{"type": "function", "function": {…}}`; empty for none.
    pub tools: Vec<Json>,
    /// Further variables, such as `enable_thinking`. They replace the template's special tokens, but not the members
    /// above.
    pub variables: Map<String, Json>,
}

impl From<&[Message]> for Conversation {
    fn from(messages: &[Message]) -> Conversation {
        let message = |m: &Message| json!({ "role": m.role, "content": m.content });
        Conversation { messages: messages.iter().map(message).collect(), ..Conversation::default() }
    }
}

/// A compiled chat template.
pub struct ChatTemplate {
    /// For error messages.
    path: PathBuf,
    source: String,
    environment: Environment<'static>,
    /// `bos_token`, `eos_token` and so on.
    tokens: BTreeMap<String, String>,
    note: Option<&'static str>,
    /// `enable_thinking`, unless the template's own default holds.
    thinking: Option<bool>,
    /// Whether the template asks for it.
    thinks: bool,
}

/// The format of models that have ChatML's tokens, used where a model has no template.
const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\
                      {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The name of an environment's only template.
const NAME: &str = "chat";

/// The variable that turns a reasoning model's thoughts on and off.
const ENABLE_THINKING: &str = "enable_thinking";

/// The special tokens that templates may name.
const TOKENS: [&str; 4] = ["bos_token", "eos_token", "unk_token", "pad_token"];

impl ChatTemplate {
    /// Compiles a template. `path` is for error messages; `tokens` holds `bos_token`, `eos_token` and so on.
    ///
    /// # Errors
    /// When its syntax is wrong, or it is longer than 256 KiB.
    pub fn new(path: &Path, source: &str, tokens: BTreeMap<String, String>) -> Result<ChatTemplate> {
        if source.len() > bounds::MAX_SOURCE {
            let reason = format!("is longer than {} KiB", bounds::MAX_SOURCE >> 10);
            return Err(LlmError::Template { path: path.into(), reason });
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| fault(path, &e))?);
        environment.set_fuel(Some(FUEL));
        bounds::install(&mut environment);
        environment.add_function("strftime_now", python::strftime_now);
        environment.add_function(
            "raise_exception",
            |message: String| -> std::result::Result<Value, minijinja::Error> {
                let rejected = Rejected(message);
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, rejected.0.clone()).with_source(rejected))
            },
        );
        let thinks = source.contains(ENABLE_THINKING);
        let original = source.to_string();
        let source = source::prepare(source).map_err(|reason| LlmError::Template { path: path.into(), reason })?;
        let environment = bounds::on_a_stack(move || {
            environment.add_template_owned(NAME, source)?;
            Ok(environment)
        });
        let environment = environment.map_err(|e| fault(path, &e))?;
        Ok(ChatTemplate {
            path: path.into(),
            source: original,
            environment,
            tokens,
            note: None,
            thinking: None,
            thinks,
        })
    }

    /// The template of a GGUF file; where it has none, ChatML if the vocabulary has ChatML's tokens.
    ///
    /// # Errors
    /// When its syntax is wrong, or there is none.
    pub fn from_gguf(file: &GgufFile, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        let token = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).map(String::from);
        let tokens = [("bos_token", token(tokenizer.bos())), ("eos_token", token(tokenizer.eos()))];
        let tokens = tokens.into_iter().filter_map(|(name, text)| Some((name.to_string(), text?))).collect();
        let own = match file.get_opt::<&str>("tokenizer.chat_template")? {
            Some(own) => Some(own),
            None => file.get_opt::<&str>("tokenizer.chat_template.default")?,
        };
        match own {
            Some(source) => ChatTemplate::new(file.path(), source, tokens),
            None => ChatTemplate::chatml(file.path(), tokenizer, tokens),
        }
    }

    /// The template of a folder: `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`; where it has
    /// none, ChatML if the vocabulary has ChatML's tokens.
    ///
    /// # Errors
    /// When its syntax is wrong, there is none, or a file cannot be read.
    pub fn from_folder(folder: impl AsRef<Path>, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        let folder = folder.as_ref();
        let path = folder.join("tokenizer_config.json");
        let settings = read_settings(&path)?.unwrap_or_default();
        let text = |name: &str| Some((name.to_string(), named_token(&settings, name)?.to_string()));
        let tokens = TOKENS.iter().filter_map(|name| text(name)).collect();
        let file = folder.join("chat_template.jinja");
        if let Some(bytes) = read(&file)? {
            let source = String::from_utf8(bytes);
            let source =
                source.map_err(|_| LlmError::Template { path: file.clone(), reason: "is not UTF-8".into() })?;
            return ChatTemplate::new(&file, &source, tokens);
        }
        // A string, or several with their names.
        let named = |list: &serde_json::Value| {
            let list = list.as_array()?;
            let default = list.iter().find(|t| t["name"] == "default").or(list.first())?;
            Some(default["template"].as_str()?.to_string())
        };
        let Some(template) = settings.get("chat_template").filter(|t| !t.is_null()) else {
            return ChatTemplate::chatml(folder, tokenizer, tokens);
        };
        match template.as_str().map(String::from).or_else(|| named(template)) {
            Some(source) => ChatTemplate::new(&path, &source, tokens),
            None => {
                let reason = "must be a string or a list of named templates".into();
                Err(LlmError::Template { path, reason })
            }
        }
    }

    fn chatml(path: &Path, tokenizer: &Tokenizer, tokens: BTreeMap<String, String>) -> Result<ChatTemplate> {
        let has = |text: &str| tokenizer.token_id(text).is_some();
        if !(has("<|im_start|>") && has("<|im_end|>")) {
            return Err(LlmError::NoTemplate { path: path.into() });
        }
        let note = Some("the model has no chat template; using ChatML because its vocabulary has ChatML's tokens");
        Ok(ChatTemplate { note, ..ChatTemplate::new(path, CHATML, tokens)? })
    }

    /// A warning for the user: what was assumed because the model does not specify it.
    pub fn note(&self) -> Option<&str> {
        self.note
    }

    /// Turns the thoughts of a reasoning model on or off. Returns whether the template has a switch for them
    /// (`enable_thinking`); without one nothing changes.
    pub fn set_thinking(&mut self, think: bool) -> bool {
        self.thinking = self.thinks.then_some(think);
        self.thinks
    }

    /// Whether the template has a switch for the thoughts of a reasoning model.
    pub fn has_thinking_switch(&self) -> bool {
        self.thinks
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text of a conversation. With `add_generation_prompt` it ends where the assistant's reply begins.
    ///
    /// # Errors
    /// When the template rejects the messages (with its own message) or fails (with the line).
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        self.render_conversation(&messages.into(), add_generation_prompt)
    }

    /// As [`ChatTemplate::render`], with tools and variables.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_conversation(&self, conversation: &Conversation, add_generation_prompt: bool) -> Result<String> {
        let mut context: Map<String, Json> =
            self.tokens.iter().map(|(name, text)| (name.clone(), text.as_str().into())).collect();
        if let Some(think) = self.thinking {
            context.insert(ENABLE_THINKING.into(), think.into());
        }
        context.extend(conversation.variables.clone());
        let tools = &conversation.tools;
        context.insert("messages".into(), conversation.messages.clone().into());
        context.insert("add_generation_prompt".into(), add_generation_prompt.into());
        context.insert("tools".into(), if tools.is_empty() { Json::Null } else { tools.clone().into() });
        context.insert("documents".into(), Json::Null);
        let text = bounds::render(|text| {
            self.environment.get_template(NAME)?.render_captured_to(Value::from(Serde(context)), text).map(drop)
        });
        text.map_err(|e| fault(&self.path, &e))
    }
}

/// The message of `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Rejected(String);

fn fault(path: &Path, error: &minijinja::Error) -> LlmError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = error.source();
    while let Some(e) = cause {
        if let Some(Rejected(message)) = e.downcast_ref() {
            return LlmError::Template { path: path.into(), reason: format!("rejects the conversation: {message}") };
        }
        cause = e.source();
    }
    if error.kind() == ErrorKind::WriteFailure {
        let reason = format!("writes more than {} MiB of text", bounds::MAX_TEXT >> 20);
        return LlmError::Template { path: path.into(), reason };
    }
    let line = error.line().map_or(String::new(), |n| format!(" in line {n}"));
    let detail = error.detail().map_or(String::new(), |d| format!(": {}", d.replace('\n', " ")));
    let what = if error.kind() == ErrorKind::SyntaxError { "has an error" } else { "fails" };
    let kind = if error.kind() == ErrorKind::SyntaxError { String::new() } else { format!(": {}", error.kind()) };
    LlmError::Template { path: path.into(), reason: format!("{what}{line}{kind}{detail}") }
}
