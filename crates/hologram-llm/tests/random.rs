//! Models with random weights depend on their context, whatever their shape, depth and type.

use hologram_backends::DType;
use hologram_core::Executor;
use hologram_llm::{Logits, Model, SHAPES, SessionOptions, Shape, WeightTypes};

/// The minimum change by another context, in standard deviations of the logits.
const LEAST: f32 = 0.3;

/// A shape with heads of the same size, but only four of them and one key/value head.
fn narrow(shape: &Shape, layers: usize) -> Shape {
    let head = shape.width / shape.heads;
    let ffn = (4 * head * shape.ffn / shape.width).next_multiple_of(256);
    Shape { layers, width: 4 * head, ffn, heads: 4, kv_heads: 1, vocab: 1024, ..shape.clone() }
}

/// The largest difference between the logits of the same token after two contexts, in standard deviations of the
/// logits.
fn change(shape: &Shape, types: WeightTypes, executor: &Executor, len: u32) -> f32 {
    let model = Model::random(shape, types, executor).unwrap();
    let mut session = model.session(SessionOptions { context: 512, ..SessionOptions::default() }).unwrap();
    let mut logits = |seed: u32| {
        let token = |i: u32| ((i + seed).wrapping_mul(0x9e37_79b1) >> 7) % shape.vocab as u32;
        let tokens: Vec<u32> = (0..len).map(token).chain([5]).collect();
        session.truncate(0, 0);
        session.feed(0, &tokens, Logits::Last).unwrap().to_vec()
    };
    let (a, b) = (logits(0), logits(10_000));
    let mean = a.iter().sum::<f32>() / a.len() as f32;
    let deviation = (a.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / a.len() as f32).sqrt();
    // Nearly equal logits would make the ratio meaningless.
    assert!((0.5..2.0).contains(&deviation), "{} {}: logits of {deviation}", shape.name, types.name());
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / deviation
}

fn check(shapes: impl Iterator<Item = Shape>, types: impl Fn(WeightTypes) -> bool, len: u32) {
    let executor = Executor::open("cpu", None).unwrap();
    let mut wrong = Vec::new();
    for shape in shapes {
        for types in WeightTypes::all().filter(|t| types(*t)) {
            let change = change(&shape, types, &executor, len);
            let line = format!("{} {} layers {} {}: {change:.2}", shape.name, shape.layers, shape.width, types.name());
            println!("{line}");
            if change < LEAST || change.is_nan() {
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn another_context_gives_other_logits() {
    // A Llama shape and BitNet's, in all types.
    let shapes = SHAPES.iter().filter(|s| ["llama-1b", "bitnet-2b"].contains(&s.name));
    check(shapes.map(|s| narrow(s, 2)), |_| true, 40);
}

/// All shapes at full depth.
#[test]
#[ignore = "takes some minutes: for a nightly run"]
fn nightly_another_context_gives_other_logits_in_deep_models() {
    check(SHAPES.iter().map(|s| narrow(s, s.layers)), |_| true, 400);
}

/// All shapes at full width, where a nonzero mean of the weights would dominate.
#[test]
#[ignore = "takes some minutes and GB: for a nightly run"]
fn nightly_another_context_gives_other_logits_in_wide_models() {
    let codes_without_mean_0 = [DType::Q4_0, DType::Q5_0, DType::IQ4_NL, DType::TQ2_0].map(WeightTypes::from);
    let shapes = SHAPES.iter().filter(|s| ["llama-8b", "bitnet-2b"].contains(&s.name));
    check(shapes.map(|s| Shape { layers: 2, vocab: 1024, ..s.clone() }), |t| codes_without_mean_0.contains(&t), 100);
}
