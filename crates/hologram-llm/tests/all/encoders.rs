//! Encoders and rerankers, from folders and GGUF files, against the reference libraries
//! (`tools/fixtures/make_encoders.py`).

use std::path::PathBuf;

use hologram_core::Executor;
use hologram_llm::{Embedder, LlmError, Logits, Model, Pooling, Reranker, SessionOptions};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// What the reference libraries computed.
struct Expected {
    json: Value,
    /// The texts' tokens, and the hidden states of all of them in order.
    texts: Vec<Vec<u32>>,
    states: Vec<f32>,
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn floats(list: &Value) -> Vec<f32> {
    list.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn expected(name: &str) -> Expected {
    let json: Value = serde_json::from_slice(&std::fs::read(fixture(name).join("expected.json")).unwrap()).unwrap();
    let npy = std::fs::read(fixture(name).join("states.npy")).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([npy[8], npy[9]]));
    let states = npy[start..].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let texts = json["texts"].as_array().unwrap().iter().map(ids).collect();
    Expected { json, texts, states }
}

/// ‖got − want‖ / ‖want‖.
fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(want).map(|(g, w)| g - w)) / norm(&mut want.iter().copied())
}

const FAMILIES: [&str; 5] = ["bert", "xlm-roberta", "modernbert", "nomic-bert", "embeddinggemma"];

/// Hidden states of texts one by one and of all in a batch, and the vectors that the files' modules make of them.
fn agrees(executor: &Executor, bound: f64) {
    for name in FAMILIES {
        let want = expected(name);
        for file in ["", "model.gguf"] {
            let what = format!("{name}/{file} on {}", executor.info().backend);
            let model = Model::load_on(fixture(name).join(file), executor).unwrap();
            let mut embedder = Embedder::new(&model, 96).unwrap();
            let width = model.config().width;
            let texts: Vec<&[u32]> = want.texts.iter().map(Vec::as_slice).collect();
            let together = embedder.embed(&texts, Pooling::None).unwrap();
            let error = relative_error(&together.concat(), &want.states);
            assert!(error < bound, "{what}: {error:.2e}");
            let mut rest = &want.states[..];
            for text in &texts {
                let alone = embedder.embed(&[text], Pooling::None).unwrap().concat();
                let (own, later) = rest.split_at(text.len() * width);
                assert!(relative_error(&alone, own) < bound, "{what}: {} tokens alone", text.len());
                rest = later;
            }
            let Some(vectors) = want.json["vectors"].as_array() else { continue };
            assert!(embedder.normalizes(), "{what}");
            let got = embedder.embed(&texts, embedder.pooling()).unwrap();
            for (got, want) in got.iter().zip(vectors) {
                assert!(relative_error(got, &floats(want)) < bound, "{what} pooled");
                assert_eq!(got.len(), embedder.width(), "{what}");
            }
        }
    }
}

#[test]
fn hidden_states_agree_with_the_reference_implementation() {
    agrees(&Executor::open("cpu", Some(2)).unwrap(), 1e-5);
}

#[test]
fn the_reference_interpreter_agrees() {
    let executor = Executor::open("reference", None).unwrap();
    for name in FAMILIES {
        let want = expected(name);
        let model = Model::load_on(fixture(name), &executor).unwrap();
        // The first three texts: one longer than any window.
        let texts: Vec<&[u32]> = want.texts[..3].iter().map(Vec::as_slice).collect();
        let got = Embedder::new(&model, 64).unwrap().embed(&texts, Pooling::None).unwrap().concat();
        assert!(relative_error(&got, &want.states[..got.len()]) < 1e-5, "{name}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn an_nvidia_gpu_agrees() {
    agrees(&Executor::open("cuda", None).unwrap(), 2e-2);
}

#[test]
fn texts_pairs_and_scores() {
    let executor = Executor::open("cpu", Some(2)).unwrap();
    for (name, files) in
        [("bert", &["", "model.gguf"][..]), ("xlm-roberta", &["", "model.gguf"]), ("modernbert", &[""])]
    {
        let want = expected(name).json;
        let documents: Vec<&str> = want["documents"].as_array().unwrap().iter().map(|d| d.as_str().unwrap()).collect();
        let query = want["query"].as_str().unwrap();
        for file in files {
            let model = Model::load_on(fixture(name).join(file), &executor).unwrap();
            let tokenizer = model.tokenizer().unwrap();
            for case in want["tokenized"].as_array().unwrap() {
                let (text, ids) = (case[0].as_str().unwrap(), ids(&case[1]));
                assert_eq!(tokenizer.encode_with(text, true, true).unwrap(), ids, "{name}/{file}: {text:?}");
            }
            for (document, pair) in documents.iter().zip(want["pairs"].as_array().unwrap()) {
                let got = tokenizer.encode_pair(query, document).unwrap();
                assert_eq!(got, (ids(&pair[0]), ids(&pair[1])), "{name}/{file}: {document:?}");
            }
            let mut reranker = Reranker::new(&model, 96).unwrap();
            let got = reranker.scores(query, &documents).unwrap();
            let error = relative_error(&got, &floats(&want["scores"]));
            assert!(error < 1e-5, "{name}/{file}: {error:.2e}");
        }
    }
}

/// What makes no sense is an error: an encoder has no next token, and texts have bounds.
#[test]
fn what_an_encoder_cannot_do() {
    let executor = Executor::open("cpu", Some(1)).unwrap();
    let model = Model::load_on(fixture("bert"), &executor).unwrap();
    let mut session = model.session(SessionOptions { context: 32, ..SessionOptions::default() }).unwrap();
    let refused = session.feed(0, &[5, 6], Logits::Last).unwrap_err();
    assert!(refused.to_string().contains("hologram embed"), "{refused}");
    assert!(Embedder::new(&model, 97).is_err());
    let mut embedder = Embedder::new(&model, 8).unwrap();
    for (tokens, message) in [(&[][..], "text 1 is empty"), (&[5; 9], "9 tokens"), (&[5, 999], "one is 999")] {
        let refused = embedder.embed(&[tokens], Pooling::Cls).unwrap_err();
        assert!(refused.to_string().contains(message), "{refused}");
    }
    let no_head = Model::load_on(fixture("nomic-bert"), &executor).unwrap();
    assert!(matches!(Reranker::new(&no_head, 8), Err(LlmError::Unsupported { .. })));
}

/// Qwen3-Reranker's question, answered by a folder's output matrix and by a GGUF file's head; and Qwen3-Embedding's
/// way: the last token of each text of a batch.
#[test]
fn decoders_score_and_embed() {
    let executor = Executor::open("cpu", Some(2)).unwrap();
    let name = "qwen3-reranker";
    let want: Value = serde_json::from_slice(&std::fs::read(fixture(name).join("expected.json")).unwrap()).unwrap();
    let documents: Vec<&str> = want["documents"].as_array().unwrap().iter().map(|d| d.as_str().unwrap()).collect();
    for file in ["", "model.gguf"] {
        let model = Model::load_on(fixture(name).join(file), &executor).unwrap();
        let mut reranker = Reranker::new(&model, 1024).unwrap();
        for _ in 0..2 {
            let got = reranker.scores(want["query"].as_str().unwrap(), &documents).unwrap();
            let error = relative_error(&got, &floats(&want["scores"]));
            assert!(error < 1e-4, "{file}: {error:.2e}");
        }
        let mut embedder = Embedder::new(&model, 300).unwrap();
        embedder.set_normalize(false);
        assert_eq!(embedder.pooling(), Pooling::Last);
        let texts: Vec<Vec<u32>> =
            (0..70u32).map(|i| (0..1 + i * 37 % 290).map(|t| (t * 7 + i) % 300).collect()).collect();
        let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
        let (last, first) =
            (embedder.embed(&texts, Pooling::Last).unwrap(), embedder.embed(&texts, Pooling::Cls).unwrap());
        let mut session = model.session(SessionOptions { context: 300, ..SessionOptions::default() }).unwrap();
        let width = model.config().width;
        for (i, text) in texts.iter().enumerate().step_by(9) {
            session.truncate(0, 0);
            let states = session.feed_hidden(0, text, Logits::All).unwrap();
            assert!(relative_error(&first[i], &states[..width]) < 1e-5, "text {i}");
            assert!(relative_error(&last[i], &states[states.len() - width..]) < 1e-5, "text {i}");
        }
    }
}
