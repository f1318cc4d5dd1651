//! Options for adapters.

use std::path::{Path, PathBuf};

use clap::Args;
use hologram_llm::Adapter;

/// Options of commands that run a model which adapters may change.
#[derive(Args, Clone, Default)]
pub struct LoraArgs {
    /// LoRA adapter, a PEFT folder or a .gguf file, with a factor of its effect [default: 1]; may be given several
    /// times. A name that exists is taken whole: for a folder named a:0.5 give a:0.5, or a:0.5:1 with a factor
    #[arg(long, value_name = "FILE[:SCALE]", value_parser = adapter)]
    pub lora: Vec<(PathBuf, f32)>,
}

/// An adapter's path and scale.
fn adapter(text: &str) -> Result<(PathBuf, f32), String> {
    // A path may contain colons.
    if text.is_empty() || text.starts_with(':') {
        return Err("the file's name is missing".into());
    }
    match text.rsplit_once(':') {
        Some((path, scale)) if !Path::new(text).exists() => match scale.parse::<f32>() {
            Ok(scale) if scale.is_finite() => Ok((path.into(), scale)),
            Ok(_) => Err(format!("the scale {scale} is not a finite number")),
            Err(_) if scale.is_empty() => Err("the scale after the colon is missing".into()),
            Err(_) if Path::new(path).exists() => Err(format!("the scale {scale} is not a number")),
            Err(_) => Ok((text.into(), 1.0)),
        },
        _ => Ok((text.into(), 1.0)),
    }
}

impl LoraArgs {
    /// The adapters' files and folders.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.lora.iter().map(|(path, _)| path.as_path())
    }

    /// Opens the adapters.
    ///
    /// # Errors
    /// When one is missing or damaged.
    pub fn open(&self) -> anyhow::Result<Vec<Adapter>> {
        Ok(self.lora.iter().map(|(path, scale)| Adapter::open(path, *scale)).collect::<Result<_, _>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::adapter;

    #[test]
    fn scales_of_adapters() {
        for (text, path, scale) in [
            ("no-such-dir", "no-such-dir", 1.0),
            ("no-such-dir:0.5", "no-such-dir", 0.5),
            ("no-such-dir:-2", "no-such-dir", -2.0),
            (r"C:\no-such-dir", r"C:\no-such-dir", 1.0),
            (r"C:\no-such-dir:1e-1", r"C:\no-such-dir", 0.1),
        ] {
            assert_eq!(adapter(text), Ok((path.into(), scale)), "{text}");
        }
        assert!(adapter("no-such-dir:inf").unwrap_err().contains("not a finite number"));
        assert!(adapter("src:half").unwrap_err().contains("the scale half is not a number"));
    }
}
