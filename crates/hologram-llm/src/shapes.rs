//! The sizes of published models, for random weights.

use hologram_backends::DType;

use crate::models::config::Config;
use crate::models::recurrent::Mixer;
use crate::models::rope::RopeScaling;
use crate::models::{self, Architecture, ExpertRule, Experts, Latent, Recurrent, RecurrentHeads, Rotary, scales};

/// The sizes of a model, published or not.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The name on the command line.
    pub name: &'static str,
    /// One of the names of an [`Architecture`](crate::Architecture).
    pub architecture: &'static str,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Width of the feed-forward network; of a mixture, of one expert's.
    pub ffn: usize,
    /// Experts of a layer, and how many of them a token uses.
    pub experts: Option<(usize, usize)>,
    /// Query heads: a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// The rotary base.
    pub rope_base: f32,
    /// The format of an embedding that is also the output matrix. `None`: two matrices in the format of the others.
    pub tied_embedding: Option<DType>,
    /// Whether matrices have biases.
    pub biases: bool,
    /// Changes of the configuration that these sizes give.
    pub more: fn(&mut Config),
}

/// Llama 3.1 8B.
const LLAMA_8B: Shape = Shape {
    name: "llama-8b",
    architecture: "llama",
    layers: 32,
    width: 4096,
    ffn: 14336,
    experts: None,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    vocab: 128256,
    rope_base: 500000.0,
    tied_embedding: None,
    biases: false,
    more: |_| {},
};

/// gpt-oss-20b.
const GPT_OSS_20B: Shape = Shape {
    name: "gpt-oss-20b",
    architecture: "gpt-oss",
    layers: 24,
    width: 2880,
    ffn: 2880,
    experts: Some((32, 4)),
    heads: 64,
    kv_heads: 8,
    head_dim: 64,
    vocab: 201088,
    rope_base: 150000.0,
    biases: true,
    more: |config| config.windows.iter_mut().step_by(2).for_each(|window| *window = Some(128)),
    ..LLAMA_8B
};

/// The known shapes: Llama 3.1 8B; Llama 3.2 1B with a separate output matrix; TinyLlama 1.1B; BitNet b1.58 2B4T with
/// its tied embedding in `Q8_0`; mixtures of experts: Qwen3 30B A3B, gpt-oss 20B and 120B, DeepSeek-V2-Lite, whose
/// attention is to latent vectors; Gemma 3 27B, with windows in five layers of six; Qwen3.5 27B, with recurrent layers
/// for three of four; BGE-M3, an encoder.
pub const SHAPES: &[Shape] = &[
    LLAMA_8B,
    Shape {
        name: "llama-1b",
        architecture: "llama",
        layers: 16,
        width: 2048,
        ffn: 8192,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        vocab: 128256,
        rope_base: 500000.0,
        ..LLAMA_8B
    },
    Shape {
        name: "tinyllama-1.1b",
        architecture: "llama",
        layers: 22,
        width: 2048,
        ffn: 5632,
        heads: 32,
        kv_heads: 4,
        head_dim: 64,
        vocab: 32000,
        rope_base: 10000.0,
        ..LLAMA_8B
    },
    Shape {
        name: "bitnet-2b",
        architecture: "bitnet-b1.58",
        layers: 30,
        width: 2560,
        ffn: 6912,
        heads: 20,
        kv_heads: 5,
        head_dim: 128,
        vocab: 128256,
        rope_base: 500000.0,
        tied_embedding: Some(DType::Q8_0),
        ..LLAMA_8B
    },
    Shape {
        name: "qwen3-30b-a3b",
        architecture: "qwen3moe",
        layers: 48,
        width: 2048,
        ffn: 768,
        experts: Some((128, 8)),
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        vocab: 151936,
        rope_base: 1000000.0,
        ..LLAMA_8B
    },
    GPT_OSS_20B,
    Shape { name: "gpt-oss-120b", layers: 36, experts: Some((128, 4)), ..GPT_OSS_20B },
    Shape {
        name: "deepseek-v2-lite",
        architecture: "deepseek2",
        layers: 27,
        width: 2048,
        ffn: 10944,
        experts: Some((64, 6)),
        heads: 16,
        kv_heads: 1,
        head_dim: 576,
        vocab: 102400,
        rope_base: 10000.0,
        more: |config| {
            config.latent = Some(Latent { rank: 512, plain: 128, rotated: 64, value: 128, q_rank: None });
            config.rope_dim = 64;
            if let Some(experts) = &mut config.experts {
                (experts.ffn, experts.shared, experts.first) = (1408, Some(2816), 1);
            }
        },
        ..LLAMA_8B
    },
    Shape {
        name: "gemma3-27b",
        architecture: "gemma3",
        layers: 62,
        width: 5376,
        ffn: 21504,
        heads: 32,
        kv_heads: 16,
        vocab: 262144,
        rope_base: 1000000.0,
        tied_embedding: Some(DType::Q8_0),
        more: |config| {
            for (i, window) in config.windows.iter_mut().enumerate() {
                *window = (i % 6 != 5).then_some(1024);
            }
            config.place_rotary(Some(10000.0));
        },
        ..LLAMA_8B
    },
    Shape {
        name: "qwen3.5-27b",
        architecture: "qwen35",
        layers: 64,
        width: 5120,
        ffn: 17408,
        heads: 24,
        kv_heads: 4,
        head_dim: 256,
        vocab: 248320,
        rope_base: 10000000.0,
        more: |config| {
            config.rope_dim = 64;
            let heads = RecurrentHeads { groups: 16, key: 128, heads: 48, value: 128 };
            let channels = heads.widths().into_iter().sum::<usize>() + heads.widths()[0];
            config.recurrent = Some(Recurrent { conv: 4, channels, heads: Some(heads), tiled: true });
            config.place_mixers(|i| if i % 4 == 3 { Mixer::Attention } else { Mixer::State });
        },
        ..LLAMA_8B
    },
    Shape {
        name: "bge-m3",
        architecture: "bert",
        layers: 24,
        width: 1024,
        ffn: 4096,
        heads: 16,
        kv_heads: 16,
        head_dim: 64,
        vocab: 250002,
        biases: true,
        more: |config| {
            (config.bidirectional, config.segments) = (true, 1);
            config.place_rotary(None);
        },
        ..LLAMA_8B
    },
];

impl Shape {
    /// The shape of this name.
    pub fn find(name: &str) -> Option<&'static Shape> {
        SHAPES.iter().find(|s| s.name == name)
    }

    pub(crate) fn config(&self) -> Config {
        let architecture: &'static Architecture = models::find(self.architecture).unwrap_or(models::ARCHITECTURES[0]);
        let head_dim = self.head_dim;
        let experts = self.experts.map(|(count, used)| {
            let rule = architecture.experts.unwrap_or(ExpertRule::NORMALIZED);
            Experts {
                count,
                used,
                ffn: self.ffn,
                normalized: rule.normalized,
                scale: 1.0,
                shared: None,
                shared_gate: false,
                sigmoid: rule.sigmoid,
                groups: (1, 1),
                first: 0,
                latent: None,
            }
        });
        let mut config = Config {
            architecture,
            name: self.name.into(),
            layers: self.layers,
            width: self.width,
            ffn: self.ffn,
            heads: self.heads,
            latent: None,
            recurrent: None,
            recurs: vec![false; self.layers],
            attends: vec![true; self.layers],
            kv_heads: self.kv_heads,
            head_dim,
            windowed: None,
            sharing: 0,
            layer_input: 0,
            branches: 1,
            cuts: Vec::new(),
            vocab: self.vocab,
            context: 8192,
            eps: 1e-5,
            rope_dim: head_dim,
            rope: architecture.rope,
            rope_base: self.rope_base,
            rope_scaling: RopeScaling::None,
            local_rope_base: self.rope_base,
            rope_factors: None,
            rotary: vec![Rotary::Scaled; self.layers],
            query_growth: None,
            scales: scales::Scales::default(),
            multipliers: scales::Multipliers::default(),
            experts,
            windows: vec![None; self.layers],
            ternary: architecture.ternary,
            bidirectional: false,
            ahead: 0,
            segments: 0,
        };
        (self.more)(&mut config);
        config
    }
}
