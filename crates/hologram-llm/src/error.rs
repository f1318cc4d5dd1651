//! What can go wrong between a model file and its words.

use hologram_backends::BackendError;
use hologram_core::CoreError;
use std::path::PathBuf;

/// An error of this crate; its text is one sentence that names the file, the thing and what to do.
#[derive(thiserror::Error)]
pub enum LlmError {
    /// The file could not be opened or mapped.
    #[error("cannot open {}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        reason: std::io::Error,
    },
    /// The file is not what it claims to be: truncated, contradictory, or another format.
    #[error("cannot read {} as a GGUF file: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// A file of a model's folder is truncated, contradictory or missing.
    #[error("{}: {reason}", path.display())]
    BadFile {
        /// The file or the folder.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// The device has not enough memory for the weights.
    #[error(
        "{model} has {:.2} GB of weights, but {device} has only {:.2} GB of memory left; choose a smaller model or type",
        *needed as f64 / 1e9, *available as f64 / 1e9
    )]
    Memory {
        /// The model.
        model: String,
        /// Bytes of all weights.
        needed: u64,
        /// The device's kind and name.
        device: String,
        /// Bytes that it can still take.
        available: u64,
    },
    /// The metadata lacks a key that is needed.
    #[error("{}: missing key {key}", path.display())]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A key holds a value of another type or out of its range.
    #[error("{}: key {key} {reason}", path.display())]
    BadKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// For instance "is a string, not an integer".
        reason: String,
    },
    /// A tensor that is needed is not in the file.
    #[error("{}: missing tensor {tensor}", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor is stored in a type that nothing here computes with.
    #[error("{}: unsupported type {ty} of tensor {tensor}, supported are {supported}", path.display())]
    UnsupportedType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// GGUF's name of the type.
        ty: &'static str,
        /// The names of the supported types.
        supported: String,
    },
    /// The file is sound, but holds something that is not supported, such as an unknown architecture.
    #[error("{}: {what} is not supported", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What it is, and what is supported instead.
        what: String,
    },
    /// The tokenizer of the file is missing or cannot be used.
    #[error("{}: {reason}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The chat template cannot be used, or not for this conversation.
    #[error("{}: the chat template {reason}", path.display())]
    Template {
        /// The file.
        path: PathBuf,
        /// "refuses the conversation: …", "fails in line 3: …".
        reason: String,
    },
    /// The model has no chat template and no tokens of a known format.
    #[error(
        "{} has no chat template, and its vocabulary lacks the tokens of ChatML: it was not made for conversations; hologram run continues a text with it", path.display()
    )]
    NoTemplate {
        /// The model.
        path: PathBuf,
    },
    /// An option is out of its range.
    #[error("{option} {reason}")]
    Option {
        /// The option as users write it, without dashes.
        option: &'static str,
        /// For instance "is -1, but must be 0 or more".
        reason: String,
    },
    /// A prompt has more tokens than the context holds.
    #[error(
        "the prompt has {tokens} token{}, but the context holds {context}: shorten the prompt or give a larger --ctx",
        if *tokens == 1 { "" } else { "s" }
    )]
    PromptTooLong {
        /// Tokens of the prompt, special tokens included.
        tokens: usize,
        /// Positions of the context.
        context: usize,
    },
    /// A sequence cannot grow further.
    #[error("the context of {context} positions is full")]
    ContextFull {
        /// Positions of the context.
        context: usize,
    },
    /// The device cannot hold a KV cache of this size.
    #[error(
        "a KV cache of {sequences} × {context} positions takes {bytes} bytes, which cannot be had; ask for a shorter context or fewer sequences ({cause})"
    )]
    CacheTooLarge {
        /// Sequences.
        sequences: usize,
        /// Positions of a sequence.
        context: usize,
        /// Bytes of the whole cache.
        bytes: u128,
        /// What the device said.
        cause: CoreError,
    },
    /// No token can be chosen from these logits.
    #[error("cannot sample a token at position {position}: {reason}")]
    Logits {
        /// The position of the token that was to be chosen.
        position: u64,
        /// What is wrong with the logits.
        reason: String,
    },
    /// A graph or a tensor could not be made or run.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// A device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// The message, so that a `main` that returns the error prints a sentence.
impl std::fmt::Debug for LlmError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A result with an [`LlmError`].
pub type Result<T> = std::result::Result<T, LlmError>;
