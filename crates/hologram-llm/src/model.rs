//! A model: its weights on a device and its tokenizer.

use std::path::Path;
use std::sync::Arc;

use hologram_backends::Format;
use hologram_core::Executor;

use crate::error::Result;
use crate::generate::{GenerateOptions, Generation};
use crate::gguf::GgufFile;
use crate::models::config::Config;
use crate::models::decoder::Decoder;
use crate::random::{RandomWeights, Shape};
use crate::session::{Session, SessionOptions};
use crate::tokenizer::Tokenizer;
use crate::weights::FileWeights;

/// A model on a device.
pub struct Model {
    executor: Executor,
    decoder: Arc<Decoder>,
    file: Option<Arc<GgufFile>>,
    tokenizer: Option<Tokenizer>,
}

impl Model {
    /// Loads a GGUF file onto the best device of this machine. The tokenizer is read when it is first needed.
    ///
    /// # Errors
    /// When the file is damaged, or its architecture or types are not supported.
    pub fn load(path: impl AsRef<Path>) -> Result<Model> {
        Model::load_on(path, &Executor::new_auto()?)
    }

    /// Loads a GGUF file onto a device.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_on(path: impl AsRef<Path>, executor: &Executor) -> Result<Model> {
        Model::from_gguf(GgufFile::open(path)?, executor)
    }

    /// Loads an open GGUF file onto a device.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn from_gguf(file: GgufFile, executor: &Executor) -> Result<Model> {
        let config = Config::from_gguf(&file)?;
        let decoder = Arc::new(Decoder::load(config, &FileWeights::new(executor, &file)?)?);
        Ok(Model { executor: executor.clone(), decoder, file: Some(Arc::new(file)), tokenizer: None })
    }

    /// A model of a known shape with random weights, made on the device: for measuring speed without a download.
    ///
    /// # Errors
    /// When the format does not fit the shape or the device has not that much memory.
    pub fn random(shape: &Shape, format: Format, executor: &Executor) -> Result<Model> {
        let weights = RandomWeights::new(executor, shape, format);
        let decoder = Arc::new(Decoder::load(shape.config(), &weights)?);
        Ok(Model { executor: executor.clone(), decoder, file: None, tokenizer: None })
    }

    /// Sizes and constants.
    pub fn config(&self) -> &Config {
        &self.decoder.config
    }

    /// The device.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Bytes of weights that one decoded token reads.
    pub fn bytes_per_token(&self) -> usize {
        self.decoder.bytes_per_token()
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> usize {
        self.decoder.bytes()
    }

    /// The tokenizer in the model's file.
    ///
    /// # Errors
    /// When the file has none or one of an unknown kind.
    pub fn tokenizer(&mut self) -> Result<&Tokenizer> {
        let tokenizer = match self.tokenizer.take() {
            Some(tokenizer) => tokenizer,
            None => match &self.file {
                Some(file) => Tokenizer::from_gguf(file)?,
                None => {
                    return Err(crate::LlmError::Tokenizer {
                        path: self.decoder.config.name.clone().into(),
                        reason: "a model with random weights has no tokenizer".into(),
                    });
                }
            },
        };
        Ok(self.tokenizer.insert(tokenizer))
    }

    /// Starts a session: a KV cache and the plans that run the model on it.
    ///
    /// # Errors
    /// When an option is out of range or the device has not enough memory.
    pub fn session(&self, options: SessionOptions) -> Result<Session> {
        Session::new(&self.executor, &self.decoder, options)
    }

    /// Continues a prompt: an iterator of pieces of text.
    ///
    /// # Errors
    /// When the model has no tokenizer, an option is out of range, or the prompt is longer than the context.
    pub fn generate(&mut self, prompt: &str, options: &GenerateOptions) -> Result<Generation<'_>> {
        self.tokenizer()?;
        Generation::start(self, prompt, options)
    }

    pub(crate) fn loaded_tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }
}
