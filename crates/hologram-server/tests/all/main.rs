//! The server's tests.
//! One binary, because each is linked with all of the library.

#[path = "../common/mod.rs"]
mod common;

mod limits;
mod llamacpp;
mod models;
mod ollama;
mod openai;
mod openapi;
mod page;
mod slots;
mod tls;
mod tools;
mod vllm;
