//! Rotary embedding in `config.json`.

use super::JsonKeys;
use crate::error::{LlmError, Result};
use crate::models::config::{Config, Keys, MAX_CONTEXT, shown};
use crate::models::rope::{QueryGrowth, RopeScaling, yarn_attention, yarn_mscale};
use crate::models::{Rotary, RotaryLayers};

/// The rotary base and its scaling, from `rope_parameters` or, in older files, from the top level and `rope_scaling`.
pub(super) fn rope(keys: &JsonKeys<'_>, config: &mut Config) -> Result<()> {
    let mut local_base = keys.above("rope_local_base_freq", 1.0)?.or(keys.above("local_rope_theta", 1.0)?);
    let mut new = keys.object("rope_parameters")?;
    // One object for each type of layer.
    if let Some(types) = new.as_ref().filter(|new| new.object.contains_key("full_attention")) {
        if let Some(local) = types.object("sliding_attention")? {
            if rope_type(&local)?.is_some_and(|kind| kind != "default") {
                return Err(local.bad("rope_type", "must be default for layers with a window".into()));
            }
            local_base = local.above("rope_theta", 1.0)?.or(local_base);
        }
        new = types.object("full_attention")?;
    }
    let scaling = match (new, keys.object("rope_scaling")?) {
        (Some(new), Some(old)) if rope_type(&new)? != rope_type(&old)? => {
            return Err(keys.bad("rope_scaling", "and rope_parameters specify different types of scaling".into()));
        }
        (new, old) => new.or(old),
    };
    let of_scaling = |key: &str| scaling.as_ref().map_or(Ok(None), |s| s.above(key, 1.0));
    let outside = keys.above("rope_theta", 1.0)?.or(keys.above("global_rope_theta", 1.0)?);
    let base = match (of_scaling("rope_theta")?, outside) {
        (Some(inside), Some(outside)) if inside != outside => {
            return Err(keys.bad("rope_theta", format!("is {outside}, but {inside} in the scaling's object")));
        }
        (inside, outside) => inside.or(outside),
    };
    config.rope_base = base.map_or(config.architecture.folder.rope_base, |base| base as f32);
    rotary_width(keys, scaling.as_ref(), config)?;
    if let Some(scaling) = scaling {
        config.rope_scaling = rope_scaling(keys, &scaling, config)?;
    }
    config.place_rotary(local_base);
    if config.architecture.rotary == RotaryLayers::AsFileSays && keys.string("position_embedding_type")? != Some("rope")
    {
        config.rotary.fill(Rotary::None);
    }
    const INTERVAL: &str = "no_rope_layer_interval";
    if let (RotaryLayers::NotEach(n), Some(own), None) =
        (config.architecture.rotary, keys.size_opt(INTERVAL, MAX_CONTEXT)?, keys.get("no_rope_layers"))
        && own != n
    {
        let what = format!("{INTERVAL} {own} without no_rope_layers");
        return Err(LlmError::Unsupported { path: keys.path.into(), what, supported: n.to_string() });
    }
    if !matches!(config.architecture.rotary, RotaryLayers::All | RotaryLayers::AsFileSays)
        && let Some(rotated) = keys.floats("no_rope_layers")?
    {
        if rotated.len() != config.layers {
            let reason = format!("must have one entry for each of the {} layers", config.layers);
            return Err(keys.bad("no_rope_layers", reason));
        }
        for (rotary, rotated) in config.rotary.iter_mut().zip(rotated) {
            *rotary = if rotated == 0.0 { Rotary::None } else { Rotary::Scaled };
        }
    }
    Ok(())
}

const PARTIAL: &str = "partial_rotary_factor";

/// The leading elements of a head that are rotated.
fn rotary_width(keys: &JsonKeys<'_>, scaling: Option<&JsonKeys<'_>>, config: &mut Config) -> Result<()> {
    const KEY: &str = PARTIAL;
    if scaling.map_or(Ok(None), rope_type)? == Some("proportional") {
        return Ok(());
    }
    let inside = scaling.map_or(Ok(None), |s| s.above(KEY, 0.0))?;
    let own = inside.or(keys.above(KEY, 0.0)?).or(keys.above("rotary_pct", 0.0)?);
    if config.architecture.folder.rotary_part.is_none()
        && let Some(part) = own.filter(|part| *part != 1.0)
    {
        let what = format!("{KEY} {}", shown(part));
        return Err(LlmError::Unsupported { path: keys.path.into(), what, supported: String::new() });
    }
    let Some(part) = own.or(config.architecture.folder.rotary_part) else { return Ok(()) };
    let width = (config.head_dim as f64 * part) as usize;
    if width == 0 || width > config.head_dim || !width.is_multiple_of(2) {
        let reason =
            format!("is {}, which must give an even part of the {} elements of a head", shown(part), config.head_dim);
        return Err(keys.bad(KEY, reason));
    }
    config.rope_dim = width;
    Ok(())
}

/// The scaling of rotary frequencies that an object describes.
fn rope_scaling(keys: &JsonKeys<'_>, scaling: &JsonKeys<'_>, config: &mut Config) -> Result<RopeScaling> {
    let only = |what: String, supported: String| Err(LlmError::Unsupported { path: keys.path.into(), what, supported });
    const ORIGINAL: &str = "original_max_position_embeddings";
    let inside = scaling.size_opt(ORIGINAL, MAX_CONTEXT)?;
    let original = inside.or(keys.size_opt(ORIGINAL, MAX_CONTEXT)?);
    if let Some(beta) = scaling.above("llama_4_scaling_beta", 0.0)? {
        config.query_growth = Some(QueryGrowth { beta, original: original.unwrap_or(config.context) });
    }
    Ok(match rope_type(scaling)? {
        None if scaling.float("factor")?.is_some_and(|factor| factor != 1.0) => {
            return Err(scaling.missing("rope_type"));
        }
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: scaling.positive("factor")? },
        Some("dynamic") => RopeScaling::Dynamic,
        Some("llama3") => {
            let (low, high) = (scaling.positive("low_freq_factor")?, scaling.positive("high_freq_factor")?);
            if low >= high {
                return Err(scaling.bad("high_freq_factor", format!("is {high}, but must be greater than {low}")));
            }
            let original = original.unwrap_or(config.context) as f64;
            RopeScaling::Llama3 { factor: scaling.positive("factor")?, low, high, original }
        }
        Some("yarn") => {
            let factor = scaling.positive("factor")?;
            let mscale = (scaling.float("mscale")?, scaling.float("mscale_all_dim")?);
            if let (Some(latent), Some(all)) = (config.latent, mscale.1.filter(|all| *all != 0.0)) {
                config.scales.attention = Some(latent.score_factor(yarn_mscale(factor, all)));
            }
            let attention = match (scaling.above("attention_factor", 0.0)?, mscale) {
                (Some(own), _) => own,
                (None, (Some(a), Some(b))) if a != 0.0 && b != 0.0 => yarn_mscale(factor, a) / yarn_mscale(factor, b),
                _ => yarn_attention(factor),
            };
            RopeScaling::Yarn {
                factor,
                original: original.unwrap_or(config.context) as f64,
                beta_fast: scaling.above("beta_fast", 0.0)?.unwrap_or(32.0),
                beta_slow: scaling.above("beta_slow", 0.0)?.unwrap_or(1.0),
                truncate: scaling.truth("truncate")?.unwrap_or(true),
                attention,
            }
        }
        Some("longrope" | "su") => {
            let pairs = config.rope_dim / 2;
            let factors = |key: &str| -> Result<Vec<f32>> {
                let factors = scaling.floats(key)?.ok_or_else(|| scaling.missing(key))?;
                if factors.len() != pairs || factors.iter().any(|f| !(f.is_finite() && *f > 0.0)) {
                    return Err(scaling.bad(key, format!("must be a list of {pairs} numbers above 0")));
                }
                Ok(factors)
            };
            config.rope_factors = Some([factors("short_factor")?, factors("long_factor")?]);
            config.long_rope(original, scaling.above("attention_factor", 0.0)?)
        }
        // The first pairs are rotated, with the frequencies that they have if all are.
        Some("proportional") => {
            let part = scaling.above(PARTIAL, 0.0)?.unwrap_or(1.0);
            let (pairs, rotated) = (config.rope_dim / 2, (part * config.rope_dim as f64 / 2.0) as usize);
            if rotated > pairs {
                return Err(scaling.bad(PARTIAL, format!("is {}, but must be at most 1", shown(part))));
            }
            // GGUF files have this divisor for the others.
            let factors: Vec<f32> = (0..pairs).map(|i| if i < rotated { 1.0 } else { 1e30 }).collect();
            config.rope_factors = Some([factors.clone(), factors]);
            match scaling.above("factor", 0.0)? {
                None | Some(1.0) => RopeScaling::None,
                Some(factor) => RopeScaling::Linear { factor },
            }
        }
        Some(other) => {
            let known = "default, linear, dynamic, llama3, yarn, longrope, proportional";
            return only(format!("rope scaling {other}"), known.into());
        }
    })
}

/// The type of scaling, under its new or old name.
fn rope_type<'a>(scaling: &JsonKeys<'a>) -> Result<Option<&'a str>> {
    match (scaling.string("rope_type")?, scaling.string("type")?) {
        (Some(new), Some(old)) if new != old => Err(scaling.bad("type", format!("is {old}, but rope_type is {new}"))),
        (new, old) => Ok(new.or(old)),
    }
}
