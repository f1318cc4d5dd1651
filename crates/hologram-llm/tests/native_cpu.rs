//! On the CPU every model family runs native kernels; the remaining elementwise programs are listed here.

use std::path::PathBuf;

use hologram_core::Executor;
use hologram_llm::sampling::{Sampler, SamplerConfig};
use hologram_llm::{Logits, Model, SessionOptions};

/// A fixture of each family, with the number of programs in a plan.
const FAMILIES: [(&str, u64); 7] = [
    ("llama-tiny.gguf", 0),
    ("llama3-tiny.gguf", 0),
    ("bitnet-tiny.gguf", 0),
    ("bitnet-packed", 0),
    ("mistral", 0),
    // A bias is broadcast along rows: one program for queries, one for keys and values.
    ("qwen2", 2),
    ("qwen3", 0),
];

/// Step sizes, each with a separate plan.
const STEPS: [usize; 5] = [1, 2, 5, 9, 33];

#[test]
fn steps_of_every_family_run_native_kernels() {
    let mut wrong = Vec::new();
    for (name, of_plan) in FAMILIES {
        let executor = Executor::open("cpu", None).unwrap();
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let model = Model::load_on(path, &executor).unwrap();
        let compiled = || executor.backend().metrics().pipelines_compiled;
        let before = compiled();
        let mut session =
            model.session(SessionOptions { context: 64, sequences: 3, ..SessionOptions::default() }).unwrap();
        for tokens in STEPS {
            let ids: Vec<u32> = (0..tokens).map(|i| (i * 31 % model.config().vocab) as u32).collect();
            session.truncate(0, 0);
            session.feed(0, &ids, Logits::Last).unwrap();
        }
        let mut sampler = Sampler::new(SamplerConfig::GREEDY).unwrap();
        session.sample_batch(&[(0, 1), (1, 2), (2, 3)], &mut sampler).unwrap();
        let (found, expected) = (compiled() - before, of_plan * (STEPS.len() as u64 + 1));
        if found != expected {
            let kernels: Vec<_> = session.profile().unwrap().into_iter().map(|(name, _)| name).collect();
            wrong.push(format!("{name}: {found} programs, not {expected}; the last step is {kernels:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
