//! Encoders: each token sees all tokens of its text, and a text becomes one vector or a score.

use hologram_core::Graph;

use super::blocks::{Attention, AttentionParts, Block, GatedFfn, Loader, PlainFfn, chain, geglu_erf, residual};
use super::{Activation, Architecture, EncoderParts, FolderNames, NormKind, RotaryLayers, Windows};
use crate::error::Result;

/// BERT (Devlin et al., 2018, arXiv:1810.04805): norms after blocks, learned positions.
pub static BERT: Architecture = Architecture {
    names: &["bert"],
    folder: FolderNames {
        model_type: "bert",
        class: "BertModel",
        also: &["BertForMaskedLM", "BertForSequenceClassification"],
        gate: "gelu",
        eps: "layer_norm_eps",
        base: "bert.",
        layers: "encoder.layer",
        others: &[
            ("token_embd.weight", "embeddings.word_embeddings.weight"),
            ("position_embd.weight", "embeddings.position_embeddings.weight"),
            ("token_types.weight", "embeddings.token_type_embeddings.weight"),
            ("token_embd_norm.weight", "embeddings.LayerNorm.weight"),
            ("token_embd_norm.bias", "embeddings.LayerNorm.bias"),
            ("cls.weight", "pooler.dense.weight"),
            ("cls.bias", "pooler.dense.bias"),
        ],
        heads: &[("cls.output.weight", "classifier.weight"), ("cls.output.bias", "classifier.bias")],
        unused: &["pooler.", "bert.pooler.", "cls.", "embeddings.position_ids", "bert.embeddings.position_ids"],
        tensors: &[
            ("attn_q", "attention.self.query"),
            ("attn_k", "attention.self.key"),
            ("attn_v", "attention.self.value"),
            ("attn_output", "attention.output.dense"),
            ("attn_output_norm", "attention.output.LayerNorm"),
            ("ffn_up", "intermediate.dense"),
            ("ffn_down", "output.dense"),
            ("layer_output_norm", "output.LayerNorm"),
        ],
        ..FolderNames::PLAIN
    },
    layer: bert,
    norm: NormKind::Layer,
    rotary: RotaryLayers::NotEach(1),
    encoder: Some(EncoderParts {
        positions: true,
        segments: true,
        output_norm: false,
        reserved_positions: 0,
        head: Activation::Tanh,
    }),
    ..Architecture::PLAIN
};

/// XLM-RoBERTa (Conneau et al., 2019, arXiv:1911.02116), such as bge-m3: BERT with other names and reserved positions.
/// Its GGUF files use the `bert` architecture.
pub static XLM_ROBERTA: Architecture = Architecture {
    names: &[],
    folder: FolderNames {
        model_type: "xlm-roberta",
        class: "XLMRobertaModel",
        also: &["XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification"],
        base: "roberta.",
        others: &[
            ("token_embd.weight", "embeddings.word_embeddings.weight"),
            ("position_embd.weight", "embeddings.position_embeddings.weight"),
            ("token_types.weight", "embeddings.token_type_embeddings.weight"),
            ("token_embd_norm.weight", "embeddings.LayerNorm.weight"),
            ("token_embd_norm.bias", "embeddings.LayerNorm.bias"),
        ],
        heads: &[
            ("cls.weight", "classifier.dense.weight"),
            ("cls.bias", "classifier.dense.bias"),
            ("cls.output.weight", "classifier.out_proj.weight"),
            ("cls.output.bias", "classifier.out_proj.bias"),
        ],
        unused: &[
            "pooler.",
            "roberta.pooler.",
            "lm_head.",
            "embeddings.position_ids",
            "roberta.embeddings.position_ids",
        ],
        ..BERT.folder
    },
    layer: bert,
    norm: NormKind::Layer,
    rotary: RotaryLayers::NotEach(1),
    encoder: Some(EncoderParts {
        positions: true,
        segments: true,
        output_norm: false,
        // The padding token is 1, and positions are counted from the id after it.
        reserved_positions: 2,
        head: Activation::Tanh,
    }),
    ..Architecture::PLAIN
};

/// ModernBERT (Warner et al., 2024, arXiv:2412.13663): norms before blocks, rotary embedding, windows to both sides in
/// two of three layers, gates.
pub static MODERNBERT: Architecture = Architecture {
    names: &["modern-bert"],
    folder: FolderNames {
        model_type: "modernbert",
        class: "ModernBertModel",
        also: &["ModernBertForMaskedLM", "ModernBertForSequenceClassification"],
        gate: "gelu",
        rope_base: 160000.0,
        eps: "norm_eps",
        others: &[
            ("token_embd.weight", "embeddings.tok_embeddings.weight"),
            ("token_embd_norm.weight", "embeddings.norm.weight"),
            ("token_embd_norm.bias", "embeddings.norm.bias"),
            ("output_norm.weight", "final_norm.weight"),
            ("output_norm.bias", "final_norm.bias"),
        ],
        heads: &[
            ("cls.weight", "head.dense.weight"),
            ("cls.bias", "head.dense.bias"),
            ("cls.norm.weight", "head.norm.weight"),
            ("cls.output.weight", "classifier.weight"),
            ("cls.output.bias", "classifier.bias"),
        ],
        unused: &["head.", "decoder."],
        tensors: &[
            ("attn_norm", "attn_norm"),
            ("attn_qkv", "attn.Wqkv"),
            ("attn_output", "attn.Wo"),
            ("ffn_norm", "mlp_norm"),
            ("ffn_up", "mlp.Wi"),
            ("ffn_down", "mlp.Wo"),
        ],
        ..FolderNames::PLAIN
    },
    layer: modernbert,
    norm: NormKind::Layer,
    windows: Windows::ExceptEach(3),
    rotary: RotaryLayers::LocalBase(Some(10000.0)),
    encoder: Some(EncoderParts {
        positions: false,
        segments: false,
        output_norm: true,
        reserved_positions: 0,
        head: Activation::Gelu,
    }),
    ..Architecture::PLAIN
};

/// nomic-embed-text (Nussbaum et al., 2024, arXiv:2402.01613): BERT with rotary embedding, gates and no biases.
pub static NOMIC_BERT: Architecture = Architecture {
    names: &["nomic-bert"],
    folder: FolderNames {
        model_type: "nomic_bert",
        class: "NomicBertModel",
        rope_base: 1000.0,
        eps: "layer_norm_eps",
        base: "",
        layers: "encoder.layers",
        others: &[
            ("token_embd.weight", "embeddings.word_embeddings.weight"),
            ("token_types.weight", "embeddings.token_type_embeddings.weight"),
            ("token_embd_norm.weight", "emb_ln.weight"),
            ("token_embd_norm.bias", "emb_ln.bias"),
        ],
        heads: &[],
        tensors: &[
            ("attn_qkv", "attn.Wqkv"),
            ("attn_output", "attn.out_proj"),
            ("attn_output_norm", "norm1"),
            ("ffn_gate", "mlp.fc12"),
            ("ffn_up", "mlp.fc11"),
            ("ffn_down", "mlp.fc2"),
            ("layer_output_norm", "norm2"),
        ],
        ..FolderNames::PLAIN
    },
    layer: nomic,
    norm: NormKind::Layer,
    encoder: Some(EncoderParts {
        positions: false,
        segments: true,
        output_norm: false,
        reserved_positions: 0,
        head: Activation::Identity,
    }),
    ..Architecture::PLAIN
};

fn bert(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let attention = residual(vec![Attention::load(l, AttentionParts::default())?]);
    let ffn = residual(vec![PlainFfn::load(l, Graph::gelu)?]);
    Ok(chain(vec![attention, l.norm("attn_output_norm")?, ffn, l.norm("layer_output_norm")?]))
}

fn modernbert(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let attention = Attention::load(l, AttentionParts { fused: true, ..AttentionParts::default() })?;
    // The embedding's norm is that of the first layer.
    let attention = if l.index == 0 { vec![attention] } else { vec![l.norm("attn_norm")?, attention] };
    let ffn = residual(vec![l.norm("ffn_norm")?, GatedFfn::load_fused(l, geglu_erf)?]);
    Ok(chain(vec![residual(attention), ffn]))
}

fn nomic(l: &mut Loader<'_>) -> Result<Box<dyn Block>> {
    let attention = residual(vec![Attention::load(l, AttentionParts { fused: true, ..AttentionParts::default() })?]);
    let ffn = residual(vec![GatedFfn::load(l, Graph::swiglu, None)?]);
    Ok(chain(vec![attention, l.norm("attn_output_norm")?, ffn, l.norm("layer_output_norm")?]))
}
