//! `--lora`: adapters change what a model computes, by their scale.

use crate::common::{Folder, LLAMA, ok, read_f32, rejected};
use hologram_backends::DType;
use hologram_llm::gguf::{GgufFile, GgufWriter, NewTensor, TensorType, Value, ValueType};

/// Writes an adapter of rank 2 of a layer's output projection.
fn adapter(path: &str, layer: usize, architecture: &str) {
    let weight = format!("blk.{layer}.attn_output.weight");
    let model = GgufFile::open(LLAMA).unwrap();
    let shape = model.tensor("blk.0.attn_output.weight").unwrap().shape().to_vec();
    let keys = [
        ("general.type", Value::String("adapter")),
        ("general.architecture", Value::String(architecture)),
        ("adapter.type", Value::String("lora")),
        ("adapter.lora.alpha", Value::Float(ValueType::F32, 2.0)),
    ];
    let ty = TensorType::of(DType::F32).unwrap();
    let new = [("a", vec![2, shape[1]]), ("b", vec![shape[0], 2])].map(|(which, shape)| NewTensor {
        name: format!("{weight}.lora_{which}"),
        shape,
        ty,
    });
    let mut file = GgufWriter::create(path, keys.into_iter(), &new).unwrap();
    for tensor in &new {
        let values = (0..tensor.shape.iter().product::<usize>()).map(|i| (i * 37 % 11) as f32 / 11.0 - 0.4);
        file.write(&values.flat_map(f32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    }
    file.finish().unwrap();
}

#[test]
fn adapters_change_results_by_their_scale() {
    let folder = Folder::new("lora");
    let lora = folder.path("adapter.gguf");
    adapter(&lora, 0, "llama");
    let logits = |adapters: &[&str]| {
        let out = folder.path("logits.npy");
        let mut call = vec!["logits", LLAMA, "--tokens", "1,5,9", "--out", &out, "--device", "cpu"];
        adapters.iter().for_each(|a| call.extend(["--lora", a]));
        ok(&call);
        read_f32(&out)
    };
    let scaled = |scale: f32| format!("{lora}:{scale}");
    let plain = logits(&[]);
    assert_eq!(logits(&[&scaled(0.0)]), plain);
    let (once, twice) = (logits(&[&lora]), logits(&[&scaled(2.0)]));
    let far = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(far(&once, &plain) > 1e-2 && far(&twice, &once) > 1e-2);
    // Two adapters add up.
    assert!(far(&logits(&[&lora, &lora]), &twice) < 1e-4);
    assert!(far(&logits(&[&lora, &scaled(-1.0)]), &plain) < 1e-4);

    let text = folder.write("text.txt", "one two three four five six seven eight nine ten ".repeat(20));
    let perplexity = |adapters: &[&str]| {
        ok(&[&["perplexity", LLAMA, "--file", &text, "--ctx", "16", "--device", "cpu"], adapters].concat())
    };
    assert_ne!(perplexity(&["--lora", &lora]), perplexity(&[]));
    let greedy = |adapters: &[&str]| {
        ok(&[&["run", LLAMA, "one two", "--temp", "0", "-n", "20", "--device", "cpu"], adapters].concat())
    };
    assert_ne!(greedy(&["--lora", &scaled(4.0)]), greedy(&[]));
    ok(&["bench", LLAMA, "-p", "4", "-n", "2", "-r", "1", "--device", "cpu", "--lora", &lora]);
}

#[test]
fn adapters_that_do_not_fit_end_with_a_sentence() {
    let folder = Folder::new("bad-lora");
    let (deep, other) = (folder.path("deep.gguf"), folder.path("other.gguf"));
    adapter(&deep, 99, "llama");
    adapter(&other, 0, "qwen2");
    let missing = folder.path("none");
    for (lora, want) in [
        (deep.as_str(), "changes blk.99.attn_output.weight, which is not a linear layer of"),
        (&other, "is for models of the architecture qwen2, but"),
        (LLAMA, "it is not a LoRA adapter"),
        (&missing, "No such file"),
        (folder.0.to_str().unwrap(), "has no adapter_config.json"),
    ] {
        for command in [&["run", LLAMA, "one"][..], &["bench", LLAMA], &["serve", LLAMA, "--port", "0"]] {
            rejected(&[command, &["--device", "cpu", "--lora", lora]].concat(), 1, &[lora, want]);
        }
    }
    rejected(&["run", LLAMA, "one", "--lora", &format!("{deep}:much")], 2, &["the scale much is not a number"]);
    rejected(&["bench", "--shape", "llama-1b", "--lora", &deep], 2, &["--lora"]);
}
