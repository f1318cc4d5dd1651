//! A model that is served: its names, its engine, its chat template.

use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use hologram_llm::tokenizer::Tokenizer;
use hologram_llm::{ChatTemplate, Conversation, Embedder, Engine, EngineOptions, LlmError, Model, Pooling, Written};

use serde_json::{Map, Value};

use crate::error::{ApiError, Result};
use crate::options::Limits;
use crate::tools::native;

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
    /// What holds for requests that do not say otherwise.
    pub defaults: Defaults,
    /// Bytes of the longest token.
    longest_token: usize,
    template: std::result::Result<ChatTemplate, String>,
    pooling: Pooling,
    /// Made by the first request for embeddings.
    embedder: Mutex<Option<Embedder>>,
    /// Texts whose embedding is computed or waits.
    embedding: AtomicUsize,
}

/// What holds for requests that do not say otherwise; `None`: what the request's form says.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// The temperature.
    pub temperature: Option<f32>,
    /// The seed.
    pub seed: Option<u64>,
    /// Maximum tokens of a reply.
    pub max_tokens: Option<usize>,
    /// Variables of the chat template.
    pub variables: Map<String, Value>,
}

/// Why an encoder does not generate.
const ENCODER: &str = "the model is an encoder, which continues no text: use it for embeddings (/v1/embeddings)";

/// Texts that may wait for their embeddings.
const MAX_EMBEDDING: usize = 64;

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
        Served::with_draft(names, model, options, template, None)
    }

    /// As [`Served::new`], with a smaller model that guesses tokens.
    ///
    /// # Errors
    /// As [`Served::new`], and when the smaller model has other tokens.
    pub fn with_draft(
        names: Vec<String>,
        model: Arc<Model>,
        options: EngineOptions,
        template: Option<(&Path, &str)>,
        draft: Option<&Model>,
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
            Err(LlmError::NoTemplate { .. }) => Err(match model.config().bidirectional {
                true => ENCODER.into(),
                false => "the model has no chat template: it continues texts (/v1/completions)".into(),
            }),
            Err(e) => return Err(e),
        };
        let longest_token = tokenizer.longest_token();
        let engine = Engine::with_draft(model, options, draft)?;
        let context = engine.options().context;
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let names = if names.is_empty() { vec![engine.model().config().name.clone()] } else { names };
        let usual = if engine.model().config().bidirectional { Pooling::Mean } else { Pooling::Last };
        // A vector for each token is no answer of the interface.
        let pooling = Pooling::of(engine.model()).filter(|pooling| *pooling != Pooling::None).unwrap_or(usual);
        let (embedder, embedding) = (Mutex::new(None), AtomicUsize::new(0));
        let defaults = Defaults::default();
        Ok(Served { names, engine, context, created, defaults, longest_token, template, pooling, embedder, embedding })
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
        self.check_generates()?;
        self.template.as_ref().map_err(|reason| ApiError::invalid("messages", reason))
    }

    /// Checks that the model continues texts.
    ///
    /// # Errors
    /// 400 for an encoder.
    pub fn check_generates(&self) -> Result<()> {
        match self.engine.model().config().bidirectional {
            true => Err(ApiError::invalid("model", ENCODER)),
            false => Ok(()),
        }
    }

    /// Writes a conversation as the model knows it. What its messages hold is text: control tokens come from the
    /// template.
    ///
    /// # Errors
    /// 400 when the model has no template, or it rejects the conversation.
    pub fn render(&self, conversation: &Conversation, reply: bool) -> Result<Written> {
        self.render_with(conversation, |template, conversation, tokenizer| {
            template.write(conversation, reply, tokenizer).map_err(|e| ApiError::of_model("messages", e))
        })
    }

    /// As [`Served::render`], up to the end of the last message's content, which the reply continues.
    ///
    /// # Errors
    /// As [`Served::render`], and 400 when the template does not write that content.
    pub fn render_open(&self, conversation: &Conversation) -> Result<Written> {
        self.render_with(conversation, |template, conversation, tokenizer| {
            let written = template.write_open(conversation, tokenizer);
            written.map_err(|e| ApiError::of_model("messages", e))?.ok_or_else(|| {
                let message = "the chat template does not write the last message as it is, so none can continue it";
                ApiError::unsupported("continue_final_message", message)
            })
        })
    }

    fn render_with(
        &self,
        conversation: &Conversation,
        write: impl Fn(&ChatTemplate, &Conversation, &Tokenizer) -> Result<Written>,
    ) -> Result<Written> {
        let template = self.template()?;
        let mut conversation = Cow::Borrowed(conversation);
        for (name, value) in &self.defaults.variables {
            if !conversation.variables.contains_key(name) {
                conversation.to_mut().variables.insert(name.clone(), value.clone());
            }
        }
        let conversation = native::adapted(&conversation, template.source());
        let tokenizer = self.tokenizer()?;
        let write = |conversation: &Conversation| write(template, conversation, tokenizer);
        write(&conversation).or_else(|e| native::with_text_arguments(&conversation).map_or(Err(e), |c| write(&c)))
    }

    /// The tokens of a text; an empty one begins with BOS. Control tokens that it spells out are recognised.
    ///
    /// # Errors
    /// 400 when the vocabulary has no tokens for it, or it cannot fit the context.
    pub fn encode(&self, text: &str, param: &str) -> Result<Vec<u32>> {
        self.check_length(text.len(), param)?;
        self.tokens(self.tokenizer()?.encode_with(text, true, true), param)
    }

    /// The tokens of a part of a prompt, without BOS. `control`: whether control tokens that it spells out are
    /// recognised.
    ///
    /// # Errors
    /// As [`Served::encode`].
    pub fn encode_part(&self, text: &str, control: bool, param: &str) -> Result<Vec<u32>> {
        self.check_length(text.len(), param)?;
        self.tokenizer()?.encode_with(text, false, control).map_err(|e| ApiError::of_model(param, e))
    }

    /// The tokens of a conversation, `special` with BOS and EOS beside those that the template writes.
    ///
    /// # Errors
    /// As [`Served::encode`].
    pub fn encode_written(&self, written: &Written, special: bool, param: &str) -> Result<Vec<u32>> {
        self.check_length(written.len(), param)?;
        self.tokens(written.encode(self.tokenizer()?, special), param)
    }

    /// Rejects a text whose tokens cannot fit the context, before the time is spent to find them.
    fn check_length(&self, bytes: usize, param: &str) -> Result<()> {
        let least = bytes / self.longest_token.max(1);
        if least > self.context { Err(ApiError::context_far_exceeded(param, least, self.context)) } else { Ok(()) }
    }

    fn tokens(&self, tokens: hologram_llm::Result<Vec<u32>>, param: &str) -> Result<Vec<u32>> {
        let mut tokens = tokens.map_err(|e| ApiError::of_model(param, e))?;
        if tokens.is_empty() {
            tokens.extend(self.tokenizer()?.bos());
        }
        if tokens.is_empty() { Err(ApiError::invalid(param, format!("{param} must not be empty"))) } else { Ok(tokens) }
    }

    /// The most texts of one request: its prompts times `n`. More could never be admitted together.
    pub fn max_texts(&self, limits: &Limits) -> usize {
        let options = self.engine.options();
        limits.sequences.min(options.max_sequences.saturating_add(options.max_waiting))
    }

    /// Whether a text has one vector.
    pub fn pools(&self) -> bool {
        self.pooling != Pooling::None
    }

    /// Pools the hidden states of a text in this way, whatever the model's file says.
    pub fn set_pooling(&mut self, pooling: Pooling) {
        self.pooling = pooling;
    }

    /// The vectors of a text: one, or one of each token if they are not pooled. Blocks the thread.
    ///
    /// # Errors
    /// 503 when too many texts wait, 500 when the device fails.
    pub fn embed(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
        let waiting = Counted::new(&self.embedding);
        if waiting.0.load(Ordering::Relaxed) > MAX_EMBEDDING {
            return Err(ApiError::unavailable("too many texts wait for their embeddings: try again later", 1));
        }
        let mut embedder = self.embedder.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |e: LlmError| ApiError::internal(e.to_string());
        if embedder.is_none() {
            let mut made = Embedder::new(self.engine.model(), self.context).map_err(failed)?;
            made.set_normalize(true);
            *embedder = Some(made);
        }
        let Some(embedder) = embedder.as_mut() else { return Err(ApiError::internal("there is no embedder")) };
        let mut vectors = embedder.embed(&[tokens], self.pooling).map_err(failed)?;
        let Some(all) = vectors.pop() else { return Err(ApiError::internal("the embedder gave no vector")) };
        match self.pools() {
            true => Ok(vec![all]),
            false => Ok(all.chunks(self.engine.model().config().width.max(1)).map(<[f32]>::to_vec).collect()),
        }
    }
}

/// Counts itself while it lives.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Counted<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
