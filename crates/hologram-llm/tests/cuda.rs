//! Models on an NVIDIA GPU: logits against the reference implementations' and the CPU's, batches, and memory over many generations.

use std::path::PathBuf;
use std::time::Instant;

use hologram_core::{Executor, Format};
use hologram_llm::{GenerateOptions, Logits, Model, SHAPES, SessionOptions};

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The 4-byte elements of a .npy file of version 1 among the fixtures.
fn npy<T>(name: &str, element: impl Fn([u8; 4]) -> T) -> Vec<T> {
    let data = std::fs::read(file("tests/fixtures").join(name)).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([data[8], data[9]]));
    data[start..].as_chunks::<4>().0.iter().map(|bytes| element(*bytes)).collect()
}

fn cuda() -> Executor {
    Executor::open("cuda", None).expect("an NVIDIA GPU")
}

/// ‖got − want‖ / ‖want‖.
fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(want).map(|(g, w)| g - w)) / norm(&mut want.iter().copied())
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn logits_agree_with_the_reference_implementation() {
    let executor = cuda();
    for name in ["llama-tiny", "llama3-tiny", "bitnet-tiny"] {
        let model = Model::load_on(file(&format!("tests/fixtures/{name}.gguf")), &executor).unwrap();
        for sequence in ["a", "b"] {
            let tokens = npy(&format!("{name}.tokens-{sequence}.npy"), u32::from_le_bytes);
            let want = npy(&format!("{name}.logits-{sequence}.npy"), f32::from_le_bytes);
            for batch in [64, 8, 1] {
                let options = SessionOptions { context: 64, batch, ..SessionOptions::default() };
                let mut session = model.session(options).unwrap();
                let error = relative_error(session.feed(0, &tokens, Logits::All).unwrap(), &want);
                println!("{name} {sequence}, batch {batch}: {error:.2e}");
                assert!(error < 1e-3, "{name} {sequence}, batch {batch}: {error:.2e}");
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn published_shapes_agree_with_the_cpu() {
    let (gpu, cpu) = (cuda(), Executor::open("cpu", None).unwrap());
    let shape = |name: &str| SHAPES.iter().find(|s| s.name == name).unwrap();
    for (name, format) in [
        ("tinyllama-1.1b", Format::F16),
        ("tinyllama-1.1b", Format::BF16),
        ("tinyllama-1.1b", Format::Q8_0),
        ("tinyllama-1.1b", Format::Q4_0),
        ("bitnet-2b", Format::TQ2_0),
    ] {
        let started = Instant::now();
        let models = [&gpu, &cpu].map(|executor| Model::random(shape(name), format, executor).unwrap());
        let made = started.elapsed().as_secs_f64();
        let results = models.each_ref().map(|model| {
            let options = SessionOptions { context: 64, sequences: 3, ..SessionOptions::default() };
            let mut session = model.session(options).unwrap();
            let prompt: Vec<u32> = (0..40).map(|i| i * 7919 % 32000).collect();
            // A prompt, a token, and a token of each of several sequences.
            let mut all = vec![session.feed(0, &prompt, Logits::All).unwrap().to_vec()];
            all.push(session.feed(0, &[17], Logits::Last).unwrap().to_vec());
            session.feed(1, &prompt[..9], Logits::None).unwrap();
            all.push(session.feed_batch(&[(0, 5), (1, 6), (2, 7)]).unwrap().to_vec());
            all
        });
        let errors: Vec<f64> =
            results[0].iter().zip(&results[1]).map(|(got, want)| relative_error(got, want)).collect();
        println!("{name} {}: {errors:.6?}, made in {made:.1} s", format.name());
        // Where activations are rounded, to bf16 or to codes of 8 bits, the least difference before becomes one of the rounding's size.
        let bound = if format == Format::F16 { 1e-4 } else { 3e-2 };
        assert!(errors.iter().all(|e| *e < bound), "{name} {}: {errors:.6?}", format.name());
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_thousand_generations_leave_memory_as_it_was() {
    let executor = cuda();
    let mut model = Model::load_on(file("../../assets/rust-docs-bitnet.gguf"), &executor).unwrap();
    let options = GenerateOptions { max_tokens: 2, context: Some(64), ..GenerateOptions::default() };
    let mut after = Vec::new();
    let started = Instant::now();
    for _ in 0..1000 {
        assert_eq!(model.generate("The", &options).unwrap().filter(|piece| piece.is_ok()).count(), 2);
        let memory = executor.metrics().memory;
        after.push((memory.live, memory.cached));
    }
    println!("1000 generations in {:.2} s; {:?} bytes live and cached", started.elapsed().as_secs_f64(), after[999]);
    assert_eq!(after[1], after[999]);
}
