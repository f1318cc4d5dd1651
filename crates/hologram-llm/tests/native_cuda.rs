//! On an NVIDIA GPU models run only native kernels: no program is compiled between loading and the last token, for any
//! weight format and step size.

use std::path::PathBuf;

use hologram_backends::DType;
use hologram_core::Executor;
use hologram_llm::sampling::{Sampler, SamplerConfig};
use hologram_llm::{Logits, Model, SessionOptions, Shape, WeightTypes};

/// The programs that a session compiles for steps of each of these sizes, and for several sequences.
fn compiled(model: &Model, name: &str, kv: Option<DType>) -> Vec<String> {
    let executor = model.executor();
    let mut found = Vec::new();
    let count = || executor.backend().measure().metrics().pipelines_compiled;
    let mut before = count();
    let mut note = |what: &str| {
        let now = count();
        if now > before {
            found.push(format!("{name}: {} programs for {what}", now - before));
        }
        before = now;
    };
    let options = SessionOptions { context: 1024, sequences: 4, kv, ..SessionOptions::default() };
    let mut session = model.session(options).unwrap();
    note("a session");
    let ids = |n: usize| (0..n).map(|i| (i * 7919 % model.config().vocab) as u32).collect::<Vec<_>>();
    for tokens in [1, 2, 5, 8, 9, 33, 256, 300] {
        session.truncate(0, 0);
        session.feed(0, &ids(tokens), Logits::Last).unwrap();
        note(&format!("a step of {tokens} tokens"));
    }
    for config in [SamplerConfig::GREEDY, SamplerConfig::default()] {
        let mut sampler = Sampler::new(config).unwrap();
        session.sample(0, &ids(3), &mut sampler).unwrap();
        let chosen = session.sample(0, &ids(1), &mut sampler).unwrap();
        assert!((chosen as usize) < model.config().vocab);
        note("choosing a token");
    }
    session.sample_batch(&[(0, 1), (1, 2), (2, 3), (3, 4)], &mut Sampler::new(SamplerConfig::GREEDY).unwrap()).unwrap();
    note("a token of each of four sequences");
    found
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn no_program_is_compiled_in_a_run_of_a_model() {
    let mut found = Vec::new();
    // Only BitNet has ternary weights. Formats without planes have no native kernels yet: docs/models.md says so.
    let in_planes = |name: &str| {
        let format = DType::from_name(name).map(|format| format.recoded().in_planes());
        format.is_none_or(|format| matches!(format, DType::Planes(_) | DType::Plain(_)))
    };
    let types = WeightTypes::all().filter(|types| !types.name().starts_with("TQ") && in_planes(&types.name()));
    let mut models: Vec<_> = types.map(|types| ("llama-1b", types, None)).collect();
    models.push(("llama-1b", DType::Q4_K.into(), Some(DType::Q8Planes)));
    models.push(("llama-1b", DType::BF16.into(), Some(DType::F8)));
    models.push(("bitnet-2b", DType::TQ2_0.into(), None));
    for (shape, types, kv) in models {
        let executor = Executor::open("cuda", None).unwrap();
        let model = Model::random(Shape::find(shape).unwrap(), types, &executor).unwrap();
        found.extend(compiled(&model, &format!("{shape} {} {kv:?}", types.name()), kv));
    }
    let executor = Executor::open("cuda", None).unwrap();
    let shipped = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../hologram-cli/assets/rust-docs-bitnet.gguf");
    let before = executor.backend().measure().metrics().pipelines_compiled;
    let model = Model::load_on(shipped, &executor).unwrap();
    // A program lays out its embedding in planes: Q5_K has no kernel for that.
    if executor.backend().measure().metrics().pipelines_compiled > before + 1 {
        found.push("the shipped model: programs for loading".into());
    }
    found.extend(compiled(&model, "the shipped model", None));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn steps_of_fixed_sizes_give_the_same_logits() {
    let executor = Executor::open("cuda", None).unwrap();
    let model = Model::random(Shape::find("llama-1b").unwrap(), DType::BF16, &executor).unwrap();
    let ids: Vec<u32> = (0..256).map(|i| i * 7919 % model.config().vocab as u32).collect();
    let mut session = model.session(SessionOptions { context: 1024, ..SessionOptions::default() }).unwrap();
    // Powers of two may have separate plans; other sizes use the plan of a larger size.
    let whole = session.feed(0, &ids, Logits::Last).unwrap().to_vec();
    session.truncate(0, 0);
    session.feed(0, &ids[..200], Logits::None).unwrap();
    let parts = session.feed(0, &ids[200..], Logits::Last).unwrap();
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let error = norm(&mut whole.iter().zip(parts).map(|(a, b)| a - b)) / norm(&mut parts.iter().copied());
    // Another order of sums flips roundings to bf16, each by 2⁻⁹ of a value: nine per layer in 16 layers.
    assert!(error < 2e-2, "{error:.2e}");
}
