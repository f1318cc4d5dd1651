//! A model's hyperparameters as the metadata of a GGUF file, with llama.cpp's keys.

use crate::gguf::{Numbers, Strings, Value, ValueType};
use crate::models::config::Config;
use crate::models::rope::{QueryGrowth, RopeScaling, yarn_attention};
use crate::models::{Latent, NormKind, Recurrent, RotaryLayers, Scale, StateRule, Varied, Windows};

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
        [_, encoder, ..] if c.bidirectional && c.architecture.encoder.is_none() => encoder,
        [_, with_experts] if c.architecture.state.is_some() && c.experts.is_some() => with_experts,
        [name, ..] => name,
        // Those of models whose GGUF files have another one's name.
        [] if c.architecture.folder.model_type == "olmo3" => "olmo2",
        [] if c.architecture.latent => "deepseek2",
        [] if c.architecture.encoder.is_some() => "bert",
        [] => "llama",
    }
}

/// The hyperparameters' keys and values. What they cannot express is found by reading them back. `widths`: those of
/// each layer's network.
pub(crate) fn of_config(c: &Config, widths: &[usize]) -> Metadata {
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
    let list = |numbers: &mut dyn Iterator<Item = usize>| {
        let bytes = numbers.flat_map(|n| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes()).collect();
        Stored::List(ValueType::U32, bytes)
    };
    let alone = c.architecture.state == Some(StateRule::MambaAlone);
    // The widths of experts and of other networks have keys of their own.
    let differ = c.experts.is_none() && widths.iter().any(|n| Some(n) != widths.first());
    let varied = c.architecture.varied == Varied::Sizes;
    add(
        "feed_forward_length",
        match alone || varied && differ {
            true => list(&mut widths.iter().copied()),
            false => whole(c.ffn),
        },
    );
    add("attention.head_count", whole(c.heads));
    let heads_of = |i: usize| if c.attends[i] { c.heads_of(i).kv_heads } else { 0 };
    // Each layer of which number has attention, if that is the rule.
    let is_heads = matches!(c.architecture.state, Some(StateRule::Heads { .. }));
    let every = (1..=c.layers).find(|n| is_heads && (0..c.layers).all(|i| c.attends[i] == (i + 1).is_multiple_of(*n)));
    every.into_iter().for_each(|n| add("full_attention_interval", whole(n)));
    let of_layers = every.is_none() && c.attends.contains(&false) || varied;
    let heads = match of_layers && (0..c.layers).any(|i| heads_of(i) != heads_of(0)) {
        true => list(&mut (0..c.layers).map(heads_of)),
        false => whole(c.kv_heads),
    };
    add("attention.head_count_kv", heads);
    add("attention.key_length", whole(c.head_dim));
    add("attention.value_length", whole(c.latent.map_or(c.head_dim, |latent| latent.rank)));
    if let Some(Latent { rank, plain, rotated, value, q_rank }) = c.latent {
        add("attention.key_length_mla", whole(plain + rotated));
        add("attention.value_length_mla", whole(value));
        add("attention.kv_lora_rank", whole(rank));
        q_rank.into_iter().for_each(|rank| add("attention.q_lora_rank", whole(rank)));
    }
    if let Some(r) = &c.recurrent {
        match r.heads {
            None => add("shortconv.l_cache", whole(r.conv)),
            Some(h) => {
                add("ssm.conv_kernel", whole(r.conv));
                add("ssm.state_size", whole(h.key));
                add("ssm.group_count", whole(h.groups));
                add("ssm.time_step_rank", whole(h.heads));
                add("ssm.inner_size", whole(h.heads * h.value));
            }
        }
    }
    if c.architecture.varied != Varied::Never {
        add("attention.shared_kv_layers", whole(c.sharing));
        add("embedding_length_per_layer_input", whole(c.layer_input));
    }
    if varied {
        let own = c.windowed.map_or(c.head_dim, |own| own.head_dim);
        for key in ["attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"] {
            add(key, whole(own));
        }
    }
    if c.branches > 1 {
        add("altup.active_idx", whole(0));
        add("altup.num_inputs", whole(c.branches));
    }
    if !c.cuts.is_empty() {
        let cuts = c.cuts.iter().flat_map(|cut| cut.unwrap_or(f32::NEG_INFINITY).to_le_bytes()).collect();
        add("activation_sparsity_scale", Stored::List(ValueType::F32, cuts));
    }
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
            // Latent attention has a factor of scores that grows with this one.
            let growth = c.latent.zip(c.scales.attention).map(|(latent, scale)| latent.growth(scale));
            match growth.filter(|growth| *growth > 1.0 && factor > 1.0) {
                Some(growth) => {
                    add("rope.scaling.yarn_log_multiplier", Stored::F32(((growth - 1.0) / factor.ln()) as f32));
                    add("rope.scaling.attn_factor", Stored::F32(attention as f32));
                }
                None => add("rope.scaling.attn_factor", Stored::F32((attention / yarn_attention(factor)) as f32)),
            }
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
        let always = c.architecture.varied != Varied::Never;
        if always || (0..c.layers).any(|i| usual.slides(i) != c.windows[i].is_some()) {
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
        e.latent.into_iter().for_each(|n| add("moe_latent_size", whole(n)));
        if let Some(shared) = e.shared.filter(|_| alone || c.latent.is_some()) {
            add("expert_shared_count", whole(if alone { 1 } else { shared / e.ffn.max(1) }));
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
    // The order of heads is that of the tensors.
    let recurrent = |c: &Config| c.recurrent.map(|r| Recurrent { tiled: false, ..r });
    let experts = |c: &Config| format!("{:?}", c.experts);
    same!(
        layers,
        width,
        ffn,
        heads,
        kv_heads,
        head_dim,
        windowed,
        sharing,
        layer_input,
        vocab,
        context,
        eps,
        rope_dim,
        rope_base,
        rotary,
        windows,
        branches,
        cuts,
        latent,
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
        pair("recurrent", format!("{:?}", recurrent(want)), format!("{:?}", recurrent(got))),
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
