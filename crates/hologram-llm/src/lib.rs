//! Language models: files, tokenizers, graphs, KV cache, sampling.
//!
//! ```no_run
//! use hologram_llm::{GenerateOptions, Model};
//! let model = Model::load("model.gguf")?;
//! for piece in model.generate("Once upon a time", &GenerateOptions::default())? {
//!     print!("{}", piece?.text);
//! }
//! # Ok::<(), hologram_llm::LlmError>(())
//! ```

mod chat;
mod checksum;
mod embed;
pub mod engine;
mod error;
mod files;
mod generate;
pub mod gguf;
mod kv;
mod lora;
mod model;
mod models;
mod not_run;
mod perplexity;
mod placement;
mod plan_size;
pub mod quantize;
mod random;
pub mod safetensors;
pub mod sampling;
mod session;
mod shapes;
mod snapshot;
mod stop;
pub mod tokenizer;
mod weights;

pub use chat::{ChatTemplate, Conversation, Message, Part, Tags, Thoughts, Written};
pub use embed::{Embedder, Pooling, Reranker, shortened};
pub use engine::{Engine, EngineOptions, Event, Events, Request, Speculation};
pub use error::{LlmError, Result};
pub use files::{ModelFiles, leads_to, without_links};
pub use generate::{Finish, GenerateOptions, Generation, GenerationStats, Piece};
pub use kv::{BLOCK_SIZE, CACHE_TYPES};
pub use lora::Adapter;
pub use model::Model;
pub use models::config::Config;
pub use models::rope::QueryGrowth;
pub use models::rope::RopeScaling;
pub use models::scales::Scales;
pub use models::{
    ARCHITECTURES, Activation, Architecture, EncoderParts, ExpertRule, Experts, FolderNames, NormKind, Rotary,
    RotaryLayers, Scale, TernaryActivations, Windows,
};
pub use perplexity::Perplexity;
pub use placement::{ExpertPlace, LoadOptions};
pub use random::{WeightTypes, random_tensor};
pub use session::{Input, Logits, Session, SessionOptions};
pub use shapes::{SHAPES, Shape};
pub use snapshot::Snapshot;

/// The code of the documents, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/rust.md")]
#[doc = include_str!("../../../docs/migrating.md")]
struct Documents;
