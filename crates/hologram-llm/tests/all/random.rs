//! Models with random weights depend on their context, whatever their shape, depth and type.

use hologram_backends::DType;
use hologram_core::Executor;
use hologram_llm::{Embedder, Logits, Model, Pooling, SHAPES, SessionOptions, Shape, WeightTypes};

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
        let logits = session.feed(0, &tokens, Logits::Last);
        logits.unwrap_or_else(|e| panic!("{} {}: {e}", shape.name, types.name())).to_vec()
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

/// The shape with recurrent layers, four layers of it with one that has attention.
#[test]
fn another_context_gives_other_logits_in_recurrent_models() {
    let shapes = SHAPES.iter().filter(|s| s.name == "qwen3.5-27b");
    check(shapes.map(|s| narrow(s, 4)), |t| t == DType::Q8_0.into() || t.name() == "Q4_K_M", 40);
}

/// Rows that are no whole blocks of a type take the one that `quantize` takes for them.
#[test]
fn rows_that_do_not_fit_a_type_take_another() {
    let executor = Executor::open("cpu", None).unwrap();
    let shape = Shape::find("deepseek-v2-lite").unwrap();
    // 10,944 is no multiple of 256, which only the dense first layer has.
    let small = Shape { layers: 1, vocab: 512, ..shape.clone() };
    let named = |name: &str| WeightTypes::all().find(|types| types.name() == name).unwrap();
    // Bytes per 32 elements of `ffn_down`, which Q4_K_M has in Q6_K in the first layers.
    for (types, block) in [("Q4_K", 22), ("Q4_K_M", 34), ("Q5_K", 24), ("Q6_K", 34), ("IQ4_XS", 18), ("Q2_K", 18)] {
        let bytes = |ffn: usize| {
            let model = Model::random(&Shape { ffn, ..small.clone() }, named(types), &executor).unwrap();
            let mut session = model.session(SessionOptions { context: 32, ..SessionOptions::default() }).unwrap();
            assert!(session.feed(0, &[1, 2, 3], Logits::Last).unwrap().iter().all(|v| v.is_finite()));
            model.weight_bytes()
        };
        // Both lengths are no multiple of 256; their difference is, so that gate and up differ by whole blocks.
        let (width, more) = (small.width, bytes(10944) - bytes(10944 - 256));
        let gates = 2 * 256 * row_bytes(types, width);
        assert_eq!(more - gates, width * 256 / 32 * block, "{types}");
    }
}

/// Bytes of a row of this many elements.
fn row_bytes(types: &str, len: usize) -> usize {
    let of = |format: DType| format.at_load().bytes(1, len).unwrap();
    of(match types {
        "Q4_K" | "Q4_K_M" => DType::Q4_K,
        "Q5_K" => DType::Q5_K,
        "Q6_K" => DType::Q6_K,
        "Q2_K" => DType::Q2_K,
        _ => DType::IQ4_XS,
    })
}

/// An encoder's shape runs as `embed` runs it.
#[test]
fn a_random_encoder_tells_texts_apart() {
    let executor = Executor::open("cpu", None).unwrap();
    let shape = Shape { layers: 2, vocab: 1024, ..Shape::find("bge-m3").unwrap().clone() };
    for types in [DType::F16, DType::Q4_K] {
        let model = Model::random(&shape, types, &executor).unwrap();
        let mut embedder = Embedder::new(&model, 64).unwrap();
        let vectors = embedder.embed(&[&[1, 2, 3], &[1, 2, 4], &[1, 2, 3]], Pooling::Cls).unwrap();
        assert_eq!((vectors.len(), vectors[0].len()), (3, 1024));
        assert!(vectors[0].iter().zip(&vectors[2]).all(|(a, b)| (a - b).abs() < 1e-5));
        assert!(vectors[0].iter().zip(&vectors[1]).any(|(a, b)| (a - b).abs() > 1e-3));
    }
}

/// All shapes at full depth.
#[test]
#[ignore = "takes some minutes: for a nightly run"]
fn nightly_another_context_gives_other_logits_in_deep_models() {
    let decoders = SHAPES.iter().filter(|s| s.architecture != "bert");
    check(decoders.map(|s| narrow(s, s.layers)), |_| true, 400);
}

/// All shapes at full width, where a nonzero mean of the weights would dominate.
#[test]
#[ignore = "takes some minutes and GB: for a nightly run"]
fn nightly_another_context_gives_other_logits_in_wide_models() {
    let codes_without_mean_0 = [DType::Q4_0, DType::Q5_0, DType::IQ4_NL, DType::TQ2_0].map(WeightTypes::from);
    let shapes = SHAPES.iter().filter(|s| ["llama-8b", "bitnet-2b"].contains(&s.name));
    check(shapes.map(|s| Shape { layers: 2, vocab: 1024, ..s.clone() }), |t| codes_without_mean_0.contains(&t), 100);
}
