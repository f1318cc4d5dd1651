//! The models on this machine: in the Hugging Face cache, and where Ollama and LM Studio keep theirs.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::cache::RepoCache;
use crate::checksum::is_hex;
use crate::choose::models;
use crate::request::Repo;
use crate::settings::{home, path};

/// A program that keeps models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Source {
    /// The Hugging Face cache, which Hologram downloads into.
    HuggingFace,
    /// Ollama.
    Ollama,
    /// LM Studio.
    LmStudio,
}

impl Source {
    /// The program's name.
    pub fn name(self) -> &'static str {
        match self {
            Source::HuggingFace => "Hugging Face",
            Source::Ollama => "Ollama",
            Source::LmStudio => "LM Studio",
        }
    }
}

/// A model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// Where it was found.
    pub source: Source,
    /// Its name there: `hf:OWNER/NAME:TYPE`, `llama3.2:1b`, `PUBLISHER/NAME/FILE.gguf`.
    pub name: String,
    /// The GGUF file or the folder of safetensors.
    pub path: PathBuf,
    /// Bytes of its files.
    pub size: u64,
}

/// The models in a Hugging Face cache and in the folders of Ollama and LM Studio, which the environment and the
/// programs' own settings name. What cannot be read is left out.
pub fn found(cache: &Path) -> Vec<Found> {
    let mut all = hugging_face(cache);
    all.extend(ollama_folders().iter().flat_map(|folder| ollama(folder)));
    all.extend(lm_studio_folders().iter().flat_map(|folder| lm_studio(folder)));
    all.sort_by(|a, b| (a.source, &a.name).cmp(&(b.source, &b.name)));
    all.dedup_by(|a, b| a.path == b.path);
    all
}

/// Names of entries in a folder.
fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn hugging_face(cache: &Path) -> Vec<Found> {
    let mut all = Vec::new();
    for repo in entries(cache).iter().filter_map(|folder| Repo::from_folder(folder)) {
        let mut seen = Vec::new();
        for snapshot in RepoCache::new(cache, &repo).snapshots().unwrap_or_default() {
            let here = models(snapshot.files.iter().map(|(file, _)| file.as_str()));
            for choice in &here {
                // An older commit's model has the name of the newer one.
                if seen.contains(&choice.files) {
                    continue;
                }
                seen.push(choice.files.clone());
                let same = |other: &&crate::Choice| other.label.is_some() && other.label == choice.label;
                let name = match &choice.label {
                    Some(label) if here.iter().filter(same).count() == 1 => format!("hf:{repo}:{label}"),
                    _ => format!("hf:{repo}:{}", choice.files[0]),
                };
                let cached = snapshot.cached(choice.clone());
                all.push(Found { source: Source::HuggingFace, name, path: cached.path, size: cached.size });
            }
        }
    }
    all
}

fn ollama_folders() -> Vec<PathBuf> {
    match path("OLLAMA_MODELS") {
        Some(folder) => vec![folder],
        // The second is that of the service on Linux.
        None => home()
            .map(|home| home.join(".ollama/models"))
            .into_iter()
            .chain(["/usr/share/ollama/.ollama/models".into()])
            .collect(),
    }
}

// A manifest of Ollama, as of a container image.
#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
}

/// `manifests/REGISTRY/NAMESPACE/MODEL/TAG` lists layers; one of them is a GGUF file in `blobs/`.
fn ollama(folder: &Path) -> Vec<Found> {
    let manifests = folder.join("manifests");
    let mut all = Vec::new();
    let mut add = |registry: &str, namespace: &str, model: &str, tag: &str| {
        let manifest = manifests.join(registry).join(namespace).join(model).join(tag);
        let small = fs::metadata(&manifest).ok().filter(|m| m.is_file() && m.len() < 1 << 20)?;
        debug_assert!(small.is_file());
        let manifest: Manifest = serde_json::from_slice(&fs::read(&manifest).ok()?).ok()?;
        let layer = manifest.layers.iter().find(|layer| layer.media_type == "application/vnd.ollama.image.model")?;
        let digits = layer.digest.strip_prefix("sha256:").filter(|digits| is_hex(digits, 64))?;
        let path = folder.join("blobs").join(format!("sha256-{digits}"));
        let size = fs::metadata(&path).ok()?.len();
        let before = match (registry, namespace) {
            ("registry.ollama.ai", "library") => String::new(),
            ("registry.ollama.ai", namespace) => format!("{namespace}/"),
            (registry, namespace) => format!("{registry}/{namespace}/"),
        };
        all.push(Found { source: Source::Ollama, name: format!("{before}{model}:{tag}"), path, size });
        Some(())
    };
    for registry in entries(&manifests) {
        for namespace in entries(&manifests.join(&registry)) {
            for model in entries(&manifests.join(&registry).join(&namespace)) {
                for tag in entries(&manifests.join(&registry).join(&namespace).join(&model)) {
                    let _ = add(&registry, &namespace, &model, &tag);
                }
            }
        }
    }
    all
}

fn lm_studio_folders() -> Vec<PathBuf> {
    let Some(home) = home() else { return Vec::new() };
    // LM Studio writes where its folder is into a file.
    let pointed = fs::read_to_string(home.join(".lmstudio-home-pointer")).ok().map(|text| PathBuf::from(text.trim()));
    let studio = pointed.filter(|path| path.is_absolute()).unwrap_or_else(|| home.join(".lmstudio"));
    vec![studio.join("models"), home.join(".cache/lm-studio/models")]
}

/// `PUBLISHER/NAME/` has GGUF files or a model's safetensors.
fn lm_studio(folder: &Path) -> Vec<Found> {
    let mut all = Vec::new();
    for publisher in entries(folder) {
        for name in entries(&folder.join(&publisher)) {
            let model = folder.join(&publisher).join(&name);
            let size = |file: &str| fs::metadata(model.join(file)).ok().filter(fs::Metadata::is_file).map(|m| m.len());
            let files = entries(&model);
            for choice in models(files.iter().filter(|file| size(file).is_some()).map(String::as_str)) {
                let shown = format!("{publisher}/{name}");
                let (name, path) = match choice.is_folder() {
                    true => (shown, model.clone()),
                    false => (format!("{shown}/{}", choice.files[0]), model.join(&choice.files[0])),
                };
                let size = choice.files.iter().filter_map(|file| size(file)).sum();
                all.push(Found { source: Source::LmStudio, name, path, size });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, path: &str, content: &str) {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    #[test]
    fn models_of_other_programs_are_found() {
        let folder = std::env::temp_dir().join(format!("hologram-found-{}", std::process::id()));
        let digits = "c".repeat(64);
        let layers = format!(
            r#"{{"layers":[{{"mediaType":"application/vnd.ollama.image.license","digest":"sha256:{digits}"}},
                {{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:{digits}"}}]}}"#
        );
        write(&folder, &format!("blobs/sha256-{digits}"), "GGUF!");
        write(&folder, "manifests/registry.ollama.ai/library/llama3.2/1b", &layers);
        write(&folder, "manifests/registry.ollama.ai/me/mine/latest", &layers);
        write(&folder, "manifests/hf.co/a/b/Q8_0", &layers);
        write(&folder, "manifests/registry.ollama.ai/library/evil/1b", &layers.replace(&digits, "../../x"));
        write(&folder, "manifests/registry.ollama.ai/library/broken/1b", "{");
        let names: Vec<String> = ollama(&folder).into_iter().map(|model| model.name).collect();
        assert_eq!(names, ["hf.co/a/b:Q8_0", "llama3.2:1b", "me/mine:latest"]);
        assert!(ollama(&folder).iter().all(|model| model.size == 5 && model.path.is_file()));

        let studio = folder.join("studio");
        write(&studio, "lmstudio-community/Qwen-GGUF/Qwen-Q4_K_M.gguf", "1234");
        write(&studio, "lmstudio-community/Qwen-GGUF/mmproj-Qwen.gguf", "1");
        write(&studio, "mlx-community/Qwen/config.json", "{}");
        write(&studio, "mlx-community/Qwen/model.safetensors", "123456");
        let found: Vec<(String, u64)> = lm_studio(&studio).into_iter().map(|model| (model.name, model.size)).collect();
        assert_eq!(
            found,
            [("lmstudio-community/Qwen-GGUF/Qwen-Q4_K_M.gguf".into(), 4), ("mlx-community/Qwen".into(), 8)]
        );
        fs::remove_dir_all(&folder).unwrap();
    }
}
