//! Language models on Hologram: model files, tokenizers, graphs, the KV cache, sampling.

pub mod error;
pub mod gguf;
pub mod sampling;
pub mod tokenizer;

pub use error::{LlmError, Result};
