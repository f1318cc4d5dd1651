//! Adapters beside the weights give the logits of the model into whose weights they are merged; adapters that do not
//! fit are reported.

use std::path::{Path, PathBuf};

use crate::common::scratch::Scratch;
use hologram_core::Executor;
use hologram_llm::gguf::{GgufFile, GgufWriter, NewTensor, TensorType, Value as Key, ValueType};
use hologram_llm::{Adapter, LlmError, LoadOptions, Logits, Model, ModelFiles, SessionOptions};
use serde_json::{Map, Value, json};

/// A tensor: name, shape, elements.
type Stored = (String, [usize; 2], Vec<f32>);

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn le(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Writes a safetensors file.
fn write(path: &Path, tensors: Vec<(String, Value, Value, Vec<u8>)>) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let range = [data.len(), data.len() + bytes.len()];
        header.insert(name, json!({ "dtype": dtype, "shape": shape, "data_offsets": range }));
        data.extend(bytes);
    }
    let header = Value::Object(header).to_string();
    std::fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()).unwrap();
}

/// A PEFT folder with these tensors and keys of its configuration.
fn peft(path: &Path, tensors: &[Stored], keys: Value) {
    std::fs::create_dir_all(path).unwrap();
    let mut config = json!({ "peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "modules_to_save": null });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    std::fs::write(path.join("adapter_config.json"), config.to_string()).unwrap();
    let stored = tensors.iter().map(|(name, shape, v)| (name.clone(), json!("F32"), json!(shape), le(v))).collect();
    write(&path.join("adapter_model.safetensors"), stored);
}

/// A GGUF adapter.
fn gguf(path: &Path, architecture: &str, alpha: f64, tensors: &[Stored]) {
    let keys = [
        ("general.type", Key::String("adapter")),
        ("adapter.type", Key::String("lora")),
        ("general.architecture", Key::String(architecture)),
        ("adapter.lora.alpha", Key::Float(ValueType::F32, alpha)),
    ];
    let ty = TensorType::of(hologram_backends::DType::F32).unwrap();
    let new: Vec<NewTensor> =
        tensors.iter().map(|(name, shape, _)| NewTensor { name: name.clone(), shape: shape.to_vec(), ty }).collect();
    let mut file = GgufWriter::create(path, keys.into_iter(), &new).unwrap();
    tensors.iter().for_each(|(_, _, values)| file.write(&le(values)).unwrap());
    file.finish().unwrap();
}

/// The two matrices of a module, `[rank, inputs]` and `[outputs, rank]`.
fn pair(rank: usize, outputs: usize, inputs: usize, seed: usize) -> [Vec<f32>; 2] {
    let value = |i: usize, of: usize| ((i * 2_654_435_761 + seed * 40_503 + of * 97) % 1009) as f32 / 1009.0 - 0.5;
    [(0..rank * inputs).map(|i| value(i, 1)).collect(), (0..outputs * rank).map(|i| value(i, 2)).collect()]
}

/// Rows of heads of `head_dim` rows in the order of GGUF files of the architecture `llama`: the two elements that a
/// rotary embedding pairs are neighbours.
fn permuted(b: &[f32], rank: usize, head_dim: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for head in b.chunks(head_dim * rank) {
        for i in 0..head_dim / 2 {
            for row in [i, i + head_dim / 2] {
                out.extend_from_slice(&head[row * rank..(row + 1) * rank]);
            }
        }
    }
    out
}

fn logits(path: &Path, adapters: &[Adapter]) -> hologram_llm::Result<Vec<f32>> {
    let executor = Executor::open("cpu", Some(2)).unwrap();
    let model = Model::load_with(
        ModelFiles::open(path)?,
        &executor,
        &LoadOptions { adapters, ..LoadOptions::default() },
        &mut |_, _| (),
    )?;
    let mut session = model.session(SessionOptions { context: 64, ..SessionOptions::default() })?;
    let tokens: Vec<u32> = (3..20).collect();
    let mut rows = session.feed(0, &tokens, Logits::All)?.to_vec();
    // A step of one token, too.
    rows.extend_from_slice(session.feed(0, &[7], Logits::All)?);
    Ok(rows)
}

fn relative_error(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let squares: f32 = want.iter().map(|v| v * v).sum();
    (got.iter().zip(want).map(|(g, w)| (g - w).powi(2)).sum::<f32>() / squares).sqrt()
}

/// A copy of a folder with `factor · B · A` added to these weights.
fn merged(name: &str, to: &Path, changes: &[(&str, f32, &[Vec<f32>; 2])]) {
    let from = fixture(name);
    std::fs::create_dir_all(to).unwrap();
    std::fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    let file = std::fs::read(from.join("model.safetensors")).unwrap();
    let at = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    let old: Map<String, Value> = serde_json::from_slice(&file[8..at]).unwrap();
    let (mut tensors, mut found) = (Vec::new(), 0);
    for (name, entry) in old.iter().filter(|(name, _)| *name != "__metadata__") {
        let place = |i: usize| at + entry["data_offsets"][i].as_u64().unwrap() as usize;
        let mut bytes = file[place(0)..place(1)].to_vec();
        let mut dtype = entry["dtype"].clone();
        for (_, factor, [a, b]) in changes.iter().filter(|(module, ..)| name == &format!("{module}.weight")) {
            let values: Vec<f32> = match dtype.as_str().unwrap() {
                "F16" => bytes.chunks(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
                "BF16" => bytes.chunks(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
                _ => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            };
            let inputs = entry["shape"][1].as_u64().unwrap() as usize;
            let rank = a.len() / inputs;
            let of = |i: usize| (0..rank).map(|k| b[i / inputs * rank + k] * a[k * inputs + i % inputs]).sum::<f32>();
            bytes = le(&values.iter().enumerate().map(|(i, w)| w + factor * of(i)).collect::<Vec<_>>());
            (dtype, found) = (json!("F32"), found + 1);
        }
        tensors.push((name.clone(), dtype, entry["shape"].clone(), bytes));
    }
    assert_eq!(found, changes.len());
    write(&to.join("model.safetensors"), tensors);
}

/// A module: in folders, in GGUF files, outputs, inputs, and whether GGUF files permute its rows.
type Module = (&'static str, &'static str, usize, usize, bool);

const LLAMA: [Module; 6] = [
    ("model.layers.0.self_attn.q_proj", "blk.0.attn_q", 64, 32, true),
    ("model.layers.1.self_attn.k_proj", "blk.1.attn_k", 32, 32, true),
    ("model.layers.1.self_attn.v_proj", "blk.1.attn_v", 32, 32, false),
    ("model.layers.0.mlp.gate_proj", "blk.0.ffn_gate", 64, 32, false),
    ("model.layers.1.mlp.down_proj", "blk.1.ffn_down", 32, 64, false),
    ("lm_head", "output", 96, 32, false),
];
/// Matrices of which layers load some rows at a time.
const PHI3: [Module; 2] = [
    ("model.layers.1.self_attn.qkv_proj", "blk.1.attn_qkv", 64, 32, false),
    ("model.layers.0.mlp.gate_up_proj", "blk.0.ffn_up", 64, 32, false),
];

#[test]
fn adapters_of_both_kinds_equal_merged_weights() {
    const HEAD: usize = 16;
    for (name, architecture, modules) in [("llama-linear", "llama", &LLAMA[..]), ("phi3", "phi3", &PHI3[..])] {
        let scratch = Scratch::new(name);
        let at = |name: &str| scratch.0.join(name);
        // Rank 4 with alpha 8 for all, and rank 2 with alpha 6 for the first, at half of its scale.
        let first: Vec<_> = modules.iter().enumerate().map(|(i, m)| pair(4, m.2, m.3, i)).collect();
        let second = pair(2, modules[0].2, modules[0].3, 50);
        let mut changes: Vec<_> = modules.iter().zip(&first).map(|(m, pair)| (m.0, 2.0, pair)).collect();
        changes.push((modules[0].0, 1.5, &second));
        merged(name, &at("merged"), &changes);
        let want = logits(&at("merged"), &[]).unwrap();
        let plain = logits(&fixture(name), &[]).unwrap();
        assert!(relative_error(&plain, &want) > 0.05);

        let of_peft = |module: &Module, rank: usize, [a, b]: &[Vec<f32>; 2]| -> [Stored; 2] {
            let name = |which: &str| format!("base_model.model.{}.lora_{which}.weight", module.0);
            [(name("A"), [rank, module.3], a.clone()), (name("B"), [module.2, rank], b.clone())]
        };
        let of_gguf = |module: &Module, rank: usize, [a, b]: &[Vec<f32>; 2]| -> [Stored; 2] {
            let b = if module.4 { permuted(b, rank, HEAD) } else { b.clone() };
            let name = |which: &str| format!("{}.weight.lora_{which}", module.1);
            [(name("a"), [rank, module.3], a.clone()), (name("b"), [module.2, rank], b)]
        };
        let all: Vec<Stored> = modules.iter().zip(&first).flat_map(|(m, pair)| of_peft(m, 4, pair)).collect();
        peft(&at("peft-0"), &all, json!({}));
        peft(&at("peft-1"), &of_peft(&modules[0], 2, &second), json!({ "r": 2, "lora_alpha": 6 }));
        let all: Vec<Stored> = modules.iter().zip(&first).flat_map(|(m, pair)| of_gguf(m, 4, pair)).collect();
        gguf(&at("gguf-0"), architecture, 8.0, &all);
        gguf(&at("gguf-1"), architecture, 6.0, &of_gguf(&modules[0], 2, &second));

        for model in ["", "model.gguf"] {
            for kind in ["peft", "gguf"] {
                let open = |i: usize, scale: f32| Adapter::open(at(&format!("{kind}-{i}")), scale).unwrap();
                let path = fixture(name).join(model);
                let error = relative_error(&logits(&path, &[open(0, 1.0), open(1, 0.5)]).unwrap(), &want);
                assert!(error < 1e-5, "{name}/{model} with {kind}: {error:.2e}");
                let without = logits(&path, &[open(0, 0.0)]).unwrap();
                assert_eq!(without, logits(&path, &[]).unwrap(), "{name}/{model} with {kind}");
            }
        }
    }
}

#[test]
fn factors_of_peft_configurations() {
    let scratch = Scratch::new("factors");
    let (module, own) = (&LLAMA[4], pair(4, 32, 64, 1));
    let name = |which: &str| format!("base_model.model.{}.lora_{which}.weight", module.0);
    let tensors = [(name("A"), [4, 64], own[0].clone()), (name("B"), [32, 4], own[1].clone())];
    for (keys, factor) in [
        (json!({ "use_rslora": true }), 4.0),
        (json!({ "alpha_pattern": { "down_proj": 2 } }), 0.5),
        (json!({ "alpha_pattern": { "own_proj": 2, "layers.1.mlp.down_proj": 6 } }), 1.5),
    ] {
        peft(&scratch.0.join("adapter"), &tensors, keys.clone());
        merged("llama-linear", &scratch.0.join("merged"), &[(module.0, factor, &own)]);
        let want = logits(&scratch.0.join("merged"), &[]).unwrap();
        let adapter = Adapter::open(scratch.0.join("adapter"), 1.0).unwrap();
        let error = relative_error(&logits(&fixture("llama-linear"), &[adapter]).unwrap(), &want);
        assert!(error < 1e-5, "{keys}: {error:.2e}");
    }
}

#[test]
fn adapters_that_do_not_fit_are_reported() {
    let scratch = Scratch::new("bad");
    let at = |name: &str| scratch.0.join(name);
    let tensors = |module: &str, outputs: usize, inputs: usize| -> Vec<Stored> {
        let [a, b] = pair(4, outputs, inputs, 3);
        let name = |which: &str| format!("base_model.model.{module}.lora_{which}.weight");
        vec![(name("A"), [4, inputs], a), (name("B"), [outputs, 4], b)]
    };
    let query = "model.layers.0.self_attn.q_proj";
    let good = tensors(query, 64, 32);
    let only_a = vec![good[0].clone()];
    let ranks = vec![good[0].clone(), (good[1].0.clone(), [32, 8], good[1].2.clone())];
    let other = (good[0].0.replace("lora_A", "lora_A.default"), good[0].1, good[0].2.clone());
    let twice = [&good[..], &[other]].concat();
    let mut nan = good.clone();
    nan[1].2[5] = f32::NAN;
    let embedding = vec![("base_model.model.model.embed_tokens.lora_embedding_A".into(), [4, 96], vec![0.0; 384])];
    for (what, tensors, keys, want) in [
        ("wide", tensors(query, 64, 48), json!({}), "has shape [64, 48], but that of"),
        ("deep", tensors("model.layers.7.self_attn.q_proj", 64, 32), json!({}), "model.layers.7.self_attn.q_proj"),
        ("other", tensors("model.layers.0.mixer.in_proj", 64, 32), json!({}), "is not a linear layer of"),
        ("half", only_a, json!({}), "only one of the two matrices of model.layers.0.self_attn.q_proj.weight"),
        ("ranks", ranks, json!({}), "are 4 and 8, but must be equal"),
        ("nan", nan, json!({}), "has the element NaN"),
        ("embedding", embedding, json!({}), "lora_embedding_A is not a low-rank matrix of a linear layer"),
        ("none", vec![], json!({}), "has no low-rank matrices"),
        ("dora", good.clone(), json!({ "use_dora": true }), "use_dora of true is not supported"),
        ("alora", good.clone(), json!({ "alora_invocation_tokens": [1] }), "alora_invocation_tokens of [1] is not"),
        ("rslora", good.clone(), json!({ "use_rslora": "yes" }), "use_rslora of \"yes\" is not supported"),
        ("r", good.clone(), json!({ "r": 8 }), "key r is 8, but the matrices of"),
        ("twice", twice, json!({}), "are the same matrix"),
        (
            "pissa",
            good.clone(),
            json!({ "init_lora_weights": "pissa" }),
            "init_lora_weights of \"pissa\" is not supported",
        ),
        ("kind", good.clone(), json!({ "peft_type": "IA3" }), "peft_type of \"IA3\" is not supported"),
        ("alpha", good.clone(), json!({ "lora_alpha": "8" }), "key lora_alpha is not a number"),
        ("regex", good.clone(), json!({ "alpha_pattern": { "q|k": 1 } }), "has a regular expression"),
    ] {
        peft(&at(what), &tensors, keys);
        let adapted = |adapter| logits(&fixture("llama-linear"), &[adapter]);
        let error = Adapter::open(at(what), 1.0).and_then(adapted).expect_err(what).to_string();
        assert!(error.contains(want) && error.contains(what), "{what}: {error}");
    }
    let [a, b] = pair(4, 64, 32, 3);
    let tensors =
        [("blk.0.attn_q.weight.lora_a".into(), [4, 32], a), ("blk.0.attn_q.weight.lora_b".into(), [64, 4], b)];
    gguf(&at("qwen"), "qwen2", 8.0, &tensors);
    let error = |adapter: Result<Adapter, LlmError>| {
        adapter.and_then(|adapter| logits(&fixture("llama-linear"), &[adapter])).unwrap_err().to_string()
    };
    assert!(error(Adapter::open(at("qwen"), 1.0)).contains("is for models of the architecture qwen2, but"));
    assert!(error(Adapter::open(fixture("llama-tiny.gguf"), 1.0)).contains("it is not a LoRA adapter"));
    assert!(error(Adapter::open(fixture("llama-linear"), 1.0)).contains("has no adapter_config.json"));
    assert!(error(Adapter::open(at("dora"), f32::NAN)).contains("scale is NaN"));
    // A model is no adapter, and an adapter no model.
    assert!(GgufFile::open(at("qwen")).is_ok_and(|file| ModelFiles::from(file).config().is_err()));
}
