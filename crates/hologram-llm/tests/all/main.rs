//! The tests of models and the engine that may share a process.
//! One binary, because each is linked with all of the library.

#[path = "../common/mod.rs"]
mod common;

mod deterministic;
mod discrete;
mod encoders;
mod engine;
mod engine_faults;
mod experts;
mod folder_forms;
mod folders;
mod gguf;
mod imatrix;
mod lora;
mod migrating;
mod models;
mod native;
mod overlap;
mod quantize;
mod quantize_folder;
mod quantized_folders;
mod random;
mod sampling;
mod sequences;
mod snapshots;
mod speculation;
mod states;
mod templates;
mod tokenizer;
mod train_bitnet;
