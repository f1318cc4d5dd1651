//! Mixtures whose experts another device computes: the logits are those of the model on one device.

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::discrete::Discrete;
use hologram_backends::DType;
use hologram_core::Executor;
use hologram_llm::{ExpertPlace, Input, LoadOptions, Logits, Model, ModelFiles, SessionOptions, Shape};

/// Each family with experts.
const MODELS: [&str; 18] = [
    "deepseek-v2",
    "deepseek-v3",
    "gemma4-moe",
    "glm-4-7-flash",
    "glm4-moe",
    "gpt-oss",
    "gpt-oss-mxfp4",
    "granite-4",
    "granite-moe",
    "lfm2-moe",
    "mixtral",
    "nemotron-3-nano",
    "nemotron-3-super",
    "olmoe",
    "qwen2-moe",
    "qwen3-5-moe",
    "qwen3-moe",
    "qwen3-next",
];

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn cpu(threads: usize) -> Executor {
    Executor::open("cpu", Some(threads)).unwrap()
}

fn load(name: &str, executor: &Executor, options: &LoadOptions<'_>) -> hologram_llm::Result<Model> {
    Model::load_with(ModelFiles::open(file(name))?, executor, options, &mut |_, _| ())
}

fn apart(host: &Executor) -> LoadOptions<'static> {
    LoadOptions { experts: ExpertPlace::Cpu, host: Some(host.clone()), ..LoadOptions::default() }
}

/// Logits of all tokens of a text at once, of the text token by token, and of three texts of unequal lengths together
/// with single tokens of them.
fn logits(model: &Model) -> Vec<f32> {
    let vocab = model.config().vocab as u32;
    let text = |seed: u32, n: u32| (0..n).map(|i| (i * 37 + seed * 5) % vocab.min(250)).collect::<Vec<u32>>();
    let options = SessionOptions { context: 64, sequences: 4, ..SessionOptions::default() };
    let mut session = model.session(options).unwrap();
    let mut all = session.feed(0, &text(0, 19), Logits::All).unwrap().to_vec();
    session.truncate(0, 0);
    for token in text(1, 7) {
        all.extend_from_slice(session.feed(0, &[token], Logits::Last).unwrap());
    }
    let texts = [text(2, 11), text(3, 1), text(4, 6)];
    let first: Vec<Input<'_>> = texts
        .iter()
        .enumerate()
        .map(|(i, tokens)| Input { sequence: i + 1, tokens, logits: Logits::Last })
        .chain([Input { sequence: 0, tokens: &[3], logits: Logits::Last }])
        .collect();
    all.extend_from_slice(session.feed_inputs(&first).unwrap());
    all.extend_from_slice(session.feed_batch(&[(0, 4), (1, 5), (2, 6), (3, 7)]).unwrap());
    all
}

/// ‖got − want‖ / ‖want‖.
fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(want).map(|(g, w)| g - w)) / norm(&mut want.iter().copied())
}

#[test]
fn logits_are_those_of_one_device() {
    let (own, host) = (cpu(2), cpu(1));
    for name in MODELS {
        let together = load(name, &own, &LoadOptions::default()).unwrap();
        let split = load(name, &own, &apart(&host)).unwrap();
        assert!(together.expert_executor().is_none() && split.expert_executor().is_some());
        assert_eq!(together.weight_bytes(), split.weight_bytes(), "{name}");
        let error = relative_error(&logits(&split), &logits(&together));
        assert!(error < 1e-5, "{name}: {error:.2e}");
        assert!(host.metrics().launches > 0, "{name}: the host computed nothing");
    }
}

/// The device that shares no memory has its own layouts, so that experts there and here have other ones.
#[test]
fn devices_with_their_own_memory_and_layouts() {
    let (discrete, host) = (Executor::from_backend(Arc::new(Discrete::new(1, None))), cpu(2));
    for (name, bound) in [("qwen3-moe", 1e-5), ("gpt-oss-mxfp4", 3e-2), ("deepseek-v3", 1e-5)] {
        let together = load(name, &discrete, &LoadOptions::default()).unwrap();
        let split = load(name, &discrete, &apart(&host)).unwrap();
        let error = relative_error(&logits(&split), &logits(&together));
        assert!(error < bound, "{name}: {error:.2e}");
    }
}

/// The shape of a published mixture, cut down.
fn small(name: &str) -> Shape {
    Shape {
        layers: 2,
        width: 256,
        ffn: 256,
        experts: Some((8, 2)),
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        vocab: 512,
        ..Shape::find(name).unwrap().clone()
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn experts_of_a_gpu() {
    let (gpu, host) = (Executor::open("cuda", None).unwrap(), cpu(4));
    for name in ["qwen3-30b-a3b", "gpt-oss-20b"] {
        for (types, bound) in [(DType::F32, 1e-4), (DType::BF16, 1e-2), (DType::Q8_0, 2e-2), (DType::MXFP4, 3e-2)] {
            let shape = small(name);
            let together = Model::random(&shape, types, &gpu).unwrap();
            let split = Model::random_with(&shape, types, &gpu, &apart(&host)).unwrap();
            let error = relative_error(&logits(&split), &logits(&together));
            println!("{name} {}: {error:.2e}", types.name());
            assert!(error < bound, "{name} {}: {error:.2e}", types.name());
        }
    }
}

#[test]
fn random_weights_of_a_shape_are_split_too() {
    let shape = small("qwen3-30b-a3b");
    let (own, host) = (cpu(1), cpu(1));
    let together = Model::random(&shape, DType::Q4_K, &own).unwrap();
    let split = Model::random_with(&shape, DType::Q4_K, &own, &apart(&host)).unwrap();
    let error = relative_error(&logits(&split), &logits(&together));
    assert!(error < 1e-5, "{error:.2e}");
    let line = split.experts_elsewhere().unwrap();
    assert!(
        line.starts_with("the experts (0.00 GB) are computed by cpu (") && line.contains(", the rest (0.00 GB) by cpu")
    );
}

#[test]
fn what_does_not_fit_goes_to_the_host() {
    let device = |left| Executor::from_backend(Arc::new(Discrete::new(1, Some(left))));
    let options = || LoadOptions { host: Some(cpu(1)), ..LoadOptions::default() };
    let all = load("qwen3-moe", &cpu(1), &LoadOptions::default()).unwrap().weight_bytes() as u64;
    assert!(load("qwen3-moe", &device(2 * all), &options()).unwrap().expert_executor().is_none());
    let split = load("qwen3-moe", &device(all), &options()).unwrap();
    assert!(split.expert_executor().is_some());
    let small = load("qwen3-moe", &device(1000), &options()).err().unwrap().to_string();
    assert!(small.contains("qwen3-moe without its experts has") && small.contains("GB of weights, but"), "{small}");
    // A choice overrides what fits.
    let gpu = LoadOptions { experts: ExpertPlace::Gpu, ..options() };
    let error = load("qwen3-moe", &device(all / 2), &gpu).err().unwrap().to_string();
    assert!(error.contains("qwen3-moe has") && error.contains("GB of weights, but"), "{error}");
    assert!(load("qwen3-moe", &device(2 * all), &gpu).unwrap().expert_executor().is_none());
}

#[test]
fn choices_without_meaning_are_rejected() {
    let own = cpu(1);
    let of = |experts| LoadOptions { experts, ..LoadOptions::default() };
    let error = |name: &str, options: &LoadOptions<'_>| load(name, &own, options).err().unwrap().to_string();
    assert_eq!(error("qwen3", &of(ExpertPlace::Cpu)), "experts is cpu, but the model has no experts");
    assert_eq!(error("qwen3-moe", &of(ExpertPlace::Gpu)), "experts is gpu, but the device is the CPU");
    // On the CPU they are there already.
    assert!(load("qwen3-moe", &own, &of(ExpertPlace::Cpu)).unwrap().expert_executor().is_none());
    assert_eq!(error("qwen3", &of(ExpertPlace::Gpu)), "experts is gpu, but the device is the CPU");
}
