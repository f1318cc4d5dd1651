//! Errors of loading and running models.

use hologram_backends::BackendError;
use hologram_core::CoreError;
use std::path::PathBuf;

/// An error of this crate. Its message is one sentence: the file, the problem and a remedy.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LlmError {
    /// The file could not be opened or mapped.
    #[error("cannot open {}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        reason: std::io::Error,
    },
    /// The file could not be written.
    #[error("cannot write {}: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        reason: std::io::Error,
    },
    /// The caller ended the work on a file, which is not there.
    #[error("stopped before {} was complete", path.display())]
    Stopped {
        /// The file.
        path: PathBuf,
    },
    /// The file is truncated, contradicts itself or has another format.
    #[error("cannot read {} as a GGUF file: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A file of a model folder is missing, truncated or contradicts another.
    #[error("{}: {reason}", path.display())]
    BadFile {
        /// The file or the folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The device lacks the memory for the weights.
    #[error(
        "{model} has {:.2} GB of weights, but {device} has only {:.2} GB of free memory; use a smaller model or weight type",
        *needed as f64 / 1e9, *available as f64 / 1e9
    )]
    Memory {
        /// The model.
        model: String,
        /// Bytes of all weights.
        needed: u64,
        /// The device's kind and name.
        device: String,
        /// Bytes still available.
        available: u64,
    },
    /// A required metadata key is missing.
    #[error("{}: missing key {key}", path.display())]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A key's value has the wrong type or is out of range.
    #[error("{}: key {key} {reason}", path.display())]
    BadKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// For instance "is a string, but must be u32".
        reason: String,
    },
    /// A required tensor is missing.
    #[error("{}: missing tensor {tensor}", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// No device computes with the type of a tensor.
    #[error("{}: tensor {tensor} has type {ty}, which is not supported; supported: {supported}", path.display())]
    UnsupportedType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The type's name in GGUF.
        ty: &'static str,
        /// The names of the supported types.
        supported: String,
    },
    /// The model is an encoder, which continues no text.
    #[error("{} is an encoder, which continues no text: `hologram embed` computes the vectors of texts", path.display())]
    Encoder {
        /// The model.
        path: PathBuf,
    },
    /// The file is valid but uses an unsupported feature, such as an unknown architecture.
    #[error("{}: {what} is not supported{}", path.display(), list(supported))]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The unsupported feature, as the subject of the message.
        what: String,
        /// The supported alternatives; may be empty.
        supported: String,
    },
    /// The tokenizer of the file is missing or cannot be used.
    #[error("{}: {reason}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The chat template is invalid or rejects this conversation.
    #[error("{}: the chat template {reason}", path.display())]
    Template {
        /// The file.
        path: PathBuf,
        /// "rejects the conversation: …", "fails in line 3: …".
        reason: String,
    },
    /// The model has no chat template and no tokens of a known format.
    #[error(
        "{} has no chat template, and its vocabulary lacks ChatML's tokens: it is not a chat model; use `hologram run` to continue a text", path.display()
    )]
    NoTemplate {
        /// The model.
        path: PathBuf,
    },
    /// An option is out of range.
    #[error("{option} {reason}")]
    Option {
        /// The option's name on the command line, without dashes.
        option: &'static str,
        /// For instance "is -1, but must be 0 or more".
        reason: String,
    },
    /// A prompt is longer than the context.
    #[error(
        "the prompt has {tokens} token{}, but the context holds {context}: shorten the prompt or increase --ctx",
        if *tokens == 1 { "" } else { "s" }
    )]
    PromptTooLong {
        /// Tokens of the prompt, special tokens included.
        tokens: usize,
        /// Context length in tokens.
        context: usize,
    },
    /// A text to embed or to score is empty or too long.
    #[error("text {} {}", index + 1, text_length(*tokens, *most))]
    TextLength {
        /// The text's number, from 0.
        index: usize,
        /// Its tokens; with a query, both have them.
        tokens: usize,
        /// The most that the model takes.
        most: usize,
    },
    /// The context is full.
    #[error("the context of {context} tokens is full")]
    ContextFull {
        /// Context length in tokens.
        context: usize,
    },
    /// All blocks of the KV cache are in use.
    #[error("the KV cache of {positions} positions is full: truncate a sequence or give the session more blocks")]
    CacheFull {
        /// Positions of the whole cache.
        positions: usize,
    },
    /// The device lacks the memory for the KV cache.
    #[error(
        "cannot allocate a KV cache of {sequences} × {context} positions ({bytes} bytes); use a shorter context or fewer sequences ({cause})"
    )]
    CacheTooLarge {
        /// Sequences.
        sequences: usize,
        /// Context length in tokens.
        context: usize,
        /// Bytes of the whole cache.
        bytes: u128,
        /// The device's error.
        cause: CoreError,
    },
    /// The logits are invalid.
    #[error("cannot sample a token at position {position}: {reason}")]
    Logits {
        /// The position of the token to choose.
        position: u64,
        /// What is wrong with the logits.
        reason: String,
    },
    /// A graph or tensor could not be created or run.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// A device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// The predicate of a sentence on a text.
fn text_length(tokens: usize, most: usize) -> String {
    match tokens {
        0 => "is empty".into(),
        tokens => format!("has {tokens} tokens, but the model takes at most {most}"),
    }
}

/// The end of a message that lists the supported alternatives.
fn list(supported: &str) -> String {
    if supported.is_empty() { String::new() } else { format!("; supported: {supported}") }
}

/// Same as `Display`, so that a `main` that returns the error prints a sentence.
impl std::fmt::Debug for LlmError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A `Result` with [`LlmError`].
pub type Result<T> = std::result::Result<T, LlmError>;
