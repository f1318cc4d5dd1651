//! The tests of the built command.
//! One binary, because each is linked with all of the library.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../hologram-hub/tests/common/mod.rs"]
mod hub_server;

mod adapters;
mod bench;
mod chat;
mod cli;
mod documented;
mod examples;
mod hub;
mod imatrix;
mod mistakes;
mod profile;
mod programs;
mod serve;
mod shell;
mod terminal;
mod typed;
