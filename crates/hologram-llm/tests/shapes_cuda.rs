//! Models of published shapes on an NVIDIA GPU against the CPU: prompts, tokens, and a token of each of several sequences.

use std::time::Instant;

use hologram_core::{Executor, Format};
use hologram_llm::{Logits, Model, SHAPES, SessionOptions};

/// ‖got − want‖ / ‖want‖.
fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(want).map(|(g, w)| g - w)) / norm(&mut want.iter().copied())
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn published_shapes_agree_with_the_cpu() {
    let (gpu, cpu) = (Executor::open("cuda", None).expect("an NVIDIA GPU"), Executor::open("cpu", None).unwrap());
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
