//! Models on the Metal backend: logits against the reference implementations', the shipped model's tokens against the
//! CPU's, and what a step of decoding costs in calls of Metal.

use std::path::{Path, PathBuf};

use hologram_core::Executor;
use hologram_llm::sampling::SamplerConfig;
use hologram_llm::{GenerateOptions, Logits, Model, SessionOptions};
use metal_double::counts;

/// The greatest relative error of logits: native kernels sum in an order of their own.
const BOUND: f64 = 1e-3;
/// The same where activations that meet f16 weights are rounded to bf16, to 8 bits: in steps of more than 8 tokens.
const ROUNDED_BOUND: f64 = 2e-2;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn fixture(name: &str) -> PathBuf {
    root().join("crates/hologram-llm/tests/fixtures").join(name)
}

/// The 4-byte little-endian elements of a .npy file of version 1.
fn npy(name: String) -> Vec<[u8; 4]> {
    let data = std::fs::read(fixture(&name)).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([data[8], data[9]]));
    data[start..].as_chunks::<4>().0.to_vec()
}

/// ‖got − want‖ / ‖want‖.
fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
        got.iter().zip(want).map(|(g, w)| f(f64::from(*g), f64::from(*w))).sum()
    };
    (sum(&|g, w| (g - w).powi(2)) / sum(&|_, w| w * w)).sqrt()
}

fn options(batch: usize) -> SessionOptions {
    SessionOptions { context: 64, batch: Some(batch), ..SessionOptions::default() }
}

fn logits_of_fixtures(executor: &Executor) {
    for name in ["llama-tiny", "llama3-tiny", "bitnet-tiny"] {
        let model = Model::load_on(fixture(&format!("{name}.gguf")), executor).unwrap();
        for sequence in ["a", "b"] {
            let tokens = npy(format!("{name}.tokens-{sequence}.npy")).into_iter().map(u32::from_le_bytes);
            let tokens: Vec<u32> = tokens.collect();
            let want: Vec<f32> =
                npy(format!("{name}.logits-{sequence}.npy")).into_iter().map(f32::from_le_bytes).collect();
            for batch in [64, 8, 1] {
                let bound = if name == "llama3-tiny" && batch > 8 { ROUNDED_BOUND } else { BOUND };
                let mut session = model.session(options(batch)).unwrap();
                let error = relative_error(session.feed(0, &tokens, Logits::All).unwrap(), &want);
                assert!(error < bound, "{name} {sequence}, batch {batch}: {error:.2e}");
            }
        }
    }
}

fn shipped_model(executor: &Executor) {
    let text = |executor: &Executor| -> String {
        let model = Model::load_on(root().join("crates/hologram-cli/assets/rust-docs-bitnet.gguf"), executor).unwrap();
        let options = GenerateOptions { max_tokens: 16, sampling: SamplerConfig::GREEDY, ..GenerateOptions::default() };
        let pieces: Result<Vec<_>, _> = model.generate("A closure in Rust is", &options).unwrap().collect();
        pieces.unwrap().into_iter().map(|p| p.text).collect()
    };
    let cpu = text(&Executor::open("cpu", Some(2)).unwrap());
    assert!(cpu.len() > 20, "{cpu}");
    assert_eq!(text(executor), cpu);
}

/// One command buffer a step, whose end is waited for once, when its result is read; nothing is allocated.
fn calls_of_a_step(executor: &Executor) {
    let model = Model::load_on(fixture("llama-tiny.gguf"), executor).unwrap();
    let mut session = model.session(options(8)).unwrap();
    session.feed(0, &[1, 5, 9, 2], Logits::Last).unwrap();
    for token in 0..3 {
        session.feed(0, &[token], Logits::Last).unwrap();
    }
    let (before, steps) = (counts(), 8);
    for token in 0..steps {
        session.feed(0, &[token as u32 + 3], Logits::Last).unwrap();
    }
    let after = counts();
    assert_eq!(after.commits - before.commits, steps, "one command buffer a step");
    assert_eq!(after.encoders - before.encoders, steps, "one encoder a step");
    assert!(after.waits - before.waits <= steps, "one wait a step, for its result");
    assert_eq!(after.buffers - before.buffers, 0, "nothing is allocated");
    assert_eq!(after.copies - before.copies, 0, "the host writes to memory that nothing uses");
    let launches = (after.dispatches - before.dispatches) / steps;
    println!("{launches} launches and {} barriers a step", (after.barriers - before.barriers) / steps);
}

/// Another device of the process finds on disk what the first has compiled.
fn compiled_kernels_are_kept() {
    let archives = |of: &dyn Fn()| {
        let before = counts();
        of();
        let after = counts();
        (after.archives_written - before.archives_written, after.archives_read - before.archives_read)
    };
    let run = || {
        let executor = Executor::open("metal", None).unwrap();
        let model = Model::load_on(fixture("llama-tiny.gguf"), &executor).unwrap();
        model.session(options(8)).unwrap().feed(0, &[1, 2], Logits::Last).unwrap();
    };
    let (_, first_read) = archives(&run);
    let (written, read) = archives(&run);
    assert!(written == 0 && read > 0 && read >= first_read, "{written} written, {read} read");
}

/// In one test: calls are counted for the whole process.
#[test]
fn models_compute_what_they_do_elsewhere() {
    let executor = Executor::open("metal", None).unwrap();
    logits_of_fixtures(&executor);
    calls_of_a_step(&executor);
    shipped_model(&executor);
    drop(executor);
    compiled_kernels_are_kept();
    assert_eq!(metal_double::live_objects(), 0);
}
