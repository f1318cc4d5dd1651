//! A small BitNet b1.58 (Ma et al., 2024, arXiv:2402.17764; arXiv:2504.12285) for training: its parameters, the loss of
//! a batch of texts, and its GGUF file. Parameters have the names of the file's tensors.

use std::path::Path;

use hologram_core::ops::{LossReduction, RopeStyle};
use hologram_core::{DType, Dim, Executor, Graph, NodeId, Parameters, Result, Tensor, TensorAttention, Trainer};
use hologram_llm::gguf::{GgufWriter, NewTensor, Strings, TensorType, Value, ValueType};
use hologram_llm::tokenizer::BYTE_TO_CHAR;

/// The sizes of a model and of a batch. A token is a byte.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Tokens per text.
    pub length: usize,
    /// Texts per batch.
    pub batch: usize,
    /// The width of a token's hidden state: a multiple of 256, as ternary blocks require.
    pub width: usize,
    /// The width of the feed-forward network: a multiple of 256.
    pub ffn: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Layers.
    pub layers: usize,
}

/// The number of tokens.
pub const VOCABULARY: usize = 256;
/// The architecture's name in files.
const NAME: &str = "bitnet-b1.58";
/// Added to the mean square in norms.
const EPS: f32 = 1e-5;
/// The least magnitude that 8-bit activations of a token are scaled by.
const FLOOR: f32 = 1e-5;
/// The base of rotary frequencies.
const ROPE_BASE: f32 = 10000.0;

impl Sizes {
    fn head_dim(&self) -> usize {
        self.width / self.heads
    }
}

/// The parameters with their first values.
///
/// # Errors
/// Those of [`Parameters::values`].
pub fn parameters(sizes: &Sizes, seed: u64) -> Result<Parameters> {
    let Sizes { width, ffn, layers, .. } = *sizes;
    let kv = sizes.kv_heads * sizes.head_dim();
    let mut all = Parameters::new(seed);
    all.normal("token_embd.weight", &[VOCABULARY, width], 0.02)?;
    for layer in 0..layers {
        let named = |name: &str| format!("blk.{layer}.{name}.weight");
        for (name, len) in [("attn_norm", width), ("attn_sub_norm", width), ("ffn_norm", width), ("ffn_sub_norm", ffn)]
        {
            all.full(&named(name), &[len], 1.0)?;
        }
        for (name, rows, row_len) in [
            ("attn_q", width, width),
            ("attn_k", kv, width),
            ("attn_v", kv, width),
            ("attn_output", width, width),
            ("ffn_gate", ffn, width),
            ("ffn_up", ffn, width),
            ("ffn_down", width, ffn),
        ] {
            all.normal(&named(name), &[rows, row_len], 0.02)?;
        }
    }
    all.full("output_norm.weight", &[width], 1.0)?;
    Ok(all)
}

/// The mean cross-entropy of the next tokens: `ids` and `targets` are inputs, `u32 [batch · length]`.
///
/// # Errors
/// Those of the graph; when `weight` knows no parameter of a name.
pub fn loss(
    g: &mut Graph,
    device: &Executor,
    sizes: &Sizes,
    weight: &dyn Fn(&mut Graph, &str) -> Result<NodeId>,
) -> Result<NodeId> {
    let targets = g.input("targets", DType::U32, &[Dim::Fixed(sizes.batch * sizes.length)])?;
    let logits = logits(g, device, sizes, weight)?;
    g.cross_entropy(logits, targets, LossReduction::Mean)
}

/// The logits of the next tokens, `f32 [batch · length, 256]`. The input is `ids`, `u32 [batch · length]`.
///
/// # Errors
/// As [`loss`].
pub fn logits(
    g: &mut Graph,
    device: &Executor,
    sizes: &Sizes,
    weight: &dyn Fn(&mut Graph, &str) -> Result<NodeId>,
) -> Result<NodeId> {
    let Sizes { length, batch, width, heads, kv_heads, layers, .. } = *sizes;
    let (rows, d) = (batch * length, sizes.head_dim());
    let fixed = |shape: &[usize]| shape.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
    let ids = g.input("ids", DType::U32, &[Dim::Fixed(rows)])?;
    let positions: Vec<u32> = (0..rows).map(|row| (row % length) as u32).collect();
    let positions = g.constant(&Tensor::from_slice(device, &[rows], &positions)?)?;
    let frequency = |pair: usize| f64::from(ROPE_BASE).powf(-2.0 * pair as f64 / d as f64) as f32;
    let frequencies: Vec<f32> = (0..d / 2).map(frequency).collect();
    let frequencies = g.constant(&Tensor::from_slice(device, &[d / 2], &frequencies)?)?;
    let embedding = weight(g, "token_embd.weight")?;
    let mut x = g.gather(embedding, ids)?;
    for layer in 0..layers {
        let get = |g: &mut Graph, name: &str| weight(g, &format!("blk.{layer}.{name}.weight"));
        let norm = |g: &mut Graph, x, name: &str| {
            let w = get(g, name)?;
            g.rms_norm(x, w, EPS)
        };
        // `x` is rounded once for all products that read it.
        let products = |g: &mut Graph, x, names: &[&str]| -> Result<Vec<NodeId>> {
            let x = g.round_activations(x, FLOOR)?;
            let product = |name: &&str| {
                let w = get(g, name)?;
                let w = g.ternary(w)?;
                g.linear(x, w)
            };
            names.iter().map(product).collect()
        };
        let h = norm(g, x, "attn_norm")?;
        let qkv = products(g, h, &["attn_q", "attn_k", "attn_v"])?;
        let mut parts = Vec::new();
        for (part, heads) in qkv.into_iter().zip([heads, kv_heads, kv_heads]) {
            let mut part = g.reshape(part, &fixed(&[rows, heads, d]))?;
            if parts.len() < 2 {
                part = g.rope(part, positions, frequencies, RopeStyle::HalfSplit)?;
            }
            let part = g.reshape(part, &fixed(&[batch, length, heads, d]))?;
            parts.push(g.permute(part, &[0, 2, 1, 3])?);
        }
        let causal = TensorAttention { causal: true, ..TensorAttention::default() };
        let h = g.dot_product_attention(parts[0], parts[1], parts[2], &causal)?;
        let h = g.permute(h, &[0, 2, 1, 3])?;
        let h = g.reshape(h, &fixed(&[rows, width]))?;
        let h = norm(g, h, "attn_sub_norm")?;
        let h = products(g, h, &["attn_output"])?;
        x = g.add(x, h[0])?;
        let h = norm(g, x, "ffn_norm")?;
        let h = products(g, h, &["ffn_gate", "ffn_up"])?;
        let h = g.relu2_mul(h[0], h[1])?;
        let h = norm(g, h, "ffn_sub_norm")?;
        let h = products(g, h, &["ffn_down"])?;
        x = g.add(x, h[0])?;
    }
    let w = weight(g, "output_norm.weight")?;
    let x = g.rms_norm(x, w, EPS)?;
    g.linear(x, embedding)
}

/// Writes the trained model with its tokenizer: matrices of layers as `TQ2_0`, everything else as `F32`.
///
/// # Errors
/// When the file cannot be written; those of the device.
pub fn export(
    device: &Executor,
    trainer: &Trainer,
    sizes: &Sizes,
    path: &Path,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let (mut tensors, mut values) = (Vec::new(), Vec::new());
    for name in trainer.names() {
        let parameter = trainer.parameter(name)?;
        let shape = parameter.shape().to_vec();
        let ternary = name.starts_with("blk.") && shape.len() == 2;
        let (format, value) = match ternary {
            true => (DType::TQ2_0, device.eval([&parameter], |g, [w]| g.ternary(w))?),
            false => (DType::F32, parameter),
        };
        let ty = TensorType::of(format).ok_or("files have no such type")?;
        values.push((format, value.to_vec::<f32>()?));
        tensors.push(NewTensor { name: name.into(), shape, ty });
    }
    let letters: Vec<String> = BYTE_TO_CHAR.iter().map(char::to_string).collect();
    let letters = Strings::from_texts(&letters.iter().map(String::as_str).collect::<Vec<_>>())?;
    let merges = Strings::from_texts(&[])?;
    let size = |n: usize| Value::Unsigned(ValueType::U32, n as u64);
    let number = |v: f32| Value::Float(ValueType::F32, v.into());
    let sizes: Vec<(String, Value<'_>)> = [
        ("context_length", size(sizes.length)),
        ("embedding_length", size(sizes.width)),
        ("block_count", size(sizes.layers)),
        ("feed_forward_length", size(sizes.ffn)),
        ("attention.head_count", size(sizes.heads)),
        ("attention.head_count_kv", size(sizes.kv_heads)),
        ("attention.layer_norm_rms_epsilon", number(EPS)),
        ("rope.freq_base", number(ROPE_BASE)),
        ("rope.dimension_count", size(sizes.head_dim())),
        ("vocab_size", size(VOCABULARY)),
    ]
    .map(|(key, value)| (format!("{NAME}.{key}"), value))
    .into();
    let general = [("general.architecture", Value::String(NAME)), ("general.name", Value::String("a small BitNet"))];
    let tokenizer = [
        ("tokenizer.ggml.model", Value::String("gpt2")),
        ("tokenizer.ggml.pre", Value::String("gpt-2")),
        ("tokenizer.ggml.tokens", Value::Strings(&letters)),
        ("tokenizer.ggml.merges", Value::Strings(&merges)),
    ];
    let metadata = general.into_iter().chain(sizes.iter().map(|(key, value)| (key.as_str(), *value))).chain(tokenizer);
    let mut writer = GgufWriter::create(path, metadata, &tensors)?;
    for (tensor, (format, values)) in tensors.iter().zip(&values) {
        let row_len = tensor.shape.last().copied().unwrap_or(1);
        let mut row = vec![0; format.bytes(1, row_len).ok_or("a row is not whole blocks")?];
        for values in values.chunks(row_len) {
            format.encode_row(values, None, &mut row)?;
            writer.write(&row)?;
        }
    }
    Ok(writer.finish()?)
}

/// Texts far apart in `text`, one after another from `place` on, and the tokens that follow theirs. The text must be
/// longer than `length + 1`.
pub fn batch(text: &[u8], sizes: &Sizes, place: &mut usize) -> [Vec<u32>; 2] {
    let (mut ids, mut targets) = (Vec::new(), Vec::new());
    for _ in 0..sizes.batch {
        *place = (*place + 7919) % (text.len() - sizes.length - 1);
        let example = &text[*place..=*place + sizes.length];
        ids.extend(example[..sizes.length].iter().map(|b| u32::from(*b)));
        targets.extend(example[1..].iter().map(|b| u32::from(*b)));
    }
    [ids, targets]
}
