//! Memory use while loading a model whose weights are converted: pages of converted weights are released. A single
//! test, because it measures its process.
#![cfg(target_os = "linux")]

use std::io::{BufWriter, Write};

use hologram_core::Executor;
use hologram_llm::Model;
use serde_json::{Value, json};

/// This process's peak memory in bytes, including mapped pages.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[test]
fn converted_weights_are_not_held_twice() {
    let (width, ffn, vocab) = (2048, 8192, 64);
    let mut shapes: Vec<(String, Vec<usize>)> =
        vec![("model.embed_tokens.weight".into(), vec![vocab, width]), ("model.norm.weight".into(), vec![width])];
    for (name, shape) in [
        ("input_layernorm", vec![width]),
        ("post_attention_layernorm", vec![width]),
        ("self_attn.attn_sub_norm", vec![width]),
        ("mlp.ffn_sub_norm", vec![ffn]),
        ("self_attn.q_proj", vec![width, width]),
        ("self_attn.k_proj", vec![width, width]),
        ("self_attn.v_proj", vec![width, width]),
        ("self_attn.o_proj", vec![width, width]),
        ("mlp.gate_proj", vec![ffn, width]),
        ("mlp.up_proj", vec![ffn, width]),
        ("mlp.down_proj", vec![width, ffn]),
    ] {
        shapes.push((format!("model.layers.0.{name}.weight"), shape));
    }
    let folder = std::env::temp_dir().join(format!("hologram-memory-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for (name, shape) in &shapes {
        let end = at + 2 * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({ "dtype": "BF16", "shape": shape, "data_offsets": [at, end] }));
        at = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = BufWriter::new(std::fs::File::create(folder.join("model.safetensors")).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    // Numbers around ±0.01.
    for i in 0..at as u32 / 2 {
        let random = i.wrapping_mul(0x9e37_79b9) >> 16;
        file.write_all(&(0x3c00 | (random & 0x80ff) as u16).to_le_bytes()).unwrap();
    }
    file.into_inner().unwrap();
    let config = json!({
        "model_type": "bitnet", "hidden_size": width, "intermediate_size": ffn, "num_hidden_layers": 1, "num_attention_heads": 16,
        "vocab_size": vocab, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
        "quantization_config": {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"},
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();

    let executor = Executor::open("cpu", Some(2)).unwrap();
    let before = peak();
    let model = Model::load_on(&folder, &executor);
    let grown = peak() - before;
    std::fs::remove_dir_all(&folder).unwrap();
    let weights = model.unwrap().weight_bytes();
    // A matrix of the file is resident while it is converted, and so is its result until it is uploaded.
    let of_one = 2 * ffn * width + ffn * width / 2;
    let most = weights * 5 / 4 + of_one + (16 << 20);
    assert!(weights < at / 7 && grown < most, "{grown} bytes for weights of {weights}, made of {at}");
    assert!(most < at, "the bound would not notice the file");
}
