//! A model that is served: its names, its engine, its chat template.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hologram_llm::tokenizer::Tokenizer;
use hologram_llm::{ChatTemplate, Conversation, Engine, EngineOptions, LlmError, Model};

use crate::error::{ApiError, Result};

/// A model that is served.
pub struct Served {
    /// Its own name, then its aliases.
    pub names: Vec<String>,
    /// Its engine.
    pub engine: Engine,
    /// The context length in tokens.
    pub context: usize,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    template: std::result::Result<ChatTemplate, String>,
}

impl Served {
    /// Starts an engine for a model. `names` are its names for clients, at least one; `template` replaces the model's
    /// chat template.
    ///
    /// # Errors
    /// When the model has no tokenizer, its chat template is faulty, or the engine does not start.
    pub fn new(
        names: Vec<String>,
        model: Arc<Model>,
        options: EngineOptions,
        template: Option<(&Path, &str)>,
    ) -> hologram_llm::Result<Served> {
        let tokenizer = model.tokenizer()?;
        let own = match (template, model.files()) {
            (Some((path, source)), _) => {
                let spelled = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).map(String::from);
                let tokens = [("bos_token", spelled(tokenizer.bos())), ("eos_token", spelled(tokenizer.eos()))];
                let tokens = tokens.into_iter().filter_map(|(name, text)| Some((name.into(), text?))).collect();
                ChatTemplate::new(path, source, tokens)
            }
            (None, Some(files)) => files.chat_template(tokenizer),
            (None, None) => Err(LlmError::NoTemplate { path: model.config().name.clone().into() }),
        };
        let template = match own {
            Ok(template) => Ok(template),
            Err(LlmError::NoTemplate { .. }) => {
                Err("the model has no chat template: it continues texts (/v1/completions)".into())
            }
            Err(e) => return Err(e),
        };
        let engine = Engine::new(model, options)?;
        let context = engine.options().context;
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let names = if names.is_empty() { vec![engine.model().config().name.clone()] } else { names };
        Ok(Served { names, engine, context, created, template })
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// Not after [`Served::new`], which read it.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.engine.model().tokenizer().map_err(|e| ApiError::internal(e.to_string()))
    }

    /// The size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.engine.model().config().vocab
    }

    /// The chat template.
    ///
    /// # Errors
    /// 400 when the model has none.
    pub fn template(&self) -> Result<&ChatTemplate> {
        self.template.as_ref().map_err(|reason| ApiError::invalid("messages", reason))
    }

    /// Writes a conversation as the model knows it.
    ///
    /// # Errors
    /// 400 when the model has no template, or it rejects the conversation.
    pub fn render(&self, conversation: &Conversation, reply: bool) -> Result<String> {
        let text = self.template()?.render_conversation(conversation, reply);
        text.map_err(|e| ApiError::invalid("messages", e.to_string()))
    }

    /// The tokens of a text that a template wrote, or, with `plain`, of any text; an empty one begins with BOS.
    ///
    /// # Errors
    /// 400 when the vocabulary has no tokens for it.
    pub fn encode(&self, text: &str, plain: bool, param: &str) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        let tokens = tokenizer.encode_with(text, plain, true);
        let mut tokens = tokens.map_err(|e| ApiError::invalid(param, e.to_string()))?;
        if tokens.is_empty() {
            tokens.extend(tokenizer.bos());
        }
        if tokens.is_empty() { Err(ApiError::invalid(param, format!("{param} must not be empty"))) } else { Ok(tokens) }
    }

    /// Checks the model's name in a request; without one it is this model.
    ///
    /// # Errors
    /// 404 for another model.
    pub fn check_name(&self, name: Option<&str>) -> Result<()> {
        match name {
            Some(name) if !self.names.iter().any(|n| n == name) => Err(ApiError::no_model(name, &self.names[0])),
            _ => Ok(()),
        }
    }
}
