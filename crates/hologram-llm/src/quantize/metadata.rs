//! A model's hyperparameters as the metadata of a GGUF file, with llama.cpp's keys.

use crate::gguf::{Numbers, Strings, Value, ValueType};
use crate::models::config::Config;
use crate::models::rope::{QueryGrowth, RopeScaling, yarn_attention};
use crate::models::{NormKind, RotaryLayers, Scale, Windows};

/// A value of a key.
#[derive(Clone)]
pub(crate) enum Stored {
    Text(String),
    U32(u32),
    F32(f32),
    Bool(bool),
    Texts(Strings),
    /// The elements' bytes, little-endian.
    List(ValueType, Vec<u8>),
}

impl Stored {
    /// As the writer takes it.
    pub fn value(&self) -> Option<Value<'_>> {
        Some(match self {
            Stored::Text(text) => Value::String(text),
            Stored::U32(n) => Value::Unsigned(ValueType::U32, (*n).into()),
            Stored::F32(v) => Value::Float(ValueType::F32, (*v).into()),
            Stored::Bool(on) => Value::Bool(*on),
            Stored::Texts(texts) => Value::Strings(texts),
            Stored::List(ty, bytes) => Value::Numbers(Numbers::new(*ty, bytes)?),
        })
    }
}

/// Keys and values in the order of a file.
pub(crate) type Metadata = Vec<(String, Stored)>;

/// The architecture's name in GGUF files.
pub(crate) fn architecture(c: &Config) -> &'static str {
    match c.architecture.names {
        [_, encoder, ..] if c.bidirectional => encoder,
        [name, ..] => name,
        // Those of models whose GGUF files have another one's name.
        [] if c.architecture.folder.model_type == "olmo3" => "olmo2",
        [] => "llama",
    }
}

/// The hyperparameters' keys and values. What they cannot express is found by reading them back.
pub(crate) fn of_config(c: &Config) -> Metadata {
    let name = architecture(c);
    let mut keys: Metadata = vec![
        ("general.architecture".into(), Stored::Text(name.into())),
        ("general.name".into(), Stored::Text(c.name.clone())),
    ];
    let mut add = |key: &str, value: Stored| keys.push((format!("{name}.{key}"), value));
    let whole = |n: usize| Stored::U32(u32::try_from(n).unwrap_or(u32::MAX));
    add("block_count", whole(c.layers));
    add("context_length", whole(c.context));
    add("embedding_length", whole(c.width));
    add("feed_forward_length", whole(c.ffn));
    add("attention.head_count", whole(c.heads));
    add("attention.head_count_kv", whole(c.kv_heads));
    add("attention.key_length", whole(c.head_dim));
    add("attention.value_length", whole(c.head_dim));
    let eps = match c.architecture.norm {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
        NormKind::Layer => "attention.layer_norm_epsilon",
    };
    add(eps, Stored::F32(c.eps));
    add("vocab_size", whole(c.vocab));
    add("rope.dimension_count", whole(c.rope_dim));
    add("rope.freq_base", Stored::F32(c.rope_base));
    let mut original = c.query_growth.map(|QueryGrowth { original, .. }| original);
    match c.rope_scaling {
        RopeScaling::Linear { factor } => {
            add("rope.scaling.type", Stored::Text("linear".into()));
            add("rope.scaling.factor", Stored::F32(factor as f32));
        }
        RopeScaling::Yarn { factor, original: own, beta_fast, beta_slow, attention, .. } => {
            add("rope.scaling.type", Stored::Text("yarn".into()));
            add("rope.scaling.factor", Stored::F32(factor as f32));
            add("rope.scaling.yarn_beta_fast", Stored::F32(beta_fast as f32));
            add("rope.scaling.yarn_beta_slow", Stored::F32(beta_slow as f32));
            add("rope.scaling.attn_factor", Stored::F32((attention / yarn_attention(factor)) as f32));
            original = Some(own as usize);
        }
        RopeScaling::Long { original: own, attention } => {
            add("rope.scaling.type", Stored::Text("longrope".into()));
            add("rope.scaling.attn_factor", Stored::F32(attention as f32));
            original = Some(own);
        }
        // The factors of Llama 3 are a tensor.
        _ => {}
    }
    if let Some(original) = original {
        add("rope.scaling.original_context_length", whole(original));
    }
    if c.architecture.rotary == RotaryLayers::AsFileSays {
        add("rope.scaling.finetuned", Stored::Bool(c.rotary.iter().any(|r| *r != crate::models::Rotary::None)));
    }
    if let RotaryLayers::LocalBase(_) = c.architecture.rotary {
        add("rope.freq_base_swa", Stored::F32(c.local_rope_base));
    }
    if let Some(growth) = c.query_growth {
        add("attention.temperature_scale", Stored::F32(growth.beta as f32));
    }
    if let Some(window) = c.windows.iter().flatten().next() {
        add("attention.sliding_window", Stored::U32(*window));
        let usual = match c.architecture.windows {
            kind @ (Windows::AllExceptEach(_) | Windows::ExceptEach(_)) => kind,
            _ => Windows::All,
        };
        if (0..c.layers).any(|i| usual.slides(i) != c.windows[i].is_some()) {
            let slides = c.windows.iter().map(|window| u8::from(window.is_some())).collect();
            add("attention.sliding_window_pattern", Stored::List(ValueType::Bool, slides));
        }
    }
    if c.bidirectional {
        add("attention.causal", Stored::Bool(false));
    }
    let (s, scales) = (&c.scales, c.architecture.scales);
    for scale in scales {
        match scale {
            Scale::Embedding => add("embedding_scale", Stored::F32(s.embedding)),
            Scale::Residual => add("residual_scale", Stored::F32(s.residual)),
            Scale::Logits => add("logit_scale", Stored::F32(s.logits)),
            Scale::LogitsDivisor => add("logit_scale", Stored::F32(s.logits.recip())),
            Scale::Attention => s.attention.into_iter().for_each(|v| add("attention.scale", Stored::F32(v))),
            Scale::AttentionSize => {}
            Scale::AttentionCap => {
                s.attention_cap.into_iter().for_each(|v| add("attn_logit_softcapping", Stored::F32(v)));
            }
            Scale::LogitCap => s.logit_cap.into_iter().for_each(|v| add("final_logit_softcapping", Stored::F32(v))),
        }
    }
    if let Some(e) = &c.experts {
        add("expert_count", whole(e.count));
        add("expert_used_count", whole(e.used));
        add("expert_feed_forward_length", whole(e.ffn));
        e.shared.into_iter().for_each(|n| add("expert_shared_feed_forward_length", whole(n)));
        add("expert_weights_norm", Stored::Bool(e.normalized));
        add("expert_weights_scale", Stored::F32(e.scale));
        add("expert_gating_func", Stored::U32(if e.sigmoid { 2 } else { 1 }));
        if e.groups.0 > 1 {
            add("expert_group_count", whole(e.groups.0));
            add("expert_group_used_count", whole(e.groups.1));
        }
        if e.first > 0 {
            add("leading_dense_block_count", whole(e.first));
        }
    }
    keys
}

/// The first hyperparameter in which what was read back differs; `None` where all are the same.
pub(crate) fn difference(want: &Config, got: &Config) -> Option<String> {
    // Rust's text of a value has all of its digits; some numbers pass through f32.
    let pair = |name: &str, a: String, b: String| (a != b).then(|| format!("{name}: {a} would be read as {b}"));
    macro_rules! same {
        ($($field:ident),*) => {
            [$(pair(stringify!($field), format!("{:?}", want.$field), format!("{:?}", got.$field))),*]
        };
    }
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.abs().max(b.abs());
    let frequencies = |c: &Config| {
        let rotated = c.rope_frequencies(None);
        (rotated, c.rope_scaling.score_factor())
    };
    let ((a, of_a), (b, of_b)) = (frequencies(want), frequencies(got));
    let llama3 = matches!(want.rope_scaling, RopeScaling::Llama3 { .. });
    let turned = llama3 || a.iter().zip(&b).all(|(a, b)| near((*a).into(), (*b).into())) && near(of_a, of_b);
    let dynamic = want.rope_scaling == RopeScaling::Dynamic;
    let long = [want, got].map(|c| matches!(c.rope_scaling, RopeScaling::Long { .. }));
    let rotary = (!turned || dynamic || long[0] != long[1])
        .then(|| format!("rope_scaling: {:?} would be read as {:?}", want.rope_scaling, got.rope_scaling));
    let scales = |c: &Config| {
        let s = &c.scales;
        let attention = s.attention.map_or((c.head_dim as f64).sqrt().recip(), f64::from);
        [s.embedding.into(), s.residual.into(), s.logits.into(), attention]
            .into_iter()
            .chain([s.attention_cap, s.logit_cap].map(|cap| cap.map_or(0.0, f64::from)))
            .collect::<Vec<f64>>()
    };
    let scaled = scales(want).iter().zip(&scales(got)).all(|(a, b)| near(*a, *b));
    let scaled = (!scaled).then(|| format!("scales: {:?} would be read as {:?}", want.scales, got.scales));
    let growth = |c: &Config| c.query_growth.map(|g| (g.beta as f32, g.original));
    let experts = |c: &Config| format!("{:?}", c.experts);
    same!(
        layers,
        width,
        ffn,
        heads,
        kv_heads,
        head_dim,
        vocab,
        context,
        eps,
        rope_dim,
        rope_base,
        rotary,
        windows,
        latent,
        recurrent,
        recurs,
        attends,
        ternary,
        bidirectional,
        segments
    )
    .into_iter()
    .chain([
        pair("local_rope_base", local(want), local(got)),
        pair("query_growth", format!("{:?}", growth(want)), format!("{:?}", growth(got))),
        pair("experts", experts(want), experts(got)),
        rotary,
        scaled,
    ])
    .flatten()
    .next()
}

/// The base of layers with a rotary embedding of their own, if there are such.
fn local(c: &Config) -> String {
    let used = c.rotary.contains(&crate::models::Rotary::Local);
    if used { c.local_rope_base.to_string() } else { String::new() }
}
