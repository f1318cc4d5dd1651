//! Atlas program files in text or binary form.

use std::path::Path;

use anyhow::{Context, anyhow};
use hologram_isa::{IsaError, Program, binary};

use crate::text::read_input;

/// Maximum bytes of a program file.
const MAX_PROGRAM: u64 = 16 << 20;

/// The content of a program file.
pub enum Source {
    /// A text.
    Text(String),
    /// The binary form, not yet verified.
    Binary(Vec<u8>),
}

/// Reads a program from a file, a pipe or standard input (`-`). The content determines the form, not the file's name.
///
/// # Errors
/// Names the file: when it cannot be read or has neither form.
pub fn read(path: &Path) -> anyhow::Result<Source> {
    let bytes = read_input(path, MAX_PROGRAM)?;
    if binary::is_binary(&bytes) {
        return Ok(Source::Binary(bytes));
    }
    let text = String::from_utf8(bytes);
    text.map(Source::Text).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        anyhow!("{} is neither a binary program nor text: byte {at} is not UTF-8", path.display())
    })
}

impl Source {
    /// The verified program.
    ///
    /// # Errors
    /// Names the file and the line, or the byte of a binary program.
    pub fn program(&self, path: &Path) -> anyhow::Result<Program> {
        let load = || {
            let program = match self {
                Source::Text(text) => hologram_isa::parse(text)?,
                Source::Binary(bytes) => binary::decode(bytes)?,
            };
            hologram_isa::verify(&program)?;
            Ok::<_, IsaError>(program)
        };
        let loaded = load();
        match self {
            Source::Text(text) if loaded.is_err() => {
                if let Some(language) = other_language(text) {
                    let name = path.display();
                    return Err(anyhow!(
                        "{name} is {language}, not Atlas: docs/atlas.md shows Atlas beside CUDA and WGSL"
                    ));
                }
            }
            _ => {}
        }
        loaded.with_context(|| path.display().to_string())
    }
}

/// The language of a kernel's text that is none of Atlas, by words that Atlas lacks.
fn other_language(text: &str) -> Option<&'static str> {
    let languages: [(&str, &[&str]); 7] = [
        ("CUDA", &["__global__", "__device__", "cuda_runtime.h"]),
        ("Metal", &["<metal_stdlib>", "kernel void"]),
        ("WGSL", &["@compute", "@group("]),
        ("OpenCL", &["__kernel"]),
        ("GLSL", &["#version", "gl_GlobalInvocationID"]),
        ("PTX", &[".visible .entry", ".entry "]),
        ("Triton", &["@triton.jit", "import triton"]),
    ];
    languages.into_iter().find(|(_, words)| words.iter().any(|word| text.contains(word))).map(|(name, _)| name)
}

/// Reads and verifies a program.
///
/// # Errors
/// As [`read`] and [`Source::program`].
pub fn load(path: &Path) -> anyhow::Result<Program> {
    read(path)?.program(path)
}
