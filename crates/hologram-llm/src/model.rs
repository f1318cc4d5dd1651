//! A model: its weights on a device and its tokenizer.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use hologram_backends::DType;
use hologram_core::Executor;

use crate::checksum::Checksum;
use crate::error::{LlmError, Result};
use crate::files::ModelFiles;
use crate::generate::{GenerateOptions, Generation};
use crate::gguf::GgufFile;
use crate::models::config::Config;
use crate::models::decoder::Decoder;
use crate::placement::LoadOptions;
use crate::random::{RandomWeights, WeightTypes};
use crate::safetensors::FolderWeights;
use crate::session::{Session, SessionOptions};
use crate::shapes::Shape;
use crate::snapshot::Identity;
use crate::tokenizer::Tokenizer;
use crate::weights::{FileWeights, Weights};

/// A model on a device.
pub struct Model {
    executor: Executor,
    /// The device of the experts, if it is another one.
    host: Option<Executor>,
    decoder: Arc<Decoder>,
    files: Option<Arc<ModelFiles>>,
    /// Read when it is first used.
    tokenizer: OnceLock<Tokenizer>,
    end_tokens: Vec<u32>,
    identity: Arc<Identity>,
}

impl Model {
    /// Loads a GGUF file or a folder of safetensors onto the best device of this machine. The tokenizer is read on
    /// first use.
    ///
    /// # Errors
    /// When a file is damaged, or its architecture or types are not supported.
    pub fn load(path: impl AsRef<Path>) -> Result<Model> {
        Model::load_on(path, &Executor::new_auto()?)
    }

    /// Loads a model onto a device.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_on(path: impl AsRef<Path>, executor: &Executor) -> Result<Model> {
        Model::from_files(ModelFiles::open(path)?, executor)
    }

    /// Loads an open GGUF file onto a device.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn from_gguf(file: GgufFile, executor: &Executor) -> Result<Model> {
        Model::from_files(file, executor)
    }

    /// Loads open files onto a device.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn from_files(files: impl Into<ModelFiles>, executor: &Executor) -> Result<Model> {
        Model::from_files_with(files, executor, &mut |_, _| ())
    }

    /// As [`Model::from_files`], but calls `progress` from time to time with the bytes loaded and the total.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn from_files_with(
        files: impl Into<ModelFiles>,
        executor: &Executor,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Model> {
        Model::load_with(files, executor, &LoadOptions::default(), progress)
    }

    /// As [`Model::from_files_with`], with options. The matrices of adapters lie beside the weights, which may be
    /// quantized.
    ///
    /// # Errors
    /// As [`Model::load`], when an adapter is for another model, or an option has no meaning for the model.
    pub fn load_with(
        files: impl Into<ModelFiles>,
        executor: &Executor,
        options: &LoadOptions<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Model> {
        let files = files.into();
        let (path, device) = (files.path().display(), executor.info().backend.name());
        let _load = tracing::info_span!("load", model = %path, device).entered();
        let (config, end_tokens, bytes) = (files.config()?, files.end_tokens()?, files.tensor_bytes());
        // Layers have equal sizes, so their count gives the share of bytes.
        let mut progress = |part: usize, of: usize| {
            let done = u128::from(bytes) * part as u128 / of.max(1) as u128;
            progress(u64::try_from(done).unwrap_or(bytes), bytes);
        };
        let adapters = options.adapters;
        let on = |executor: &Executor| {
            files.loaded_bytes(&config, |format| executor.backend().policy().weight_layout(format))
        };
        let host = options.place(executor, (&files.path().display().to_string(), !files.shrink()), on)?;
        let decoder = match &files {
            ModelFiles::Gguf(file) => {
                let weights = FileWeights::new(executor, file)?;
                let experts = host.as_ref().map(|host| weights.sibling(host)).transpose()?;
                let experts = experts.as_ref().map(|weights| weights as &dyn Weights);
                Decoder::load(config, &weights, experts, adapters, &mut progress)?
            }
            ModelFiles::Folder(folder) => {
                let weights = FolderWeights::new(executor, folder, &config.architecture.folder)?;
                let experts = host.as_ref().map(|host| weights.sibling(host)).transpose()?;
                let experts = experts.as_ref().map(|weights| weights as &dyn Weights);
                Decoder::load(config, &weights, experts, adapters, &mut progress)?
            }
        };
        let (executor, decoder, files) = (executor.clone(), Arc::new(decoder), Some(Arc::new(files)));
        let of_adapters = adapters.iter().fold(Checksum::new(), |sum, adapter| adapter.add_to(sum));
        let identity = Arc::new(Identity::new(files.clone(), of_adapters));
        Ok(Model { executor, host, decoder, files, tokenizer: OnceLock::new(), end_tokens, identity })
    }

    /// A model of a known shape with random weights, made on the device, to measure speed without a download.
    ///
    /// # Errors
    /// When a format does not fit the shape or the device lacks the memory.
    pub fn random(shape: &Shape, types: impl Into<WeightTypes>, executor: &Executor) -> Result<Model> {
        Model::random_with(shape, types, executor, &LoadOptions::default())
    }

    /// As [`Model::random`], with options, of which adapters are not used.
    ///
    /// # Errors
    /// As [`Model::random`], or when an option has no meaning for the model.
    pub fn random_with(
        shape: &Shape,
        types: impl Into<WeightTypes>,
        executor: &Executor,
        options: &LoadOptions<'_>,
    ) -> Result<Model> {
        let types = types.into();
        let weights = RandomWeights::new(executor, shape, types);
        let name = format!("{} in {}", shape.name, types.name());
        let host =
            options.place(executor, (&name, true), |executor| RandomWeights::new(executor, shape, types).bytes())?;
        let experts = host.as_ref().map(|host| RandomWeights::new(host, shape, types));
        let experts = experts.as_ref().map(|weights| weights as &dyn Weights);
        let decoder = Arc::new(Decoder::load(shape.config(), &weights, experts, &[], &mut |_, _| ())?);
        let described = format!("{shape:?} {}", types.name());
        Ok(Model {
            executor: executor.clone(),
            host,
            decoder,
            files: None,
            tokenizer: OnceLock::new(),
            end_tokens: Vec::new(),
            identity: Arc::new(Identity::new(None, Checksum::new().add(described.as_bytes()))),
        })
    }

    /// The model's hyperparameters.
    pub fn config(&self) -> &Config {
        &self.decoder.config
    }

    /// The weights and the graph.
    pub(crate) fn decoder(&self) -> &Arc<Decoder> {
        &self.decoder
    }

    /// The device.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// The device that computes the experts, if it is not that of the model.
    pub fn expert_executor(&self) -> Option<&Executor> {
        self.host.as_ref()
    }

    /// One line that says which device computes the experts, if it is not that of the model.
    pub fn experts_elsewhere(&self) -> Option<String> {
        let (host, device) = (self.host.as_ref()?.info(), self.executor.info());
        let [experts, all] = [self.decoder.expert_bytes(), self.decoder.bytes()].map(|n| n as f64 / 1e9);
        Some(format!(
            "the experts ({experts:.2} GB) are computed by {} ({}), the rest ({:.2} GB) by {} ({})",
            host.backend,
            host.name,
            all - experts,
            device.backend,
            device.name
        ))
    }

    /// The element type of the KV cache that suits the model and its device.
    pub(crate) fn default_cache_format(&self) -> DType {
        self.decoder.cache_format(&**self.executor.backend())
    }

    /// The files that the model was loaded from.
    pub fn files(&self) -> Option<&ModelFiles> {
        self.files.as_deref()
    }

    /// One line that names the known parts of the files which are not run, as [`ModelFiles::not_run`].
    pub fn not_run(&self) -> Option<String> {
        self.files()?.not_run(self.config())
    }

    /// The end-of-text and end-of-turn tokens of the metadata.
    pub fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// Bytes of weights read per decoded token.
    pub fn bytes_per_token(&self) -> usize {
        self.decoder.bytes_per_token()
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> usize {
        self.decoder.bytes()
    }

    /// The tokenizer of the model's file or folder.
    ///
    /// # Errors
    /// When there is none, its kind is unknown, or it has more tokens than the model.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        if let Some(tokenizer) = self.tokenizer.get() {
            return Ok(tokenizer);
        }
        let Some(files) = self.files.as_deref() else {
            return Err(LlmError::Tokenizer {
                path: self.decoder.config.name.clone().into(),
                reason: "a model with random weights has no tokenizer".into(),
            });
        };
        // Another thread may have read it meanwhile.
        let tokenizer = files.tokenizer()?.fit(files.path(), self.decoder.config.vocab)?;
        Ok(self.tokenizer.get_or_init(|| tokenizer))
    }

    /// Starts a session: a KV cache and the plans that run the model.
    ///
    /// # Errors
    /// When an option is out of range or the device lacks the memory.
    pub fn session(&self, options: SessionOptions) -> Result<Session> {
        Session::new(&self.executor, &self.decoder, &self.identity, options)
    }

    /// Continues a prompt. Returns an iterator over pieces of text.
    ///
    /// # Errors
    /// When the model has no tokenizer, an option is out of range, or the prompt is longer than the context.
    pub fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<Generation<'_>> {
        Generation::start(self, prompt, options)
    }

    /// A session with these options for several calls of [`Model::reply`].
    ///
    /// # Errors
    /// As [`Model::session`].
    pub fn session_for(&self, options: &GenerateOptions) -> Result<Session> {
        self.session(options.session(self))
    }

    /// Continues `tokens`, such as a conversation formatted by a chat template, in a session that can be reused: the
    /// longest common prefix with the cached tokens is not computed again.
    ///
    /// # Errors
    /// When an option is out of range, or there are more tokens than the context holds.
    pub fn reply<'a>(
        &'a self,
        session: &'a mut Session,
        tokens: &[u32],
        options: &GenerateOptions,
    ) -> Result<Generation<'a>> {
        Generation::resume(self, session, tokens, options)
    }
}
