//! Folders written as GGUF files: names, metadata and tensors are those of llama.cpp's converter, and the model
//! computes the same.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::common::scratch::Scratch;
use hologram_core::Executor;
use hologram_llm::gguf::GgufFile;
use hologram_llm::quantize::{QuantizeOptions, Quantized, Recipe, quantize};
use hologram_llm::tokenizer::Tokenizer;
use hologram_llm::{Embedder, Logits, Model, ModelFiles, Pooling, SessionOptions};

/// Folders with a GGUF file of the same model that the `gguf` package wrote, except the last ones.
const FOLDERS: [&str; 49] = [
    "llama-linear",
    "mistral",
    "qwen2-yarn",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "phi4",
    "smollm3",
    "olmo2",
    "olmo3",
    "granite",
    "cohere2",
    "starcoder2",
    "glm4",
    "ministral3",
    "qwen3-moe",
    "qwen2-moe",
    "mixtral",
    "olmoe",
    "gpt-oss",
    "glm4-moe",
    "granite-moe",
    "gemma4",
    "gemma4-k-is-v",
    "gemma4-moe",
    "gemma3n",
    "lfm2",
    "lfm2-moe",
    "qwen3-5",
    "qwen3-5-moe",
    "qwen3-next",
    "granite-4",
    "granite-4-dense",
    "falcon-h1",
    "falcon-h1-norm",
    "nemotron-h",
    "nemotron-3-nano",
    "nemotron-3-super",
    "deepseek-v2",
    "deepseek-v3",
    "glm-4-7-flash",
    "bert",
    "xlm-roberta",
    "modernbert",
    "embeddinggemma",
    "nomic-bert",
    "llama3-scaled",
    "bitnet-packed",
];

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn write(folder: &Path, out: &Path, recipe: &str) -> hologram_llm::Result<Quantized> {
    let options = QuantizeOptions { threads: 2, ..QuantizeOptions::new(Recipe::from_name(recipe).unwrap()) };
    quantize(&ModelFiles::open(folder)?, out, &options, &mut |done, of| {
        assert!(done <= of);
        ControlFlow::Continue(())
    })
}

/// Logits, or an encoder's states and vector.
fn logits(path: &Path) -> Vec<f32> {
    let executor = Executor::open("cpu", Some(2)).unwrap();
    let model = Model::load_on(path, &executor).unwrap();
    let tokens: Vec<u32> = (3..35).collect();
    if model.config().bidirectional {
        let mut embedder = Embedder::new(&model, 64).unwrap();
        let pooled = embedder.embed(&[&tokens], embedder.pooling()).unwrap();
        return [embedder.embed(&[&tokens], Pooling::None).unwrap(), pooled].concat().concat();
    }
    let mut session = model.session(SessionOptions { context: 64, ..SessionOptions::default() }).unwrap();
    session.feed(0, &tokens, Logits::All).unwrap().to_vec()
}

fn relative_error(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let squares: f32 = want.iter().map(|v| v * v).sum();
    (got.iter().zip(want).map(|(g, w)| (g - w).powi(2)).sum::<f32>() / squares).sqrt()
}

#[test]
fn files_are_those_of_the_converter() {
    let scratch = Scratch::new("all");
    for name in FOLDERS {
        let out = scratch.0.join(name);
        write(&fixture(name), &out, "F32").unwrap_or_else(|e| panic!("{name}: {e}"));
        let error = relative_error(&logits(&out), &logits(&fixture(name)));
        // 16-bit weights are computed in other formats than those of 32.
        assert!(error < if name == "bitnet-packed" { 2e-2 } else { 1e-5 }, "{name}: {error:.2e}");
        let Ok(theirs) = GgufFile::open(fixture(name).join("model.gguf")) else { continue };
        let ours = GgufFile::open(&out).unwrap();
        let tensors = |file: &GgufFile| -> BTreeMap<String, Vec<usize>> {
            file.tensors().map(|t| (t.name().to_string(), t.shape().to_vec())).collect()
        };
        assert_eq!(tensors(&ours), tensors(&theirs), "{name}");
        for tensor in theirs.tensors() {
            let (want, got) = (tensor.to_f32().unwrap(), ours.tensor(tensor.name()).unwrap().to_f32().unwrap());
            let error = relative_error(&got, &want);
            assert!(error < 1e-3, "{name} {}: {error:.2e}", tensor.name());
        }
        assert_eq!(ours.architecture().unwrap(), theirs.architecture().unwrap());
        let pooling =
            |file: &GgufFile| file.get_opt::<u32>(&format!("{}.pooling_type", file.architecture().unwrap())).unwrap();
        assert_eq!(pooling(&ours), pooling(&theirs), "{name}");
        let Ok(theirs) = Tokenizer::from_gguf(&theirs) else { continue };
        let ours = Tokenizer::from_gguf(&ours).unwrap();
        for text in ["", "A text, and Ünïcode 世界!", "  two  spaces\n[MASK] <mask> "] {
            assert_eq!(ours.encode(text, true).unwrap(), theirs.encode(text, true).unwrap(), "{name}: {text:?}");
        }
    }
}

/// Quantized, families whose tensors change places compute nearly the same.
#[test]
fn families_are_quantized() {
    let scratch = Scratch::new("quantized");
    for name in [
        "qwen3-5",
        "qwen3-next",
        "granite-4",
        "falcon-h1",
        "nemotron-3-nano",
        "deepseek-v3",
        "gemma3n",
        "gemma4-moe",
        "lfm2",
        "bert",
    ] {
        let out = scratch.0.join(name);
        write(&fixture(name), &out, "Q8_0").unwrap_or_else(|e| panic!("{name}: {e}"));
        let file = GgufFile::open(&out).unwrap();
        assert!(file.tensors().any(|t| t.ty().name == "Q8_0"), "{name}");
        let error = relative_error(&logits(&out), &logits(&fixture(name)));
        // Where activations are rounded, a token may choose another expert.
        assert!(error < 0.2, "{name}: {error:.2e}");
    }
}

/// A tied output has a factor of its own, and becomes a tensor.
#[test]
fn a_tied_output_with_factors() {
    let folder = Scratch::new("tied");
    folder.copy(&fixture("falcon-h1"));
    let path = folder.0.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["tie_word_embeddings"] = true.into();
    std::fs::write(path, config.to_string()).unwrap();
    without(&folder.0, "lm_head.weight");
    let scratch = Scratch::new("tied-out");
    let out = scratch.0.join("out");
    write(&folder.0, &out, "F32").unwrap();
    let error = relative_error(&logits(&out), &logits(&folder.0));
    assert!(error < 1e-5, "{error:.2e}");
}

#[test]
fn tokenizers_and_types() {
    let scratch = Scratch::new("tokens");
    for (tokenizer, kind) in [("hf-bpe", "gpt2"), ("hf-spm", "llama")] {
        let folder = Scratch::new(tokenizer);
        folder.copy(&fixture("qwen2"));
        folder.copy(&fixture(tokenizer));
        // The fixture's vocabulary has 96 tokens; a longer one needs rows, and some rows have no token.
        let tokens = Tokenizer::from_folder(&folder.0).unwrap();
        let rows = tokens.vocab_len() + 2;
        widen(&folder.0, rows);
        let out = scratch.0.join(tokenizer);
        write(&folder.0, &out, "Q8_0").unwrap();
        let file = GgufFile::open(&out).unwrap();
        assert_eq!(file.get::<&str>("tokenizer.ggml.model").unwrap(), kind);
        let read = Tokenizer::from_gguf(&file).unwrap();
        assert_eq!((read.bos(), read.eos(), read.adds_bos()), (tokens.bos(), tokens.eos(), tokens.adds_bos()));
        for text in ["", "a", "Hello, world", "  don't \n\n 123 世界 🚀", "<|im_start|>user"] {
            assert_eq!(read.encode(text, true).unwrap(), tokens.encode(text, true).unwrap(), "{tokenizer} {text:?}");
        }
        let without = [rows as u32 - 2, 70, rows as u32 - 1];
        let (got, want) = (read.decode(&without, true), tokens.decode(&without, true));
        assert!(got == want && want.matches('\u{fffd}').count() == 2, "{tokenizer}: {got:?}, not {want:?}");
        let error = relative_error(&logits(&out), &logits(&folder.0));
        assert!(error < 5e-2, "{tokenizer}: {error:.2e}");
        let types: Vec<&str> = file.tensors().filter(|t| t.shape().len() == 1).map(|t| t.ty().name).collect();
        assert!(types.iter().all(|ty| *ty == "F32"), "{types:?}");
    }
}

/// Changes the tensors of a folder: each entry of the header with its bytes, or none of them.
fn tensors(folder: &Path, change: impl Fn(&str, &mut serde_json::Value, Vec<u8>) -> Option<Vec<u8>>) {
    let path = folder.join("model.safetensors");
    let file = std::fs::read(&path).unwrap();
    let at = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    let old: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&file[8..at]).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, entry) in old.iter().filter(|(name, _)| *name != "__metadata__") {
        let place = |i: usize| at + entry["data_offsets"][i].as_u64().unwrap() as usize;
        let mut entry = entry.clone();
        let Some(bytes) = change(name, &mut entry, file[place(0)..place(1)].to_vec()) else { continue };
        entry["data_offsets"] = serde_json::json!([data.len(), data.len() + bytes.len()]);
        data.extend(bytes);
        header.insert(name.clone(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    std::fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()).unwrap();
}

/// Removes a tensor.
fn without(folder: &Path, name: &str) {
    tensors(folder, |own, _, bytes| (own != name).then_some(bytes));
}

/// Gives the embedding and the output of a folder this many rows.
fn widen(folder: &Path, rows: usize) {
    tensors(folder, |name, entry, bytes| {
        if !name.ends_with("embed_tokens.weight") && name != "lm_head.weight" {
            return Some(bytes);
        }
        let row = bytes.len() / entry["shape"][0].as_u64().unwrap() as usize;
        entry["shape"][0] = rows.into();
        Some(bytes.iter().copied().cycle().take(rows * row).collect())
    });
    let path = folder.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["vocab_size"] = rows.into();
    std::fs::write(path, config.to_string()).unwrap();
}

#[test]
fn what_a_file_cannot_express_is_reported() {
    let scratch = Scratch::new("bad");
    let out = scratch.0.join("out.gguf");
    let error = |folder: &Path| write(folder, &out, "F16").unwrap_err().to_string();
    let folder = Scratch::new("dynamic");
    folder.copy(&fixture("llama-linear"));
    let path = folder.0.join("config.json");
    let config = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, config.replace("\"linear\"", "\"dynamic\"")).unwrap();
    assert!(error(&folder.0).contains("rope_scaling: Dynamic would be read as None"));
    std::fs::write(&path, config.replace("\"vocab_size\": 96", "\"vocab_size\": 95")).unwrap();
    assert!(error(&folder.0).contains("has shape [96, 32], but config.json requires [95, 32]"));
    std::fs::write(&path, config).unwrap();
    for (key, pattern, want) in [
        (
            "pre_tokenizer",
            serde_json::json!({ "type": "Split", "pattern": { "Regex": "\\w+" }, "behavior": "Isolated", "invert": false }),
            "no name in GGUF",
        ),
        ("model", serde_json::json!({ "type": "WordLevel", "unk_token": "a", "vocab": { "a": 0 } }), "WordLevel"),
    ] {
        folder.copy(&fixture("hf-bpe"));
        let path = folder.0.join("tokenizer.json");
        let mut spec: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let byte_level = serde_json::json!({ "type": "ByteLevel", "use_regex": false, "add_prefix_space": false, "trim_offsets": true });
        spec[key] = match key {
            "model" => pattern,
            _ => serde_json::json!({ "type": "Sequence", "pretokenizers": [pattern, byte_level] }),
        };
        std::fs::write(&path, spec.to_string()).unwrap();
        let message = error(&folder.0);
        assert!(message.contains(want), "{key}: {message}");
    }
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0, "something is left");
    // The folder's own files stay.
    let folder = fixture("llama-linear");
    let message = write(&folder, &folder.join("model.safetensors"), "F16").unwrap_err().to_string();
    assert!(message.contains("is a file of the folder that is read"), "{message}");
}
