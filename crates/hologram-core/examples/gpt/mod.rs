//! A small GPT (Radford et al., 2019, "Language models are unsupervised multitask learners"): its parameters, and the
//! loss of a batch of texts.

use hologram_core::ops::LossReduction;
use hologram_core::{DType, Dim, Graph, NodeId, Result, TensorAttention, Weights};

/// The sizes of a model and of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The number of tokens that exist.
    pub vocabulary: usize,
    /// Tokens per text.
    pub length: usize,
    /// Texts per batch.
    pub batch: usize,
    /// The width of a token's hidden state.
    pub width: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Layers.
    pub layers: usize,
}

/// The first values of a parameter.
pub enum Init {
    /// Random, with this deviation.
    Random(f32),
    /// All this value.
    Full(f32),
}

/// Calls `add` with each parameter's name, shape and first values.
pub fn parameters(sizes: &Sizes, mut add: impl FnMut(&str, &[usize], Init) -> Result<()>) -> Result<()> {
    let d = sizes.width;
    add("tokens", &[sizes.vocabulary, d], Init::Random(0.02))?;
    add("positions", &[sizes.length, d], Init::Random(0.02))?;
    // Projections to the residual are scaled down by the number of layers, as in GPT-2.
    let residual = 0.02 / (2.0 * sizes.layers as f32).sqrt();
    for layer in 0..sizes.layers {
        for (name, shape, init) in [
            ("norm1.w", vec![d], Init::Full(1.0)),
            ("norm1.b", vec![d], Init::Full(0.0)),
            ("qkv", vec![3 * d, d], Init::Random(0.02)),
            ("projection", vec![d, d], Init::Random(residual)),
            ("norm2.w", vec![d], Init::Full(1.0)),
            ("norm2.b", vec![d], Init::Full(0.0)),
            ("up", vec![4 * d, d], Init::Random(0.02)),
            ("down", vec![d, 4 * d], Init::Random(residual)),
        ] {
            add(&format!("{layer}.{name}"), &shape, init)?;
        }
    }
    add("norm.w", &[d], Init::Full(1.0))?;
    add("norm.b", &[d], Init::Full(0.0))
}

/// The mean cross-entropy of the next tokens: `ids` and `targets` are inputs, `u32 [batch · length]`.
pub fn loss(g: &mut Graph, weights: &Weights, sizes: &Sizes) -> Result<NodeId> {
    let Sizes { length, batch, width: d, heads, .. } = *sizes;
    let rows = Dim::Fixed(batch * length);
    let fixed = |shape: &[usize]| shape.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
    let (ids, targets) = (g.input("ids", DType::U32, &[rows])?, g.input("targets", DType::U32, &[rows])?);
    let x = g.gather(weights.master("tokens")?, ids)?;
    let x = g.reshape(x, &fixed(&[batch, length, d]))?;
    let x = g.add(x, weights.master("positions")?)?;
    let mut x = g.reshape(x, &[rows, Dim::Fixed(d)])?;
    for layer in 0..sizes.layers {
        let named = |name: &str| format!("{layer}.{name}");
        let h = g.layer_norm(x, weights.master(&named("norm1.w"))?, weights.master(&named("norm1.b"))?, 1e-5)?;
        let qkv = linear(g, h, weights.get(&named("qkv"))?)?;
        let qkv = g.reshape(qkv, &fixed(&[batch, length, 3, heads, d / heads]))?;
        let qkv = g.permute(qkv, &[2, 0, 3, 1, 4])?;
        let mut parts = Vec::new();
        for part in 0..3 {
            let part = g.slice(qkv, 0, part, part + 1)?;
            parts.push(g.reshape(part, &fixed(&[batch, heads, length, d / heads]))?);
        }
        let causal = TensorAttention { causal: true, ..TensorAttention::default() };
        let h = g.dot_product_attention(parts[0], parts[1], parts[2], &causal)?;
        let h = g.permute(h, &[0, 2, 1, 3])?;
        let h = g.reshape(h, &[rows, Dim::Fixed(d)])?;
        let h = linear(g, h, weights.get(&named("projection"))?)?;
        x = g.add(x, h)?;
        let h = g.layer_norm(x, weights.master(&named("norm2.w"))?, weights.master(&named("norm2.b"))?, 1e-5)?;
        let h = linear(g, h, weights.get(&named("up"))?)?;
        let h = g.gelu_tanh(h)?;
        let h = linear(g, h, weights.get(&named("down"))?)?;
        x = g.add(x, h)?;
    }
    let x = g.layer_norm(x, weights.master("norm.w")?, weights.master("norm.b")?, 1e-5)?;
    let logits = linear(g, x, weights.get("tokens")?)?;
    g.cross_entropy(logits, targets, LossReduction::Mean)
}

/// x·wᵀ, with `x` in the type of `w` if that is `bf16`.
fn linear(g: &mut Graph, x: NodeId, w: NodeId) -> Result<NodeId> {
    let x = if g.type_of(w)?.format == DType::BF16 { g.cast(x, DType::BF16)? } else { x };
    g.linear(x, w)
}
