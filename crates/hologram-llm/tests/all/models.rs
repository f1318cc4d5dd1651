//! Small random models against the reference implementations' logits (`tools/fixtures` tells how they were made), on
//! every device.

use std::path::PathBuf;

use half::f16;
use hologram_core::Executor;
use hologram_llm::gguf::GgufFile;
use hologram_llm::sampling::{Sampler, SamplerConfig};
use hologram_llm::{Embedder, LlmError, Logits, Model, Pooling, SessionOptions};

/// The fixtures with the maximum relative error of their logits. Weights are F32, F16, and ternary with F32.
const MODELS: [(&str, f64); 3] = [("llama-tiny", 1e-5), ("llama3-tiny", 1e-5), ("bitnet-tiny", 1e-5)];

/// bitnet-tiny in two files and in I2_S, with scales of Q and K that `f16` cannot represent.
const I2_S: &str = "bitnet-i2_s-00001-of-00002.gguf";

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The 4-byte little-endian elements of a .npy file of version 1.
fn npy(name: &str) -> Vec<[u8; 4]> {
    let data = std::fs::read(fixture(name)).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([data[8], data[9]]));
    data[start..].as_chunks::<4>().0.to_vec()
}

fn tokens(model: &str, sequence: &str) -> Vec<u32> {
    npy(&format!("{model}.tokens-{sequence}.npy")).into_iter().map(u32::from_le_bytes).collect()
}

fn logits(model: &str, sequence: &str) -> Vec<f32> {
    npy(&format!("{model}.logits-{sequence}.npy")).into_iter().map(f32::from_le_bytes).collect()
}

fn load(name: &str, executor: &Executor) -> Model {
    Model::load_on(fixture(&format!("{name}.gguf")), executor).unwrap()
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

#[test]
fn logits_agree_with_the_reference_implementation() {
    for threads in [1, 2] {
        logits_agree(&Executor::open("cpu", Some(threads)).unwrap(), 0.0, None);
    }
}

/// The residual stream after the last layer, which the reference implementation wrote before the output norm.
#[test]
fn hidden_states_and_embeddings_are_those_of_the_reference() {
    let executor = Executor::open("cpu", Some(1)).unwrap();
    for (name, bound) in MODELS {
        let model = load(name, &executor);
        let (width, tokens) = (model.config().width, tokens(name, "a"));
        let file = GgufFile::open(fixture(&format!("{name}.gguf"))).unwrap();
        let weight = file.tensor("output_norm.weight").unwrap().to_f32().unwrap();
        let streams: Vec<f32> = npy(&format!("{name}.hidden-a.npy")).into_iter().map(f32::from_le_bytes).collect();
        let last = &streams[streams.len() - tokens.len() * width..];
        let norm = |state: &[f32]| {
            let mean = state.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / width as f64;
            let scale = (mean + f64::from(model.config().eps)).sqrt().recip();
            let scaled = state.iter().zip(&weight).map(|(v, w)| (f64::from(*v) * scale * f64::from(*w)) as f32);
            scaled.collect::<Vec<f32>>()
        };
        let want: Vec<f32> = last.chunks(width).flat_map(norm).collect();
        let mut session = model.session(options(2)).unwrap();
        let got = session.feed_hidden(0, &tokens, Logits::All).unwrap().to_vec();
        assert!(relative_error(&got, &want) < bound, "{name}: {:.2e}", relative_error(&got, &want));
        // Logits afterwards are still logits.
        session.truncate(0, 0);
        let logits_now = session.feed(0, &tokens, Logits::All).unwrap();
        assert!(relative_error(logits_now, &logits(name, "a")) < bound);
        let mut embedder = Embedder::new(&model, 64).unwrap();
        let unit = |vector: Vec<f64>| {
            let length = vector.iter().map(|v| v * v).sum::<f64>().sqrt();
            vector.iter().map(|v| (v / length) as f32).collect::<Vec<f32>>()
        };
        let column = |i: usize| got.iter().skip(i).step_by(width).map(|v| f64::from(*v)).sum::<f64>();
        let mean = unit((0..width).map(column).collect());
        let last = unit(got[got.len() - width..].iter().map(|v| f64::from(*v)).collect());
        for (pooling, want) in [(Pooling::Mean, mean), (Pooling::Last, last)] {
            for _ in 0..2 {
                assert!(
                    relative_error(&embedder.embed(&[&tokens], pooling).unwrap()[0], &want) < bound,
                    "{name} {pooling:?}"
                );
            }
        }
    }
}

/// Raises bounds to at least `least`, for devices that sum in another precision.
fn logits_agree(executor: &Executor, least: f64, precision: Option<usize>) {
    for (name, bound) in MODELS {
        let model = load(name, executor);
        for sequence in ["a", "b"] {
            // All tokens in one step, in several steps, and token by token.
            for batch in [64, 8, 1] {
                let mut session = model.session(options(batch)).unwrap();
                session.fix_precision(precision);
                let got = session.feed(0, &tokens(name, sequence), Logits::All).unwrap();
                let error = relative_error(got, &logits(name, sequence));
                assert!(error < bound.max(least), "{name} {sequence}, batch {batch}: {error:.2e}");
            }
        }
    }
}

#[test]
fn a_split_model_in_i2_s_computes_the_same() {
    i2_s(&Executor::open("cpu", Some(2)).unwrap(), 1e-5);
}

fn i2_s(executor: &Executor, bound: f64) {
    let model = Model::load_on(fixture(I2_S), executor).unwrap();
    for sequence in ["a", "b"] {
        let mut session = model.session(options(64)).unwrap();
        let got = session.feed(0, &tokens("bitnet-tiny", sequence), Logits::All).unwrap();
        let error = relative_error(got, &logits("bitnet-tiny", sequence));
        assert!(error < bound, "{sequence}: {error:.2e}");
    }
}

/// The maximum relative error of logits on a GPU, and where it multiplies F16 weights as `bf16`.
const GPU: f64 = 1e-3;
const GPU_BF16: f64 = 2e-2;

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn an_nvidia_gpu_agrees() {
    let executor = Executor::open("cuda", None).unwrap();
    logits_agree(&executor, GPU, Some(1));
    logits_agree(&executor, GPU_BF16, None);
    i2_s(&executor, GPU);
    greedy_continuations(&executor);
    sequences_apart(&executor, GPU_BF16);
    many_sequences(&executor, GPU_BF16);
    what_is_no_number_comes_out(&executor, &BROKEN, &["norm", "blk.1.ffn_gate"], usize::MAX);
}

/// The interpreter takes a second for each ten tokens.
#[test]
fn the_reference_interpreter_agrees() {
    the_interpreter_agrees(6);
}

#[test]
fn the_reference_interpreter_sees_a_broken_weight() {
    the_interpreter_sees_a_broken_weight(6);
}

#[test]
#[ignore = "half a minute: the nightly workflow"]
fn nightly_the_reference_interpreter_agrees_on_all_tokens() {
    the_interpreter_agrees(usize::MAX);
    the_interpreter_sees_a_broken_weight(usize::MAX);
}

/// On the first tokens of a text, in more than one step.
fn the_interpreter_agrees(most: usize) {
    let executor = Executor::open("reference", None).unwrap();
    for (name, bound) in MODELS {
        let model = load(name, &executor);
        let mut session = model.session(options(most.min(9) - 1)).unwrap();
        let (tokens, want) = (tokens(name, "a"), logits(name, "a"));
        let n = most.min(tokens.len());
        let got = session.feed(0, &tokens[..n], Logits::All).unwrap();
        let error = relative_error(got, &want[..want.len() / tokens.len() * n]);
        assert!(error < bound, "{name}: {error:.2e}");
    }
}

fn the_interpreter_sees_a_broken_weight(most: usize) {
    let executor = Executor::open("reference", None).unwrap();
    what_is_no_number_comes_out(&executor, &["bitnet-tiny"], &["blk.1.ffn_norm", "blk.1.ffn_gate"], most);
}

#[test]
fn a_broken_weight_is_seen() {
    what_is_no_number_comes_out(
        &Executor::open("cpu", Some(2)).unwrap(),
        &BROKEN,
        &["norm", "blk.1.ffn_gate"],
        usize::MAX,
    );
}

/// The models whose weights are corrupted on fast devices.
const BROKEN: [&str; 2] = ["llama-tiny", "bitnet-tiny"];

/// A NaN in one of these tensors, or an infinity in a norm, reaches the logits, also through 8-bit activations and
/// gates. Of at most so many tokens.
fn what_is_no_number_comes_out(executor: &Executor, models: &[&str], names: &[&str], most: usize) {
    for name in models {
        let path = fixture(&format!("{name}.gguf"));
        let whole = std::fs::read(&path).unwrap();
        let gguf = GgufFile::open(&path).unwrap();
        for tensor in gguf.tensors().filter(|t| names.iter().any(|name| t.name().contains(name))) {
            let at = whole.windows(tensor.data().len()).position(|w| w == tensor.data()).unwrap();
            // An infinite gate may be a closed one.
            let values = [f32::NAN, f32::INFINITY];
            for value in &values[..if tensor.name().contains("norm") { 2 } else { 1 }] {
                let mut broken = whole.clone();
                if tensor.ty().name == "TQ2_0" {
                    broken[at + 64..at + 66].copy_from_slice(&f16::from_f32(*value).to_le_bytes());
                } else {
                    broken[at + 20..at + 24].copy_from_slice(&value.to_le_bytes());
                }
                let unique = format!("{}-{:?}", std::process::id(), std::thread::current().id());
                let file = std::env::temp_dir().join(format!("hologram-broken-{unique}.gguf"));
                std::fs::write(&file, broken).unwrap();
                let model = Model::load_on(&file, executor).unwrap();
                // Several tokens at once, then one.
                for batch in [8, 1] {
                    let mut session = model.session(options(batch)).unwrap();
                    let mut tokens = tokens(name, "a");
                    tokens.truncate(most);
                    let logits = session.feed(0, &tokens, Logits::All).unwrap();
                    for (row, logits) in logits.chunks(logits.len() / tokens.len()).enumerate() {
                        let seen = logits.iter().any(|l| !l.is_finite());
                        assert!(seen, "{} {value}, batch {batch}, token {row}", tensor.name());
                    }
                }
                std::fs::remove_file(&file).unwrap();
            }
        }
    }
}

#[test]
fn greedy_continuations_agree() {
    greedy_continuations(&Executor::open("cpu", Some(2)).unwrap());
}

fn greedy_continuations(executor: &Executor) {
    for (name, _) in MODELS {
        let text = std::fs::read_to_string(fixture(&format!("{name}.greedy.json"))).unwrap();
        let expected: serde_json::Value = serde_json::from_str(&text).unwrap();
        let expected: Vec<u32> =
            expected["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
        let model = load(name, executor);
        let mut session = model.session(options(8)).unwrap();
        session.fix_precision(Some(1));
        let mut pending = tokens(name, "a");
        let mut got = Vec::new();
        while got.len() < expected.len() {
            let logits = session.feed(0, &pending, Logits::Last).unwrap();
            let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32;
            got.push(best);
            pending = vec![best];
        }
        assert_eq!(got, expected, "{name}");
    }
}

#[test]
fn sequences_do_not_disturb_each_other_and_can_be_shortened() {
    sequences_apart(&Executor::open("cpu", Some(2)).unwrap(), 1e-5);
}

fn sequences_apart(executor: &Executor, bound: f64) {
    let model = load("llama-tiny", executor);
    let (a, b) = (tokens("llama-tiny", "a"), tokens("llama-tiny", "b"));
    let mut session = model.session(SessionOptions { sequences: 2, ..options(16) }).unwrap();
    // Two sequences in turn, one piece at a time.
    let (mut got_a, mut got_b) = (Vec::new(), Vec::new());
    got_a.extend_from_slice(session.feed(0, &a[..2], Logits::All).unwrap());
    got_b.extend_from_slice(session.feed(1, &b[..33], Logits::All).unwrap());
    got_a.extend_from_slice(session.feed(0, &a[2..], Logits::All).unwrap());
    got_b.extend_from_slice(session.feed(1, &b[33..], Logits::All).unwrap());
    assert!(relative_error(&got_a, &logits("llama-tiny", "a")) < bound);
    assert!(relative_error(&got_b, &logits("llama-tiny", "b")) < bound);
    // The same tokens give the same logits after other tokens took their place.
    session.truncate(1, 30);
    session.feed(1, &a, Logits::None).unwrap();
    session.truncate(1, 30);
    let vocab = session.vocab();
    let again = session.feed(1, &b[30..], Logits::All).unwrap();
    assert!(relative_error(again, &logits("llama-tiny", "b")[30 * vocab..]) < bound);
}

#[test]
fn a_token_of_each_of_many_sequences_at_once() {
    many_sequences(&Executor::open("cpu", Some(2)).unwrap(), 1e-5);
}

fn many_sequences(executor: &Executor, bound: f64) {
    let model = load("llama-tiny", executor);
    let (b, want) = (tokens("llama-tiny", "b"), logits("llama-tiny", "b"));
    // Sequence s has s + 1 cached tokens. All advance together, in steps of 16 of the 24 sequences.
    let n = 24;
    let mut session = model.session(SessionOptions { sequences: n, ..options(16) }).unwrap();
    let vocab = session.vocab();
    for s in 0..n {
        session.feed(s, &b[..=s], Logits::None).unwrap();
    }
    for step in 0..3 {
        let batch: Vec<(usize, u32)> = (0..n).map(|s| (s, b[s + 1 + step])).collect();
        let got = session.feed_batch(&batch).unwrap();
        assert_eq!(got.len(), n * vocab);
        for (s, row) in got.chunks(vocab).enumerate() {
            let at = s + 1 + step;
            let error = relative_error(row, &want[at * vocab..(at + 1) * vocab]);
            assert!(error < bound, "sequence {s}, step {step}: {error:.2e}");
        }
    }
    // A rejected batch leaves every sequence unchanged.
    session.feed(3, &[1; 64 - 7], Logits::None).unwrap();
    let batch: Vec<(usize, u32)> = (0..n).map(|s| (s, 1)).collect();
    assert!(session.feed_batch(&batch).unwrap_err().to_string().contains("full"));
    assert!((0..n).all(|s| session.len(s) == if s == 3 { 64 } else { s + 4 }));
}

#[test]
fn wrong_use_is_named() {
    let executor = Executor::open("cpu", Some(1)).unwrap();
    let model = load("llama-tiny", &executor);
    let mut session = model.session(options(16)).unwrap();
    let message = |r: Result<&[f32], LlmError>| r.unwrap_err().to_string();
    assert!(message(session.feed(0, &[9999], Logits::Last)).contains("one is 9999"));
    assert!(message(session.feed(1, &[1], Logits::Last)).contains("sequence"));
    assert!(message(session.feed(0, &[1; 65], Logits::Last)).contains("context of 64"));
    assert_eq!(session.len(0), 0, "a rejected call leaves the sequence unchanged");
    session.feed(0, &[1; 64], Logits::None).unwrap();
    assert!(message(session.feed(0, &[1], Logits::Last)).contains("full"));
    for (options, name) in [
        (SessionOptions { context: 0, ..options(8) }, "ctx"),
        (SessionOptions { batch: Some(0), ..options(8) }, "batch"),
        (SessionOptions { kv: Some(hologram_core::DType::Q8_0), ..options(8) }, "kv"),
    ] {
        assert!(model.session(options).err().unwrap().to_string().contains(name));
    }
}

/// A session samples the same tokens on the device and on the host, for one and for several sequences.
#[test]
fn sampling_on_the_device_is_that_of_the_host() {
    let executor = Executor::open("cpu", None).unwrap();
    let model = Model::load_on(fixture("llama-tiny.gguf"), &executor).unwrap();
    let run = |device: bool, config: SamplerConfig| {
        let options =
            SessionOptions { context: 64, sequences: 2, device_sampling: Some(device), ..SessionOptions::default() };
        let mut session = model.session(options).unwrap();
        let mut sampler = Sampler::new(config).unwrap();
        let mut tokens = vec![session.sample(0, &[1, 5, 9], &mut sampler).unwrap()];
        tokens.push(session.sample(1, &[2, 8], &mut sampler).unwrap());
        for _ in 0..12 {
            let last = [(0, tokens[tokens.len() - 2]), (1, tokens[tokens.len() - 1])];
            tokens.extend_from_slice(session.sample_batch(&last, &mut sampler).unwrap());
        }
        assert_eq!((session.len(0), session.len(1)), (15, 14));
        tokens
    };
    for seed in [1, 1 << 33] {
        for (temperature, top_k, top_p) in [(0.0, 0, 1.0), (0.8, 40, 0.95), (1.2, 0, 1.0), (1.0, 0, 0.7)] {
            let config = SamplerConfig { temperature, top_k, top_p, seed, ..SamplerConfig::default() };
            assert_eq!(run(true, config), run(false, config), "{config:?}");
        }
    }
}
