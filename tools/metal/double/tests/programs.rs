//! Programs on the Metal backend: random ones against the reference interpreter, bit for bit; every instruction at its
//! limits; faults.

use std::sync::Arc;

use hologram_backends::compare::random_program;
use hologram_backends::{Backend, open};
use metal_double as _;

#[path = "../../../../crates/hologram-backends/tests/common/mod.rs"]
mod common;
use common::*;

fn metal() -> Arc<dyn Backend> {
    open("metal", None).unwrap()
}

#[test]
fn random_programs_give_the_interpreters_bits() {
    let (start, count) = (number("HOLOGRAM_RANDOM_SEED", 0), number("HOLOGRAM_RANDOM_PROGRAMS", 100));
    let device = metal();
    for seed in start..start + count {
        let difference = random_program(&*device, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(difference.is_none(), "{}", difference.unwrap_or_default());
    }
}

#[test]
fn faults_are_the_interpreters() {
    check_faults("metal", &*metal(), false);
}

#[test]
fn every_instruction_does_what_the_interpreter_does() {
    check_instructions(&[("metal", &*metal())]);
}

#[test]
fn atomic_operations_add_up() {
    check_atomics("metal", &*metal());
}

#[test]
fn neighbouring_elements_are_loaded_and_stored() {
    check_fours("metal", &*metal());
}

#[test]
fn examples_run() {
    check_examples("metal", &*metal());
}

#[test]
fn tiles_are_multiplied() {
    check_tiles("metal", &*metal(), false);
}
