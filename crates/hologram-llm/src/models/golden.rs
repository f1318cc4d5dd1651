//! The graph of each architecture as text: a change of a shared block shows in every graph that it affects.
//!
//! `UPDATE_GOLDEN=1 cargo test -p hologram-llm golden` rewrites the files.

use std::path::PathBuf;

use hologram_core::Executor;

use super::decoder::{Bucket, Decoder, Results};
use crate::files::ModelFiles;
use crate::kv::KvCache;
use crate::safetensors::FolderWeights;
use crate::weights::FileWeights;

fn load(name: &str, executor: &Executor) -> Decoder {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let files = ModelFiles::open(path).unwrap();
    let config = files.config().unwrap();
    let progress = &mut |_, _| ();
    match &files {
        ModelFiles::Gguf(file) => {
            Decoder::load(config, &FileWeights::new(executor, file).unwrap(), None, &[], progress)
        }
        ModelFiles::Folder(folder) => {
            let names = &config.architecture.folder;
            Decoder::load(config, &FolderWeights::new(executor, folder, names).unwrap(), None, &[], progress)
        }
    }
    .unwrap()
}

#[test]
fn graphs_of_all_architectures() {
    let executor = Executor::open("cpu", Some(1)).unwrap();
    let models = [
        ("llama", "llama-tiny.gguf"),
        ("bitnet", "bitnet-tiny.gguf"),
        ("mistral", "mistral"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("ministral3", "ministral3"),
        ("gemma2", "gemma2"),
        ("gemma3_text", "gemma3"),
        ("gemma3n_text", "gemma3n"),
        ("gemma4_text", "gemma4"),
        ("phi3", "phi4"),
        ("smollm3", "smollm3"),
        ("olmo2", "olmo2"),
        ("olmo3", "olmo3"),
        ("granite", "granite"),
        ("cohere2", "cohere2"),
        ("starcoder2", "starcoder2"),
        ("glm4", "glm4"),
        ("qwen3_moe", "qwen3-moe"),
        ("qwen2_moe", "qwen2-moe"),
        ("mixtral", "mixtral"),
        ("olmoe", "olmoe"),
        ("gpt_oss", "gpt-oss"),
        ("glm4_moe", "glm4-moe"),
        ("granitemoe", "granite-moe"),
        ("lfm2", "lfm2"),
        ("lfm2_moe", "lfm2-moe"),
        ("qwen3_5_text", "qwen3-5"),
        ("qwen3_5_moe_text", "qwen3-5-moe"),
        ("qwen3_next", "qwen3-next"),
        ("granitemoehybrid", "granite-4"),
        ("falcon_h1", "falcon-h1"),
        ("nemotron_h", "nemotron-3-nano"),
        ("deepseek_v2", "deepseek-v2"),
        ("deepseek_v3", "deepseek-v3"),
        ("glm4_moe_lite", "glm-4-7-flash"),
        ("bert", "bert"),
        ("xlm-roberta", "xlm-roberta"),
        ("modernbert", "modernbert"),
        ("nomic_bert", "nomic-bert"),
    ];
    for (name, fixture) in models {
        let decoder = load(fixture, &executor);
        assert!(decoder.config.architecture.folder.model_type == name, "{fixture} is not a {name}");
        let format = decoder.cache_format(&**executor.backend());
        let cache = KvCache::new(&executor, &decoder.config, (2, 64, None, 0), format).unwrap();
        let bucket = Bucket {
            tokens: 4,
            full: false,
            outputs: 2,
            results: Results::Logits,
            precision: None,
            independent: false,
            pieces: false,
        };
        let got = decoder.graph(&executor, &cache, bucket).unwrap().to_string();
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/graphs/{name}.txt"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &got).unwrap();
        }
        let want = std::fs::read_to_string(&path).unwrap();
        for (line, (got, want)) in got.lines().zip(want.lines()).enumerate() {
            assert_eq!(got, want, "{} line {}", path.display(), line + 1);
        }
        assert_eq!(got.lines().count(), want.lines().count(), "{}", path.display());
    }
    assert_eq!(super::ARCHITECTURES.len(), models.len(), "every architecture has a golden graph");
}
