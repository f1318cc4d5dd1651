//! Other forms of model folders: parts of larger models, other types of tensors, older keys; damaged folders.

use std::path::Path;

use hologram_core::Executor;
use hologram_llm::gguf::{GgufFile, GgufWriter, NewTensor};
use hologram_llm::{Embedder, Model, ModelFiles, Pooling, Reranker};
use serde_json::{Value, json};

use crate::common::folders::{Copy, agrees, fixture};

/// Unrounded weights that quantize to those of the packed fixture.
#[test]
fn ternary_weights_that_are_rounded_at_load() {
    let copy = Copy::of("bitnet-packed");
    let tensors = copy.tensors();
    let scale_of = |name: &str| {
        let (_, _, _, bytes) = tensors.iter().find(|t| t.0 == format!("{name}_scale")).unwrap();
        f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
    };
    let trained = tensors.iter().filter(|t| !t.0.ends_with("_scale")).map(|(name, dtype, shape, bytes)| {
        if *dtype != "U8" {
            return (name.clone(), *dtype, shape.clone(), bytes.clone());
        }
        let (packed_rows, cols) = (shape[0], shape[1]);
        // Near -1, 0 and 1, then all scaled so that the mean magnitude is the scale.
        let near = |i: usize| {
            let (r, c) = (i / cols, i % cols);
            let code = (bytes[r % packed_rows * cols + c] >> (2 * (r / packed_rows))) & 3;
            (f64::from(code) - 1.0) * [1.0, 1.3, 0.9][i % 3] + [0.1, -0.1, 0.05, -0.05, 0.0][i % 5]
        };
        let n = 4 * packed_rows * cols;
        let mean = (0..n).map(|i| near(i).abs()).sum::<f64>() / n as f64;
        let of_all = f64::from(scale_of(name)) / mean;
        let values = (0..n).flat_map(|i| ((near(i) * of_all) as f32).to_le_bytes()).collect();
        (name.clone(), "F32", vec![4 * packed_rows, cols], values)
    });
    copy.write(&trained.collect::<Vec<_>>(), 0);
    copy.config(|c| c["quantization_config"]["quantization_mode"] = json!("online"));
    agrees(&Executor::open("cpu", Some(2)).unwrap(), "bitnet-packed", &copy.0, 1e-5, None);
}

/// A published Gemma 4: a text part beside towers, and matrices of keys and values that layers with those of others do
/// not use.
#[test]
fn a_text_part_of_a_larger_model() {
    let copy = Copy::of("gemma4");
    copy.config(|c| {
        let mut text = c.clone();
        text["per_layer_config"] = Value::Null;
        text["global_head_dim"] = json!(32);
        text["use_bidirectional_attention"] = json!("vision");
        *c = json!({
            "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": text,
            "vision_config": { "hidden_size": 8, "num_hidden_layers": 2 }, "tie_word_embeddings": true
        });
    });
    let moved = |(name, ty, shape, bytes): (String, &'static str, Vec<usize>, Vec<u8>)| {
        (name.replacen("model.", "model.language_model.", 1), ty, shape, bytes)
    };
    let mut tensors: Vec<_> = copy.tensors().into_iter().map(moved).collect();
    let unused =
        ["k_proj", "v_proj", "k_norm"].map(|own| format!("model.language_model.layers.5.self_attn.{own}.weight"));
    let towers =
        ["model.vision_tower.patch_embedder.input_proj.weight", "model.embed_audio.x.weight"].map(String::from);
    tensors.extend(unused.into_iter().chain(towers).map(|name| (name, "F16", vec![2], vec![0; 4])));
    copy.write(&tensors, 0);
    agrees(&Executor::open("cpu", Some(2)).unwrap(), "gemma4", &copy.0, 2e-5, None);
    let files = ModelFiles::open(&copy.0).unwrap();
    let said = "not run: audio tower (model.embed_audio.*, 1 tensor); vision tower (model.vision_tower.*, 1 tensor)";
    assert_eq!(files.not_run(&files.config().unwrap()).as_deref(), Some(said));

    // Layer 3 needs its own.
    tensors.retain(|(name, ..)| !name.ends_with("layers.3.self_attn.k_proj.weight"));
    copy.write(&tensors, 0);
    let error = Model::load_on(&copy.0, &Executor::open("cpu", Some(2)).unwrap()).err().unwrap().to_string();
    assert!(error.contains("layers.3.self_attn.k_proj.weight"), "{error}");
    copy.config(|c| c["text_config"]["num_kv_shared_layers"] = json!(5));
    let error = Model::load_on(&copy.0, &Executor::open("cpu", Some(2)).unwrap()).err().unwrap().to_string();
    assert!(error.contains("no layer has keys and values for layer 1"), "{error}");
}

/// Misaligned tensors, mixed types, and ternary codes as numbers.
#[test]
fn other_ways_to_hold_the_same_weights() {
    let executor = Executor::open("cpu", Some(2)).unwrap();
    let copy = Copy::of("qwen2");
    let widened = |t: &(String, &'static str, Vec<usize>, Vec<u8>)| {
        let (name, _, shape, bytes) = t.clone();
        let values = bytes.as_chunks::<2>().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32());
        if name.contains("k_proj") {
            (name, "F32", shape, values.flat_map(f32::to_le_bytes).collect())
        } else {
            t.clone()
        }
    };
    let tensors: Vec<_> = copy.tensors().iter().map(widened).collect();
    for pad in 0..4 {
        copy.write(&tensors, pad);
        agrees(&executor, "qwen2", &copy.0, 1e-5, None);
    }
    let copy = Copy::of("bitnet-packed");
    let tensors = copy.tensors();
    let unpacked = tensors.iter().map(|(name, dtype, shape, bytes)| {
        if *dtype != "U8" {
            return (name.clone(), *dtype, shape.clone(), bytes.clone());
        }
        let codes = (0..4).flat_map(|i| bytes.iter().map(move |b| f32::from((b >> (2 * i)) & 3) - 1.0));
        let values = codes.flat_map(|c| half::bf16::from_f32(c).to_le_bytes()).collect();
        (name.clone(), "BF16", vec![4 * shape[0], shape[1]], values)
    });
    copy.write(&unpacked.collect::<Vec<_>>(), 0);
    agrees(&executor, "bitnet-packed", &copy.0, 1e-5, None);
}

/// A model of text and images, with layers that predict further tokens: its text part is run.
#[test]
fn the_text_part_of_a_larger_model() {
    let copy = Copy::of("qwen3-5");
    let mut tensors = copy.tensors();
    for (name, ..) in &mut tensors {
        *name = name.replacen("model.", "model.language_model.", 1);
    }
    for name in ["model.visual.patch_embed.proj.weight", "mtp.fc.weight"] {
        tensors.push((name.into(), "F16", vec![2, 2], vec![0; 8]));
    }
    copy.write(&tensors, 0);
    copy.config(|c| {
        let mut text = c.take();
        text.as_object_mut().unwrap().remove("architectures");
        let classes = ["Qwen3_5ForConditionalGeneration"];
        *c = json!({ "architectures": classes, "model_type": "qwen3_5", "text_config": text, "vision_config": {} });
    });
    agrees(&Executor::open("cpu", Some(2)).unwrap(), "qwen3-5", &copy.0, 1e-5, None);
    let model = Model::load_on(&copy.0, &Executor::open("cpu", Some(1)).unwrap()).unwrap();
    let said = "not run: heads for further tokens (mtp.*, 1 tensor); vision tower (model.visual.*, 1 tensor)";
    assert_eq!(model.not_run().as_deref(), Some(said));
    // A part that is not known is not skipped.
    tensors.push(("model.audio.proj.weight".into(), "F16", vec![2, 2], vec![0; 8]));
    copy.write(&tensors, 0);
    let error = Model::load_on(&copy.0, &Executor::open("cpu", Some(1)).unwrap()).err().unwrap().to_string();
    assert!(error.contains("model.audio"), "{error}");
}

#[test]
fn the_tokens_that_end_a_text() {
    let ends = |path: &Path| ModelFiles::open(path).unwrap().end_tokens().unwrap();
    let copy = Copy::of("qwen3");
    assert_eq!(ends(&copy.0), [2, 7]);
    std::fs::remove_file(copy.0.join("generation_config.json")).unwrap();
    assert_eq!(ends(&copy.0), [2]);
    assert_eq!(ends(&fixture("tok-spm.gguf")), [2]);
}

/// A reranker whose head takes the mean of all states, as gte-reranker-modernbert does.
#[test]
fn a_head_of_the_mean() {
    let copy = Copy::of("modernbert");
    copy.config(|c| c["classifier_pooling"] = json!("mean"));
    let executor = Executor::open("cpu", Some(1)).unwrap();
    let model = Model::load_on(&copy.0, &executor).unwrap();
    let (query, text) = ("a query", "a text that answers it");
    let got = Reranker::new(&model, 64).unwrap().scores(query, &[text]).unwrap()[0];

    let (tokens, _) = model.tokenizer().unwrap().encode_pair(query, text).unwrap();
    let states = Embedder::new(&model, 64).unwrap().embed(&[&tokens], Pooling::None).unwrap().concat();
    let tensors = copy.tensors();
    let of = |name: &str| -> Vec<f64> {
        let (.., bytes) = tensors.iter().find(|t| t.0 == name).unwrap();
        bytes.as_chunks::<2>().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f64()).collect()
    };
    let times = |matrix: &[f64], x: &[f64]| -> Vec<f64> {
        matrix.chunks(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
    };
    let width = model.config().width;
    let mean =
        |i: usize| states.iter().skip(i).step_by(width).map(|v| f64::from(*v)).sum::<f64>() / tokens.len() as f64;
    let x: Vec<f64> = (0..width).map(mean).collect();
    // The error function by its series.
    let erf = |x: f64| {
        let terms = (0..60).scan(x, |term, n| {
            let own = *term / f64::from(2 * n + 1);
            *term *= -x * x / f64::from(n + 1);
            Some(own)
        });
        terms.sum::<f64>() * std::f64::consts::FRAC_2_SQRT_PI
    };
    let dense = times(&of("head.dense.weight"), &x);
    let active: Vec<f64> = dense.iter().map(|x| x * (1.0 + erf(x / 2f64.sqrt())) / 2.0).collect();
    let average = active.iter().sum::<f64>() / width as f64;
    let variance = active.iter().map(|x| (x - average).powi(2)).sum::<f64>() / width as f64;
    let norm = of("head.norm.weight");
    let normed: Vec<f64> = active.iter().zip(norm).map(|(x, w)| (x - average) / (variance + 1e-5).sqrt() * w).collect();
    let want = times(&of("classifier.weight"), &normed)[0] + of("classifier.bias")[0];
    assert!((f64::from(got) - want).abs() < 1e-4, "{got} instead of {want}");

    copy.config(|c| c["classifier_pooling"] = json!("max"));
    let model = Model::load_on(&copy.0, &executor).unwrap();
    let error = Reranker::new(&model, 64).err().unwrap().to_string();
    assert!(error.contains("classifier_pooling \"max\" is not supported; supported: cls, mean"), "{error}");
}

/// Every kind of damage gives one sentence that names the file or the tensor.
#[test]
fn wrong_folders_are_named() {
    let executor = Executor::open("cpu", Some(1)).unwrap();
    let rejected = |copy: &Copy, want: &[&str]| {
        let error = Model::load_on(&copy.0, &executor).map(|_| ()).expect_err(want[0]).to_string();
        assert!(want.iter().all(|w| error.contains(w)) && !error.contains('\n'), "{want:?}: {error}");
    };
    type Damage = (&'static str, fn(&mut Value), &'static [&'static str]);
    let of_config: &[Damage] = &[
        ("qwen3", |c| c["model_type"] = json!(""), &["model_type must not be empty"]),
        ("qwen3", |c| c["partial_rotary_factor"] = json!(0.5), &["partial_rotary_factor 0.5 is not supported"]),
        (
            "qwen3-moe",
            |c| c["num_experts"] = json!(5),
            &["model.layers.0.mlp.gate.weight", "[4, 32]", "requires [5, 32]"],
        ),
        ("qwen3-moe", |c| c["num_experts_per_tok"] = json!(5), &["num_experts_per_tok is 5, but must be from 1 to 4"]),
        ("qwen3-moe", |c| c["moe_intermediate_size"] = json!(31), &["experts.0.gate_proj.weight", "requires [31, 32]"]),
        ("qwen3-moe", |c| c["mlp_only_layers"] = json!([0]), &["experts in only some layers"]),
        ("qwen3", |c| c["num_experts"] = json!(8), &["a mixture of 8 experts (num_experts) is not supported"]),
        ("mistral", |c| c["num_local_experts"] = json!(2), &["a mixture of 2 experts (num_local_experts)"]),
        ("qwen3", |c| c["num_experts"] = json!("8"), &["num_experts is a string"]),
        ("qwen3", |c| c["logit_scale"] = json!(0.0625), &["logit_scale 0.0625 is not supported"]),
        (
            "qwen3",
            |c| c["attention_multiplier"] = json!(0.5),
            &["attention_multiplier 0.5 is not supported; supported: 0.17"],
        ),
        (
            "qwen3",
            |c| c["query_pre_attn_scalar"] = json!(64),
            &["query_pre_attn_scalar 64 is not supported; supported: 32"],
        ),
        ("qwen3", |c| c["final_logit_softcapping"] = json!(30.0), &["final_logit_softcapping 30"]),
        (
            "qwen3",
            |c| c["tie_word_embeddings"] = json!("yes"),
            &["tie_word_embeddings is a string, but must be true or false"],
        ),
        ("qwen2-yarn", |c| c["rope_scaling"]["factor"] = json!(null), &["missing key rope_scaling.factor"]),
        (
            "qwen2-yarn",
            |c| c["rope_scaling"]["rope_type"] = json!("linear"),
            &["type is yarn, but rope_type is linear"],
        ),
        (
            "qwen2-yarn",
            |c| c["rope_parameters"] = json!({ "rope_type": "default" }),
            &["rope_scaling and rope_parameters specify different types"],
        ),
        ("llama-linear", |c| c["rope_scaling"]["type"] = json!(null), &["missing key rope_scaling.rope_type"]),
        ("mistral", |c| c["rope_theta"] = json!(1e300), &["rope_theta is 1e300, which does not fit in f32"]),
        ("qwen3", |c| c["rope_theta"] = json!(500), &["rope_theta is 500, but 1000000 in the scaling's object"]),
        (
            "llama3-scaled",
            |c| c["layer_types"] = json!(["chunked_attention", "full_attention"]),
            &["chunked_attention"],
        ),
        (
            "qwen3",
            |c| c["layer_types"][1] = json!("sliding_attention"),
            &["layer_types has sliding_attention, but the model uses no sliding window"],
        ),
        (
            "qwen3",
            |c| c["model_type"] = json!("gpt9"),
            &["config.json", "gpt9", "llama, mistral, ministral3, qwen2, qwen3, bitnet, gemma2, gemma3_text"],
        ),
        (
            "qwen3",
            |c| c["architectures"] = json!(["Qwen3ForSequenceClassification"]),
            &["Qwen3ForSequenceClassification"],
        ),
        ("qwen3", |c| c["hidden_size"] = json!(64), &["has shape [32], but config.json requires [64]"]),
        ("qwen3", |c| c["hidden_size"] = json!("32"), &["hidden_size", "is a string"]),
        ("qwen3", |c| c["hidden_size"] = json!(0), &["hidden_size", "is 0"]),
        ("qwen3", |c| c["num_hidden_layers"] = json!(3), &["layer_types", "each of the 3 layers"]),
        ("llama3-scaled", |c| c["num_hidden_layers"] = json!(3), &["missing tensor model.layers.2."]),
        (
            "llama3-scaled",
            |c| c["num_hidden_layers"] = json!(1),
            &["model.layers.1.", "in a model of this architecture"],
        ),
        ("qwen3", |c| c["vocab_size"] = json!(null), &["missing key vocab_size"]),
        ("qwen3", |c| c["vocab_size"] = json!(-1), &["key vocab_size is -1, but must be a whole number"]),
        ("qwen3", |c| c["num_key_value_heads"] = json!(3), &["num_key_value_heads", "must divide"]),
        ("qwen3", |c| c["hidden_act"] = json!("gelu"), &["activation gelu"]),
        ("qwen3", |c| c["tie_word_embeddings"] = json!(false), &["missing tensor lm_head.weight"]),
        (
            "llama-linear",
            |c| c["mlp_bias"] = json!(false),
            &["mlp_bias is false in config.json, but tensor model.layers.0.mlp."],
        ),
        (
            "llama3-scaled",
            |c| c["attention_bias"] = json!(true),
            &["missing tensor model.layers.0.self_attn.q_proj.bias"],
        ),
        (
            "mistral",
            |c| c["tie_word_embeddings"] = json!(true),
            &["tie_word_embeddings is true in config.json, but lm_head.weight differs from model.embed_tokens.weight"],
        ),
        ("qwen3", |c| c["rope_parameters"] = json!({ "rope_type": "spiral" }), &["rope scaling spiral", "yarn"]),
        ("qwen3", |c| c["quantization_config"] = json!({ "quant_method": "hqq" }), &["hqq"]),
        ("qwen2", |c| c["layer_types"] = json!(["full_attention"]), &["layer_types", "3 layers"]),
        ("qwen2-yarn", |c| c["rope_scaling"]["factor"] = json!(-1), &["rope_scaling.factor", "is -1"]),
        (
            "bitnet-packed",
            |c| c["quantization_config"] = json!(null),
            &["has type U8, which is not supported", "F32, F16, BF16"],
        ),
        ("bitnet-packed", |c| c["quantization_config"]["linear_class"] = json!("tri"), &["linear class tri"]),
    ];
    for (name, change, want) in of_config {
        let copy = Copy::of(name);
        copy.config(change);
        rejected(&copy, want);
    }
    type Broken = (&'static str, fn(&Path), &'static [&'static str]);
    let of_files: [Broken; 8] = [
        ("qwen3", |f| std::fs::remove_file(f.join("config.json")).unwrap(), &["no config.json"]),
        (
            "qwen3",
            |f| std::fs::write(f.join("config.json"), "{\"model_type\":").unwrap(),
            &["config.json", "not valid JSON"],
        ),
        ("qwen3", |f| std::fs::write(f.join("generation_config.json"), "3").unwrap(), &["generation_config", "object"]),
        (
            "qwen3",
            |f| std::fs::write(f.join("generation_config.json"), "{\"eos_token_id\":[1,99999]}").unwrap(),
            &["generation_config.json", "key eos_token_id is 99999, but must be below"],
        ),
        ("qwen2", |f| std::fs::remove_file(f.join("model.safetensors")).unwrap(), &["neither model.safetensors nor"]),
        (
            "qwen3",
            |f| std::fs::remove_file(f.join("model-00002-of-00003.safetensors")).unwrap(),
            &["index.json", "lists model-00002-of-00003.safetensors, which is not in the folder"],
        ),
        (
            "qwen3",
            |f| {
                let (a, b) = (f.join("model-00001-of-00003.safetensors"), f.join("model-00002-of-00003.safetensors"));
                std::fs::copy(a, b).unwrap();
            },
            &["in model-00002-of-00003.safetensors, which does not contain it"],
        ),
        (
            "qwen3",
            |f| {
                let index = f.join("model.safetensors.index.json");
                let text = std::fs::read_to_string(&index).unwrap();
                std::fs::write(index, text.replace("model-00001", "../model-00001")).unwrap();
            },
            &["not the name of a file in the folder"],
        ),
    ];
    for (name, damage, want) in of_files {
        let copy = Copy::of(name);
        damage(&copy.0);
        rejected(&copy, want);
    }
    // Invalid codes, rows that are not whole blocks, scales that are not finite.
    let copy = Copy::of("bitnet-packed");
    let tensors = copy.tensors();
    let at = |end: &str| tensors.iter().position(|t| t.0.ends_with(end)).unwrap();
    let (weight, scale) = (at("0.mlp.up_proj.weight"), at("0.mlp.up_proj.weight_scale"));
    let mut damaged = tensors.clone();
    damaged[weight].3[5] = 0xff;
    copy.write(&damaged, 0);
    rejected(&copy, &["0.mlp.up_proj.weight", "the invalid code 3"]);
    let mut damaged = tensors.clone();
    damaged[scale].3 = vec![0, 0];
    copy.config(|c| c["quantization_config"] = json!({ "quant_method": "bitnet" }));
    copy.write(&damaged, 0);
    rejected(&copy, &["0.mlp.up_proj.weight", "scale inf"]);
    // A file truncated anywhere is rejected.
    let copy = Copy::of("qwen2");
    let file = std::fs::read(copy.0.join("model.safetensors")).unwrap();
    for n in (0..file.len()).step_by(997) {
        std::fs::write(copy.0.join("model.safetensors"), &file[..n]).unwrap();
        rejected(&copy, &["model.safetensors"]);
    }
}

/// Keys at the values that have no effect.
#[test]
fn keys_that_change_nothing() {
    let executor = Executor::open("cpu", Some(1)).unwrap();
    let copy = Copy::of("qwen3");
    copy.config(|c| {
        for (key, value) in
            [("partial_rotary_factor", json!(1.0)), ("num_experts", json!(0)), ("logit_scale", json!(null))]
        {
            c[key] = value;
        }
        c["attention_multiplier"] = json!(1.0 / 32f64.sqrt());
        c["rope_theta"] = c["rope_parameters"]["rope_theta"].clone();
        c["rope_parameters"]["type"] = json!("default");
    });
    agrees(&executor, "qwen3", &copy.0, 1e-5, None);
}

/// Tokens without a row in the model: those that were added give a note, others are rejected.
#[test]
fn tokenizers_larger_than_the_model() {
    let executor = Executor::open("cpu", Some(1)).unwrap();
    let copy = Copy::of("qwen3");
    let letters = |n: usize| -> serde_json::Map<String, Value> {
        (0..n).map(|i| (char::from_u32(0x4e00 + i as u32).unwrap().to_string(), json!(i))).collect()
    };
    let write = |own: usize, added: Value| {
        let mut vocabulary = letters(own);
        // The tokenizer needs a token for unknown text.
        vocabulary.insert("<unk>".into(), json!(own));
        let spec = json!({
            "model": { "type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>" },
            "decoder": { "type": "ByteLevel", "add_prefix_space": false, "use_regex": true, "trim_offsets": true },
            "added_tokens": added,
        });
        std::fs::write(copy.0.join("tokenizer.json"), spec.to_string()).unwrap();
        let model = Model::load_on(&copy.0, &executor).unwrap();
        model.tokenizer().map(|t| (t.vocab_len(), t.notes().to_vec())).map_err(|e| e.to_string())
    };
    assert_eq!(write(95, json!([])), Ok((96, vec![])));
    let error = write(96, json!([])).unwrap_err();
    assert!(error.ends_with("the tokenizer has 97 tokens, but the model has only 96"), "{error}");
    let pad = json!([{
        "id": 96, "content": "<pad>", "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false
    }]);
    let note = "the tokenizer has 97 tokens, but the model has only 96: tokens from <pad> on cannot be used";
    assert_eq!(write(95, pad), Ok((97, vec![note.into()])));
}

/// Nothing blocks: a pipe in place of a file is rejected before it is opened.
#[cfg(unix)]
#[test]
fn files_that_are_none() {
    let executor = Executor::open("cpu", Some(1)).unwrap();
    for name in ["config.json", "model.safetensors.index.json", "model-00002-of-00003.safetensors", "tokenizer.json"] {
        let copy = Copy::of("qwen3");
        let path = copy.0.join(name);
        let _ = std::fs::remove_file(&path);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let loaded = Model::load_on(&copy.0, &executor).and_then(|model| model.tokenizer().map(|_| ()));
        let error = loaded.unwrap_err().to_string();
        assert!(error.ends_with(&format!("{name}: it is not a regular file")), "{error}");
    }
}

/// A published Gemma 3n: older keys, a text part beside towers, and keys and values that layers with those of others
/// do not use.
#[test]
fn a_published_gemma_3n() {
    let copy = Copy::of("gemma3n");
    copy.config(|c| {
        let mut text = c.clone();
        text["rope_parameters"] = Value::Null;
        (text["rope_theta"], text["rope_local_base_freq"]) = (json!(1000000.0), json!(10000.0));
        (text["altup_correct_scale"], text["query_pre_attn_scalar"]) = (json!(true), json!(16));
        *c = json!({
            "architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n", "text_config": text,
            "vision_config": { "hidden_size": 8 }, "audio_config": { "hidden_size": 8 }
        });
    });
    let moved = |(name, ty, shape, bytes): (String, &'static str, Vec<usize>, Vec<u8>)| {
        (name.replacen("model.", "model.language_model.", 1), ty, shape, bytes)
    };
    let mut tensors: Vec<_> = copy.tensors().into_iter().map(moved).collect();
    let unused =
        ["k_proj", "v_proj", "k_norm"].map(|own| format!("model.language_model.layers.3.self_attn.{own}.weight"));
    let towers = ["model.vision_tower.timm_model.x.weight", "model.embed_vision.embedding.weight"].map(String::from);
    tensors.extend(unused.into_iter().chain(towers).map(|name| (name, "F16", vec![2], vec![0; 4])));
    copy.write(&tensors, 0);
    let executor = Executor::open("cpu", Some(2)).unwrap();
    agrees(&executor, "gemma3n", &copy.0, 1e-5, None);
    let said = "not run: vision tower (model.vision_tower.*, model.embed_vision.*, 2 tensors)";
    assert_eq!(Model::load_on(&copy.0, &executor).unwrap().not_run().as_deref(), Some(said));
    copy.config(|c| c["text_config"]["altup_correct_scale"] = json!(false));
    let error = Model::load_on(&copy.0, &executor).err().unwrap().to_string();
    assert!(error.contains("altup_correct_scale false"), "{error}");
}

/// A GGUF file that holds towers, as those of some tools do.
#[test]
fn a_gguf_file_with_towers() {
    let copy = Copy::of("gemma3");
    let file = GgufFile::open(copy.0.join("model.gguf")).unwrap();
    let towers =
        ["v.patch_embd.weight", "v.blk.0.attn_q.weight", "mm.input_projection.weight", "a.position_embd.weight"];
    let write = |name: &str, more: &[&str]| {
        let mut new: Vec<NewTensor> = file
            .tensors()
            .map(|t| NewTensor { name: t.name().into(), shape: t.shape().to_vec(), ty: t.ty() })
            .collect();
        let ty = file.tensor("output_norm.weight").unwrap().ty();
        new.extend(more.iter().map(|name| NewTensor { name: name.to_string(), shape: vec![4], ty }));
        let path = copy.0.join(name);
        let mut out = GgufWriter::create(&path, file.metadata(), &new).unwrap();
        file.tensors().for_each(|t| out.write(t.data()).unwrap());
        more.iter().for_each(|_| out.write(&[0; 16]).unwrap());
        out.finish().unwrap();
        path
    };
    let executor = Executor::open("cpu", Some(2)).unwrap();
    let path = write("towers.gguf", &towers);
    agrees(&executor, "gemma3", &path, 1e-5, None);
    let said = "not run: audio tower (a.*, 1 tensor); vision tower (v.*, mm.*, 3 tensors)";
    assert_eq!(Model::load_on(&path, &executor).unwrap().not_run().as_deref(), Some(said));
    // A part that is not known is not skipped.
    let error = Model::load_on(write("unknown.gguf", &["w.weight"]), &executor).err().unwrap().to_string();
    assert!(error.contains("tensor w.weight"), "{error}");
    assert_eq!(Model::load_on(copy.0.join("model.gguf"), &executor).unwrap().not_run(), None);
}

/// Published files of Nemotron-H: a pattern of letters, and numbers that JSON does not have.
#[test]
fn layers_by_letters_and_numbers_without_end() {
    let copy = Copy::of("nemotron-h");
    let path = copy.0.join("config.json");
    copy.config(|c| {
        c.as_object_mut().unwrap().remove("layers_block_type");
        (c["hybrid_override_pattern"], c["num_hidden_layers"]) = (json!("M-*-"), json!(4));
        (c["time_step_limit"], c["_name_or_path"]) = (json!([0.0, "END"]), json!("Not \\\"NaN, Infinity\\\\"));
    });
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"END\"", "Infinity")).unwrap();
    let executor = Executor::open("cpu", Some(2)).unwrap();
    agrees(&executor, "nemotron-h", &copy.0, 1e-5, None);
    for (change, want) in [
        ((|c| c["hybrid_override_pattern"] = json!("M-*?")) as fn(&mut Value), "unknown type ?"),
        (|c| c["hybrid_override_pattern"] = json!("M-*"), "num_hidden_layers is 4, but the list has 3"),
        (|c| c["hybrid_override_pattern"] = json!("M-M-"), "layers.2.mixer."),
        (|c| c["mlp_hidden_act"] = json!("silu"), "activation silu"),
        (|c| c["time_step_limit"] = json!([0.001, 0.1]), "time_step_limit [0.001,0.1]"),
    ] {
        let copy = Copy::of("nemotron-h");
        copy.config(|c| {
            (c["hybrid_override_pattern"], c["num_hidden_layers"]) = (json!("M-*-"), json!(4));
            change(c);
        });
        let error = Model::load_on(&copy.0, &executor).err().expect(want).to_string();
        assert!(error.contains(want), "{want}: {error}");
    }
}

/// Factors of products, and sizes of branches, that no graph supports.
#[test]
fn wrong_keys_of_hybrids_are_named() {
    let executor = Executor::open("cpu", Some(1)).unwrap();
    type Damage = (&'static str, fn(&mut Value), &'static str);
    let damages: [Damage; 46] = [
        ("falcon-h1", |c| c["mlp_multipliers"] = json!([1.0]), "mlp_multipliers has 1 numbers"),
        ("falcon-h1", |c| c["key_multiplier"] = json!(0), "key_multiplier is 0"),
        ("falcon-h1", |c| c["attention_bias"] = json!(true), "attention_bias true"),
        ("falcon-h1-norm", |c| c["mamba_norm_before_gate"] = json!(true), "mamba_norm_before_gate true"),
        ("qwen3", |c| c["lm_head_multiplier"] = json!(2.0), "lm_head_multiplier 2"),
        ("gemma3n", |c| c["altup_active_idx"] = json!(1), "altup_active_idx is 1"),
        ("gemma3n", |c| c["activation_sparsity_pattern"] = json!([1.0]), "has 1, but must have numbers"),
        // Keys that contradict tensors.
        ("falcon-h1", |c| c["mamba_rms_norm"] = json!(true), "mamba_rms_norm is true, but no tensor's name has"),
        ("falcon-h1-norm", |c| c["mamba_rms_norm"] = json!(false), "mamba_rms_norm is false, but tensor model.layers."),
        ("falcon-h1", |c| c["mamba_conv_bias"] = json!(false), "mamba_conv_bias is false, but tensor"),
        ("granite-4", |c| c["mamba_conv_bias"] = json!(false), "mamba_conv_bias is false, but tensor"),
        ("granite-4", |c| c["mamba_proj_bias"] = json!(true), "mamba_proj_bias is true, but no tensor's name has"),
        ("nemotron-h", |c| c["use_conv_bias"] = json!(false), "use_conv_bias is false, but tensor"),
        ("nemotron-h", |c| c["use_bias"] = json!(true), "use_bias is true, but no tensor's name has"),
        ("nemotron-h", |c| c["mlp_bias"] = json!(true), "missing tensor backbone.layers.1.mixer.up_proj.bias"),
        ("starcoder2", |c| c["use_bias"] = json!(false), "use_bias is false, but tensor model.layers."),
        ("qwen2-moe", |c| c["qkv_bias"] = json!(false), "qkv_bias is false, but tensor model.layers."),
        ("lfm2", |c| c["conv_bias"] = json!(true), "conv_bias is true, but no tensor's name has"),
        ("lfm2-moe", |c| c["use_expert_bias"] = json!(false), "use_expert_bias is false, but tensor"),
        ("glm4-moe", |c| c["use_qk_norm"] = json!(false), "use_qk_norm is false, but tensor"),
        ("cohere2", |c| c["use_qk_norm"] = json!(true), "use_qk_norm is true, but no tensor's name has"),
        ("modernbert", |c| c["norm_bias"] = json!(true), "norm_bias is true, but no tensor's name has"),
        ("gemma4-moe", |c| c["enable_moe_block"] = json!(false), "enable_moe_block is false, but tensor"),
        ("gemma4", |c| c["enable_moe_block"] = json!(true), "enable_moe_block is true, but no tensor's name has"),
        ("gemma4", |c| c["use_double_wide_mlp"] = json!(false), "use_double_wide_mlp is false, but tensor"),
        ("gemma3n", |c| c["laurel_rank"] = json!(7), "laurel_rank is 7, but tensor"),
        ("gemma3n", |c| c["vocab_size_per_layer_input"] = json!(61), "vocab_size_per_layer_input is 61, but tensor"),
        // Keys that contradict others.
        (
            "falcon-h1",
            |c| c["mamba_d_ssm"] = json!(63),
            "mamba_d_ssm is 63, but mamba_n_heads and mamba_d_head give 64",
        ),
        ("deepseek-v2", |c| c["qk_head_dim"] = json!(31), "qk_head_dim is 31, but qk_nope_head_dim"),
        ("glm-4-7-flash", |c| c["mlp_layer_types"][1] = json!("dense"), "mlp_layer_types has dense for layer 1"),
        ("smollm3", |c| (c["no_rope_layer_interval"], c["no_rope_layers"]) = (json!(3), json!(null)), "interval 3"),
        // Values that no graph supports, and wrong types.
        ("nemotron-h", |c| c["mamba_hidden_act"] = json!("gelu"), "mamba_hidden_act gelu is not supported"),
        ("gpt-oss", |c| c["swiglu_alpha"] = json!(1.5), "swiglu_alpha 1.5 is not supported; supported: 1.702"),
        ("deepseek-v2", |c| c["moe_layer_freq"] = json!(2), "moe_layer_freq 2.0 is not supported"),
        ("cohere2", |c| c["use_parallel_block"] = json!(false), "use_parallel_block false is not supported"),
        ("bert", |c| c["is_decoder"] = json!(true), "is_decoder true is not supported"),
        ("bert", |c| c["position_embedding_type"] = json!("relative_key"), "position_embedding_type relative_key"),
        ("falcon-h1", |c| c["mamba_rms_norm"] = json!("yes"), "mamba_rms_norm is a string, but must be true or false"),
        ("gemma4-moe", |c| c["enable_moe_block"] = json!(1), "enable_moe_block is 1, but must be true or false"),
        ("nemotron-h", |c| c["mamba_hidden_act"] = json!(3), "mamba_hidden_act is 3, but must be a string"),
        // Numbers that are too large, or missing.
        ("falcon-h1", |c| c["key_multiplier"] = json!(1e308), "key_multiplier is 1e308, which does not fit in f32"),
        ("falcon-h1", |c| c["ssm_multipliers"][2] = json!(1e30), "ssm_multipliers is 1"),
        (
            "granite",
            |c| c["embedding_multiplier"] = json!(1e30),
            "embedding_multiplier is 1e30, but must be at most 1e9",
        ),
        ("granite", |c| c["logits_scaling"] = json!(1e-30), "but must be at least 1e-9"),
        ("glm4-moe", |c| c["rope_parameters"]["partial_rotary_factor"] = json!(1e30), "partial_rotary_factor is 1e30,"),
        ("qwen3", |c| c["partial_rotary_factor"] = json!(1e308), "partial_rotary_factor is 1e308, which does not fit"),
    ];
    for (name, damage, want) in damages {
        let copy = Copy::of(name);
        copy.config(damage);
        let error = Model::load_on(&copy.0, &executor).err().expect(want).to_string();
        assert!(error.contains(want) && error.len() < 300, "{want}: {error}");
    }
    let copy = Copy::of("nemotron-h");
    copy.config(|c| drop(c.as_object_mut().unwrap().remove("layers_block_type")));
    let error = Model::load_on(&copy.0, &executor).err().unwrap().to_string();
    assert!(error.contains("missing key layers_block_type"), "{error}");
}
