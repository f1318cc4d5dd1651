//! The settings that `/set` shows and changes.

use anyhow::{bail, ensure};
use clap::ValueEnum;
use hologram_llm::GenerateOptions;

use crate::args::Think;
use crate::commands::run::fresh_seed;
use crate::text::{nearest, shown};

/// The names, in the order in which they are shown.
const NAMES: [&str; 11] = [
    "temperature",
    "top-k",
    "top-p",
    "typical-p",
    "min-p",
    "repeat-penalty",
    "presence-penalty",
    "frequency-penalty",
    "seed",
    "max-tokens",
    "think",
];

/// Other tools' names.
const ALSO_KNOWN: [(&str, &str); 9] = [
    ("temp", "temperature"),
    ("num-predict", "max-tokens"),
    ("n-predict", "max-tokens"),
    ("max-new-tokens", "max-tokens"),
    ("tokens", "max-tokens"),
    ("n", "max-tokens"),
    ("typical", "typical-p"),
    ("repetition-penalty", "repeat-penalty"),
    ("thinking", "think"),
];

/// The setting with this name, written in any case, with `_` for `-`, or as an option.
///
/// # Errors
/// When there is none, with the nearest one.
pub fn name(typed: &str) -> anyhow::Result<&'static str> {
    let plain = typed.trim_start_matches('-').to_ascii_lowercase().replace('_', "-");
    let own = NAMES.into_iter().find(|name| *name == plain);
    let known = || ALSO_KNOWN.into_iter().find(|(other, _)| *other == plain).map(|(_, name)| name);
    match own.or_else(known) {
        Some(name) => Ok(name),
        None if ["ctx", "num-ctx", "ctx-size"].contains(&plain.as_str()) => {
            bail!("the context is set when the chat begins: hologram chat -c N")
        }
        None if plain == "system" => bail!("/system TEXT sets the system prompt"),
        None => match nearest(&plain, NAMES) {
            Some(name) => bail!("there is no setting {}: did you mean {name}? /set lists them", shown(typed)),
            None => bail!("there is no setting {}; /set lists them", shown(typed)),
        },
    }
}

/// A setting's value.
pub fn value(name: &str, options: &GenerateOptions, think: Think) -> String {
    let sampling = &options.sampling;
    match name {
        "temperature" => sampling.temperature.to_string(),
        "top-k" => sampling.top_k.to_string(),
        "top-p" => sampling.top_p.to_string(),
        "typical-p" => sampling.typical_p.to_string(),
        "min-p" => sampling.min_p.to_string(),
        "repeat-penalty" => sampling.repeat_penalty.to_string(),
        "presence-penalty" => sampling.presence_penalty.to_string(),
        "frequency-penalty" => sampling.frequency_penalty.to_string(),
        "seed" => sampling.seed.to_string(),
        "max-tokens" if options.max_tokens == usize::MAX => "unlimited".into(),
        "max-tokens" => options.max_tokens.to_string(),
        _ => think.to_possible_value().map_or(String::new(), |value| value.get_name().to_string()),
    }
}

/// All settings in a line.
pub fn all(options: &GenerateOptions, think: Think) -> String {
    NAMES.map(|name| format!("{name} {}", value(name, options, think))).join(", ")
}

/// Whether a value of `seed` asks for another seed than any before.
pub fn is_random(value: &str) -> bool {
    matches!(value, "random" | "-1")
}

/// The options with a setting changed that is not `think`.
///
/// # Errors
/// When it cannot have the value.
pub fn changed(options: &GenerateOptions, name: &str, value: &str) -> anyhow::Result<GenerateOptions> {
    let mut options = options.clone();
    let sampling = &mut options.sampling;
    let set = match name {
        "temperature" => value.parse().map(|n| sampling.temperature = n).is_ok(),
        "top-k" => value.parse().map(|n| sampling.top_k = n).is_ok(),
        "top-p" => value.parse().map(|n| sampling.top_p = n).is_ok(),
        "typical-p" => value.parse().map(|n| sampling.typical_p = n).is_ok(),
        "repeat-penalty" => value.parse().map(|n| sampling.repeat_penalty = n).is_ok(),
        "presence-penalty" => value.parse().map(|n| sampling.presence_penalty = n).is_ok(),
        "frequency-penalty" => value.parse().map(|n| sampling.frequency_penalty = n).is_ok(),
        "min-p" => value.parse().map(|n| sampling.min_p = n).is_ok(),
        "seed" if is_random(value) => {
            sampling.seed = fresh_seed();
            true
        }
        "seed" => value.parse().map(|n| sampling.seed = n).is_ok(),
        _ if matches!(value, "unlimited" | "none" | "-1") => {
            options.max_tokens = usize::MAX;
            true
        }
        _ => value.parse().map(|n| options.max_tokens = n).is_ok(),
    };
    let digits = value.chars().all(|c| c.is_ascii_digit());
    ensure!(set || !digits, "{name} is {value}, which is too large: it must be {}", range(name));
    ensure!(set, "{name} is {}, but must be {}", shown(value), range(name));
    options.sampling.validate()?;
    Ok(options)
}

/// The values of a setting.
fn range(name: &str) -> String {
    let most = usize::MAX;
    match name {
        "temperature" => "a number, 0 or more".into(),
        "top-p" | "typical-p" => "a number above 0 and at most 1".into(),
        "min-p" => "a number from 0 to 1".into(),
        "repeat-penalty" => "a number above 0".into(),
        "presence-penalty" | "frequency-penalty" => "a number".into(),
        "max-tokens" => format!("a whole number from 0 to {most}, or unlimited"),
        "seed" => format!("a whole number from 0 to {}, or random", u64::MAX),
        _ => format!("a whole number from 0 to {most}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_named_as_people_write_them() {
        for (typed, wanted) in [
            ("temp", "temperature"),
            ("SEED", "seed"),
            ("max_tokens", "max-tokens"),
            ("--top-k", "top-k"),
            ("num_predict", "max-tokens"),
        ] {
            assert_eq!(name(typed).unwrap(), wanted);
        }
        for (typed, said) in [
            ("temprature", "did you mean temperature?"),
            ("num_ctx", "hologram chat -c N"),
            ("colour", "there is no setting colour; /set lists them"),
        ] {
            let error = name(typed).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn settings_are_changed_and_checked() {
        let options = GenerateOptions::default();
        assert_eq!(changed(&options, "temperature", "0").unwrap().sampling.temperature, 0.0);
        assert_eq!(changed(&options, "max-tokens", "-1").unwrap().max_tokens, usize::MAX);
        assert_ne!(changed(&options, "seed", "random").unwrap().sampling.seed, options.sampling.seed);
        for (name, value, said) in [
            (
                "max-tokens",
                "99999999999999999999",
                "too large: it must be a whole number from 0 to 18446744073709551615",
            ),
            ("seed", "-2", "a whole number from 0 to 18446744073709551615, or random"),
            ("temperature", "inf", "must be a finite number, 0 or more"),
            ("temperature", "-1", "must be a finite number, 0 or more"),
            ("top-p", "0", "above 0 and at most 1"),
        ] {
            let error = changed(&options, name, value).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
