//! Which of a repository's files are one model.

use std::fmt;

use crate::request::Wanted;

/// Types of GGUF files, the preferred first: small enough for most machines, hardly worse than 16 bits; then larger,
/// then smaller ones.
const PREFERRED: [&str; 24] = [
    "Q4_K_M", "Q4_K_S", "Q4_K", "Q4_0", "Q4_1", "IQ4_XS", "IQ4_NL", "Q5_K_M", "Q5_K_S", "Q5_K", "Q5_0", "Q5_1", "Q6_K",
    "Q8_0", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "TQ2_0", "TQ1_0", "I2_S", "BF16", "F16", "F32",
];

/// Files of a safetensors model beside its weights.
const BESIDE_WEIGHTS: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// Files that are one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Their paths in the repository: a GGUF file, or all parts of one; or a safetensors model's files, `config.json`
    /// first.
    pub files: Vec<String>,
    /// The type that a GGUF file's name says, such as `Q4_K_M`; `safetensors` for a folder.
    pub label: Option<String>,
}

impl Choice {
    /// Whether it is a folder of safetensors instead of a GGUF file.
    pub fn is_folder(&self) -> bool {
        self.files[0] == "config.json"
    }

    fn name(&self) -> &str {
        &self.files[0]
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label.as_deref().unwrap_or(self.name()))
    }
}

/// All models among a repository's files, those of preferred types first.
pub fn models<'a>(files: impl IntoIterator<Item = &'a str>) -> Vec<Choice> {
    let files: Vec<&str> = files.into_iter().collect();
    let mut models: Vec<Choice> = files.iter().filter_map(|file| gguf(file, &files)).collect();
    models.sort_by_key(|model| (rank(model.label.as_deref()), model.name().len(), model.name().to_string()));
    models.extend(folder(&files));
    models
}

/// The model that is wanted among a repository's files.
///
/// # Errors
/// Why there is none, as the rest of a sentence whose subject is the repository.
pub fn choose<'a>(files: impl IntoIterator<Item = &'a str>, wanted: &Wanted) -> Result<Choice, String> {
    let files: Vec<&str> = files.into_iter().collect();
    let all = models(files.iter().copied());
    match wanted {
        Wanted::Any => all.into_iter().next().ok_or_else(|| nothing(&files)),
        Wanted::File(file) => {
            let of_folder = file == "config.json" || file.ends_with(".safetensors");
            let found = all.iter().find(|m| m.files.iter().any(|f| f == file) || of_folder && m.is_folder());
            found.cloned().ok_or_else(|| format!("has no model file {file}{}", list(&all)))
        }
        Wanted::Type(wanted) => {
            let matches: Vec<&Choice> = all.iter().filter(|model| has_type(model, wanted)).collect();
            match matches[..] {
                [] if all.is_empty() => Err(nothing(&files)),
                [] => Err(format!("has no model of type {wanted}{}", list(&all))),
                [model] => Ok(model.clone()),
                [..] => {
                    let names: Vec<&str> = matches.iter().map(|model| model.name()).collect();
                    Err(format!("has several files of type {wanted}: name one of {}", names.join(", ")))
                }
            }
        }
    }
}

/// A GGUF model that begins with this file.
fn gguf(file: &str, all: &[&str]) -> Option<Choice> {
    let lower = file.to_ascii_lowercase();
    let name = lower.rsplit('/').next()?;
    let stem = name.strip_suffix(".gguf")?;
    // Image encoders and statistics of a quantizer lie beside the models.
    if stem.starts_with("mmproj") || stem.contains("imatrix") {
        return None;
    }
    let Some((stem, part, parts)) = part(stem) else {
        return Some(Choice { files: vec![file.into()], label: label(stem) });
    };
    if part != 1 {
        return None;
    }
    let ending = &file[file.len() - ".gguf".len()..];
    let before = &file[..file.len() - "00001-of-00001.gguf".len()];
    let files: Vec<String> = (1..=parts).map(|part| format!("{before}{part:05}-of-{parts:05}{ending}")).collect();
    let complete = files.iter().all(|file| all.contains(&file.as_str()));
    complete.then(|| Choice { label: label(stem), files })
}

/// `NAME-00001-of-00003` as name, part and number of parts.
fn part(stem: &str) -> Option<(&str, usize, usize)> {
    let (rest, parts) = stem.rsplit_once("-of-")?;
    let (name, part) = rest.rsplit_once('-')?;
    let number = |digits: &str| (digits.len() == 5).then(|| digits.parse().ok()).flatten();
    Some((name, number(part)?, number(parts)?))
}

/// The type that a file's name ends with, in upper case.
fn label(stem: &str) -> Option<String> {
    let upper = stem.to_ascii_uppercase();
    let starts = upper.char_indices().filter(|&(at, _)| at == 0 || upper[..at].ends_with(['-', '.', '_']));
    let labels = starts.map(|(at, _)| upper[at..].split(['-', '.']).next().unwrap_or_default());
    labels.rev().find(|label| is_type(label)).map(String::from)
}

fn is_type(label: &str) -> bool {
    if ["F16", "F32", "BF16", "FP16", "FP32", "I2_S"].contains(&label)
        || label.starts_with("MXFP")
        || label.starts_with("NVFP")
    {
        return true;
    }
    let Some((_, digits)) = label.split_once('Q').filter(|(before, _)| ["", "I", "T"].contains(before)) else {
        return false;
    };
    digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.chars().all(|c| c.is_ascii_digit() || c.is_ascii_uppercase() || c == '_')
}

fn rank(label: Option<&str>) -> usize {
    match label {
        // One that does not say its type is more likely to run than one of an unknown type.
        None => PREFERRED.len(),
        Some(label) => PREFERRED.iter().position(|p| *p == label).unwrap_or(PREFERRED.len() + 1),
    }
}

/// Whether a model's name has this type in it, between separators. Its letters may be small.
fn has_type(model: &Choice, wanted: &str) -> bool {
    let wanted = wanted.to_ascii_uppercase();
    if model.label.as_deref() == Some(&wanted) || model.is_folder() && wanted == "SAFETENSORS" {
        return true;
    }
    // Longer than a type: `UD-Q4_K_XL`.
    let name = model.name().to_ascii_uppercase();
    name.match_indices(&wanted).any(|(at, _)| {
        let (before, after) = (&name[..at], &name[at + wanted.len()..]);
        wanted.contains('-')
            && (before.is_empty() || before.ends_with(['-', '.', '_', '/']))
            && after.starts_with(['-', '.', '/'])
    })
}

/// A safetensors model.
fn folder(all: &[&str]) -> Option<Choice> {
    let has = |file: &str| all.contains(&file);
    if !has("config.json") {
        return None;
    }
    let mut files: Vec<String> = BESIDE_WEIGHTS.iter().filter(|file| has(file)).map(|file| file.to_string()).collect();
    if has("model.safetensors") {
        files.push("model.safetensors".into());
    } else {
        let parts = |file: &&&str| {
            let stem = file.strip_suffix(".safetensors").and_then(part);
            stem.filter(|(name, ..)| *name == "model").map(|(_, _, parts)| parts)
        };
        let weights: Vec<&&str> = all.iter().filter(|file| parts(file).is_some()).collect();
        let complete = weights.first().and_then(parts) == Some(weights.len());
        if !has("model.safetensors.index.json") || !complete {
            return None;
        }
        files.push("model.safetensors.index.json".into());
        files.extend(weights.iter().map(|file| file.to_string()));
    }
    Some(Choice { files, label: Some("safetensors".into()) })
}

/// What a repository without a model has instead.
fn nothing(files: &[&str]) -> String {
    let ends = |end: &str| files.iter().any(|file| file.ends_with(end));
    let instead = if ends(".gguf") {
        "only parts of GGUF files, or files beside a model"
    } else if ends(".bin") || ends(".pth") || ends(".pt") {
        "PyTorch checkpoints, which are not read"
    } else if ends(".safetensors") {
        "safetensors files, but no config.json and model.safetensors"
    } else if ends(".onnx") {
        "ONNX files, which are not read"
    } else {
        "other files"
    };
    format!("has no GGUF file and no model in safetensors, but {instead}; look for a repository with GGUF in its name")
}

/// The rest of a sentence that lists what there is.
fn list(all: &[Choice]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let names: Vec<String> = all.iter().take(40).map(ToString::to_string).collect();
    format!("; it has {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read_from_names() {
        for (file, label) in [
            ("qwen2.5-0.5b-instruct-q4_k_m.gguf", Some("Q4_K_M")),
            ("Meta-Llama-3.1-8B-Instruct-IQ4_XS.gguf", Some("IQ4_XS")),
            ("model.Q8_0.gguf", Some("Q8_0")),
            ("ggml-model-i2_s.gguf", Some("I2_S")),
            ("model_q4_0.gguf", Some("Q4_0")),
            ("gemma-3-27b-it-UD-Q4_K_XL.gguf", Some("Q4_K_XL")),
            ("Llama-3.2-1B-Instruct-f16.gguf", Some("F16")),
            ("gpt-oss-20b-MXFP4.gguf", Some("MXFP4")),
            ("Q8_0/model-Q8_0-00001-of-00001.gguf", Some("Q8_0")),
            ("QwQ-32B.gguf", None),
            ("notes-über.gguf", None),
            ("modèle-Q4_K_M.gguf", Some("Q4_K_M")),
            ("model.gguf", None),
        ] {
            assert_eq!(gguf(file, &[file]).unwrap().label.as_deref(), label, "{file}");
        }
    }

    #[test]
    fn one_model_is_chosen() {
        let files = [
            "README.md",
            "config.json",
            "m-IQ2_XXS.gguf",
            "m-Q8_0.gguf",
            "m-Q4_K_M.gguf",
            "m-UD-Q4_K_XL.gguf",
            "m-BF16-00001-of-00002.gguf",
            "m-BF16-00002-of-00002.gguf",
            "m-F32-00001-of-00003.gguf",
            "mmproj-F16.gguf",
            "m.imatrix.gguf",
            "old/m-Q6_K.gguf",
            "new/m-Q6_K.gguf",
        ];
        let named = |wanted: &str| match wanted {
            "" => choose(files, &Wanted::Any),
            file if file.ends_with(".gguf") => choose(files, &Wanted::File(file.into())),
            ty => choose(files, &Wanted::Type(ty.into())),
        };
        for (wanted, first) in [
            ("", "m-Q4_K_M.gguf"),
            ("q8_0", "m-Q8_0.gguf"),
            ("UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
            ("Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
            ("bf16", "m-BF16-00001-of-00002.gguf"),
            ("m-BF16-00002-of-00002.gguf", "m-BF16-00001-of-00002.gguf"),
            ("new/m-Q6_K.gguf", "new/m-Q6_K.gguf"),
        ] {
            assert_eq!(named(wanted).unwrap().files[0], first, "{wanted}");
        }
        assert_eq!(named("BF16").unwrap().files.len(), 2);
        for (wanted, reason) in [
            ("Q4_K", "has no model of type Q4_K; it has Q4_K_M"),
            ("Q6_K", "several files of type Q6_K: name one of"),
            ("F32", "no model of type"),
            ("x.gguf", "has no model file x.gguf; it has"),
            ("mmproj-F16.gguf", "has no model file"),
        ] {
            assert!(named(wanted).unwrap_err().contains(reason), "{wanted}: {}", named(wanted).unwrap_err());
        }
    }

    #[test]
    fn folders_are_models() {
        let split = [
            "config.json",
            "tokenizer.json",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "consolidated.safetensors",
        ];
        let model = choose(split, &Wanted::Any).unwrap();
        assert!(model.is_folder() && model.files.len() == 5 && model.files[0] == "config.json");
        assert!(choose(split[..4].iter().copied(), &Wanted::Any).is_err());
        assert!(
            choose(["config.json", "model.safetensors"], &Wanted::File("model.safetensors".into()))
                .unwrap()
                .is_folder()
        );
        let error = choose(["config.json", "pytorch_model.bin"], &Wanted::Any).unwrap_err();
        assert!(error.contains("PyTorch"), "{error}");
    }
}
