//! An HTTP server for language models: OpenAI's interface on top of [`hologram_llm::Engine`].
//!
//! What holds for every request:
//!
//! - Everything is bounded: connections, headers, bodies, times, waiting requests.
//! - A parameter that is not supported rejects the request by name; none is dropped.
//! - `/health` says that the process is alive, `/ready` that it takes requests; neither asks the engine.
//! - A request whose client goes away is cancelled.
//! - With keys, every route but `/health` and the page's own files needs one.
//!
//! ```no_run
//! use std::sync::Arc;
//! use hologram_llm::{EngineOptions, Model};
//! use hologram_server::{Options, Served, Server};
//!
//! let server = Server::start(Options::default())?;
//! let model = Arc::new(Model::load("model.gguf")?);
//! let options = EngineOptions::for_model(&model);
//! server.provide(Served::new(vec!["my-model".into()], model, options, None)?);
//! println!("{}", server.addresses()[0]);
//! server.run()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod anthropic;
mod body;
mod error;
mod fields;
mod guard;
mod info;
mod job;
mod json;
mod keys;
mod listen;
mod llamacpp;
pub mod log;
mod metrics;
mod ollama;
mod openai;
mod openapi;
mod options;
mod page;
mod params;
mod prompts;
mod registry;
mod reply;
mod responses;
mod routes;
mod served;
mod server;
mod slots;
mod stream;
mod strict;
mod talk;
mod tls;
mod tokens;
mod tools;
mod vllm;

pub use keys::Keys;
pub use options::{Limits, Listen, Options, Part};
pub use registry::Source;
pub use served::{Defaults, Served};
pub use server::{End, Server};
pub use tls::Tls;
