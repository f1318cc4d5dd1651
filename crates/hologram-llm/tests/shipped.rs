//! The shipped model against a plain reference that reads the same file (`tools/demo-model/reference.py`).

use std::path::PathBuf;

use hologram_core::Executor;
use hologram_llm::gguf::GgufFile;
use hologram_llm::sampling::SamplerConfig;
use hologram_llm::tokenizer::Tokenizer;
use hologram_llm::{Finish, GenerateOptions, Logits, Model, SessionOptions};
use serde_json::Value;

fn asset(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../hologram-cli/assets").join(name)
}

fn expected() -> Value {
    serde_json::from_str(&std::fs::read_to_string(asset("rust-docs-bitnet.expected.json")).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

#[test]
fn the_tokenizer_gives_the_reference_ids() {
    let tokenizer = Tokenizer::from_gguf(&GgufFile::open(asset("rust-docs-bitnet.gguf")).unwrap()).unwrap();
    let expected = expected();
    let cases = expected["tokenizer"].as_array().unwrap();
    assert!(cases.len() >= 20);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let got = tokenizer.encode(text, false).unwrap();
        assert_eq!(got, ids(&case["ids"]), "{text:?}");
        assert_eq!(tokenizer.decode(&got, false), text);
    }
}

#[test]
fn logits_and_greedy_text_agree_with_the_reference() {
    agrees(&Executor::open("cpu", Some(2)).unwrap());
}

fn agrees(executor: &Executor) {
    let model = Model::load_on(asset("rust-docs-bitnet.gguf"), executor).unwrap();
    for run in expected()["runs"].as_array().unwrap() {
        let prompt = run["prompt"].as_str().unwrap();
        let tokens = ids(&run["ids"]);
        assert_eq!(model.tokenizer().unwrap().encode(prompt, true).unwrap(), tokens);
        let mut session = model.session(SessionOptions { context: 256, ..SessionOptions::default() }).unwrap();
        let logits = session.feed(0, &tokens, Logits::Last).unwrap();
        // The reference uses float activations for the head, this program 8-bit ones: they differ by about 1 %.
        for top in run["top5"].as_array().unwrap() {
            let (id, want) = (top["id"].as_u64().unwrap() as usize, top["logit"].as_f64().unwrap());
            let got = f64::from(logits[id]);
            assert!((got - want).abs() < 0.1, "{prompt:?}: logit {id} is {got}, not {want}");
        }
        let greedy = ids(&run["greedy"]);
        let options =
            GenerateOptions { max_tokens: greedy.len(), sampling: SamplerConfig::GREEDY, ..GenerateOptions::default() };
        let pieces: Result<Vec<_>, _> = model.generate(prompt, &options).unwrap().collect();
        let pieces = pieces.unwrap();
        let got: Vec<u32> = pieces.iter().map(|p| p.id).take(greedy.len()).collect();
        assert_eq!(got, greedy, "{prompt:?}");
        let text: String = pieces.iter().map(|p| p.text.as_str()).collect();
        assert_eq!(text, run["greedy_text"].as_str().unwrap(), "{prompt:?}");
    }
}

#[test]
fn generation_is_repeatable_and_ends_for_the_right_reason() {
    repeats(&Executor::open("cpu", Some(2)).unwrap());
}

fn repeats(executor: &Executor) {
    let model = Model::load_on(asset("rust-docs-bitnet.gguf"), executor).unwrap();
    let text = |seed: u64, max_tokens: usize, context: usize| {
        let sampling = SamplerConfig { seed, ..SamplerConfig::default() };
        let options = GenerateOptions { max_tokens, sampling, context: Some(context), ..GenerateOptions::default() };
        let mut generation = model.generate("A closure in Rust is", &options).unwrap();
        let text: String = generation.by_ref().map(|p| p.unwrap().text).collect();
        (text, generation.finish().unwrap(), generation.stats().generated_tokens)
    };
    let (first, finish, tokens) = text(7, 24, 256);
    assert_eq!((finish, tokens), (Finish::MaxTokens, 24));
    assert_eq!(text(7, 24, 256).0, first);
    assert_ne!(text(8, 24, 256).0, first);
    // The prompt has 6 tokens. The last token of a full context needs no position.
    let (short, finish, tokens) = text(7, 24, 16);
    assert_eq!((finish, tokens), (Finish::ContextFull, 11));
    assert!(first.starts_with(&short));
    let options = GenerateOptions { context: Some(3), ..GenerateOptions::default() };
    let error = model.generate("A closure in Rust is", &options).err().unwrap().to_string();
    assert!(error.contains("the prompt has 6 tokens") && error.contains("--ctx"), "{error}");
}

#[test]
fn a_thousand_generations_leave_memory_as_it_was() {
    memory_stays(&Executor::open("cpu", Some(2)).unwrap());
}

fn memory_stays(executor: &Executor) {
    let model = Model::load_on(asset("rust-docs-bitnet.gguf"), executor).unwrap();
    let options = GenerateOptions { max_tokens: 2, context: Some(64), ..GenerateOptions::default() };
    let mut after = Vec::new();
    for _ in 0..1000 {
        assert_eq!(model.generate("The", &options).unwrap().filter(|piece| piece.is_ok()).count(), 2);
        let memory = executor.metrics().memory;
        after.push((memory.live, memory.cached));
    }
    assert_eq!(after[1], after[999]);
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn an_nvidia_gpu_agrees() {
    let executor = Executor::open("cuda", None).unwrap();
    agrees(&executor);
    repeats(&executor);
    memory_stays(&executor);
}
