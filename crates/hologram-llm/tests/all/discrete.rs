//! Models on a device with separate memory and its own weight layouts, like a GPU: the CPU behind such a device's
//! interface.

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::discrete::Discrete;
use hologram_backends::DType;
use hologram_core::Executor;
use hologram_llm::{Logits, Model, SessionOptions, Shape};

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Logits of all tokens.
fn logits(executor: &Executor, model: &str, tokens: &[u32]) -> Vec<f32> {
    let model = Model::load_on(file(model), executor).unwrap();
    let mut session = model.session(SessionOptions { context: 64, ..SessionOptions::default() }).unwrap();
    session.feed(0, tokens, Logits::All).unwrap().to_vec()
}

/// ‖got − want‖ / ‖want‖.
fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(want).map(|(g, w)| g - w)) / norm(&mut want.iter().copied())
}

#[test]
fn weights_in_other_layouts_give_the_same_logits() {
    let cpu = Executor::open("cpu", Some(2)).unwrap();
    let discrete = Executor::from_backend(Arc::new(Discrete::new(2, None)));
    let tokens: Vec<u32> = (0..40).map(|i| i * 37 % 250).collect();
    let shipped = "../hologram-cli/assets/rust-docs-bitnet.gguf";
    // The shipped model's tied head is in 8 bits. With many outputs its activations are bf16 on one device and 8-bit
    // codes on the other. Beside f16 weights attention's products are in bf16 there.
    for (model, n, bound) in [
        ("tests/fixtures/llama-tiny.gguf", 40, 1e-5),
        ("tests/fixtures/llama-tiny.gguf", 32, 1e-5),
        ("tests/fixtures/llama3-tiny.gguf", 40, 2e-2),
        ("tests/fixtures/bitnet-tiny.gguf", 40, 1e-5),
        (shipped, 2, 1e-4),
        (shipped, 5, 1e-2),
    ] {
        let got = logits(&discrete, model, &tokens[..n]);
        let error = relative_error(&got, &logits(&cpu, model, &tokens[..n]));
        assert!(error < bound, "{model}, {n} tokens: {error:.2e}");
        if (model, n) == (shipped, 5) {
            assert!(error > 1e-4, "the head's activations are the same: {error:.2e}");
        }
    }
}

#[test]
fn a_model_that_is_too_large_is_rejected_at_once() {
    let device = |left| Executor::from_backend(Arc::new(Discrete::new(1, Some(left))));
    let path = file("tests/fixtures/bitnet-tiny.gguf");
    let bytes = std::fs::metadata(&path).unwrap().len();
    assert!(Model::load_on(&path, &device(bytes)).is_ok());
    let error = Model::load_on(&path, &device(bytes / 2)).err().unwrap().to_string();
    assert!(error.contains("bitnet-tiny.gguf has 0.00 GB of weights, but cpu ("), "{error}");
    let shape = Shape::find("llama-8b").unwrap();
    let error = Model::random(shape, DType::Q8_0, &device(5_000_000_000)).err().unwrap().to_string();
    assert!(
        error.contains("llama-8b in Q8_0 has 8.53 GB of weights, but cpu (") && error.contains("only 5.00 GB"),
        "{error}"
    );
}
