//! Generates Rust code from the declarations of the kernel texts.
//!
//! Written to `OUT_DIR`: `arguments.rs` (a structure per declaration of kernels, with the numbers that texts share with
//! the host), `texts.rs` (the texts that Metal compiles at run time), `declared.txt` (the arguments that the images of
//! CUDA kernels must take, for the build of `hologram-cuda`). The build fails if a kernel's arguments are not declared
//! in the forms of `arguments.h`.

mod declarations;
mod host;
mod rust;
mod text;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::exit;

use declarations::Declaration;
use text::{Language, Text};

/// Folders of texts, in the search order of headers.
const SHARED: &str = "kernels/shared";
const CUDA: &str = "kernels/cuda";
const METAL: &str = "kernels/metal";

fn main() {
    for path in ["build", SHARED, CUDA, METAL] {
        println!("cargo::rerun-if-changed={path}");
    }
    if let Err(message) = run() {
        println!("cargo::error={message}");
        exit(1);
    }
}

/// The files of a folder with one of these endings: stem and path.
fn files(folder: &str, endings: &[&str]) -> Result<Vec<(String, PathBuf)>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{folder}: {e}"))?;
    let mut out = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| format!("{folder}: {e}"))?.path();
        let (stem, ending) = (path.file_stem().and_then(|s| s.to_str()), path.extension().and_then(|s| s.to_str()));
        if let (Some(stem), Some(ending)) = (stem, ending)
            && endings.contains(&ending)
        {
            out.push((stem.to_string(), path.clone()));
        }
    }
    out.sort();
    Ok(out)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// A path as shown in code and messages.
fn shown(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "/")
}

fn run() -> Result<(), String> {
    let out = PathBuf::from(std::env::var("OUT_DIR").map_err(|e| format!("OUT_DIR: {e}"))?);
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").map_err(|e| format!("CARGO_MANIFEST_DIR: {e}"))?);
    let write = |name: &str, text: String| std::fs::write(out.join(name), text).map_err(|e| format!("{name}: {e}"));

    let (shared, cuda, metal) = (files(SHARED, &["k"])?, files(CUDA, &["cu"])?, files(METAL, &["metal"])?);
    let mut modules: [BTreeMap<String, String>; 3] = Default::default();
    let mut compiled: Vec<(PathBuf, Vec<Declaration>)> = Vec::new();
    let mut served: Vec<(String, PathBuf)> = Vec::new();
    for (place, sources) in [&shared, &cuda, &metal].into_iter().enumerate() {
        for (stem, path) in sources {
            let (file, text) = (shown(path), read(path)?);
            let of = |language| -> Result<(Text, Vec<Declaration>), String> {
                let header = |name: &str| {
                    let folders = [SHARED, if language == Language::Cuda { CUDA } else { METAL }];
                    let path = folders.iter().map(|f| Path::new(f).join(name)).find(|path| path.is_file())?;
                    Some((shown(&path), std::fs::read_to_string(path).ok()?))
                };
                let text = Text::read(&file, &text, language, &header).map_err(|e| e.to_string())?;
                let found = declarations::declarations(&text, language).map_err(|e| e.to_string())?;
                Ok((text, found))
            };
            let (text, found) = of(if place == 2 { Language::Metal } else { Language::Cuda })?;
            let all = match place {
                0 => declarations::both(found.clone(), of(Language::Metal)?.1).map_err(|e| e.to_string())?,
                _ => found.clone(),
            };
            if all.is_empty() {
                return Err(format!("{file}: there is no kernel in it"));
            }
            let structures = all.iter().map(|d| rust::structure(stem, d)).collect::<String>();
            modules[place].entry(stem.clone()).or_default().push_str(&structures);
            for item in host::items(&text).map_err(|e| e.to_string())? {
                // A header's items are in the module of its name, once.
                let stem = Path::new(&item.file).file_stem().and_then(|s| s.to_str()).unwrap_or_default().to_string();
                let (module, code) = (modules[place].entry(stem).or_default(), rust::item(&item));
                if !module.contains(&code) {
                    module.push_str(&code);
                }
            }
            if place < 2 {
                if compiled.iter().any(|(other, _)| other.file_stem() == path.file_stem()) {
                    return Err(format!("{file}: another text has this name"));
                }
                compiled.push((root.join(path), found));
            }
            if place != 1 {
                if served.iter().any(|(name, _)| name == stem) {
                    return Err(format!("{file}: another text has this name"));
                }
                served.push((stem.clone(), path.clone()));
            }
        }
    }
    let everything: Vec<Declaration> = compiled.iter().flat_map(|(_, found)| found).cloned().collect();
    let range = rust::range(&everything).unwrap_or_default();
    let [shared, cuda, metal] = modules.map(|m| rust::modules(&m));
    write("arguments.rs", format!("{range}{shared}pub mod cuda {{\n{cuda}}}\npub mod metal {{\n{metal}}}\n"))?;
    let declared = out.join("declared.txt");
    write("declared.txt", rust::declared(&compiled))?;
    println!("cargo::metadata=declared={}", declared.display());
    write("texts.rs", texts(&root, &served)?)
}

/// The texts that Metal compiles, and the headers that they include.
fn texts(root: &Path, served: &[(String, PathBuf)]) -> Result<String, String> {
    let included = |path: &Path| format!("include_str!({:?})", shown(&root.join(path)));
    let mut out = String::from("/// Name and text.\nconst TEXTS: &[(&str, &str)] = &[\n");
    for (name, path) in served {
        writeln!(out, "({name:?}, {}),", included(path)).ok();
    }
    writeln!(out, "];\n/// What they include.\nconst HEADERS: &[(&str, &str)] = &[").ok();
    for (name, path) in files(SHARED, &["h"])?.into_iter().chain(files(METAL, &["h"])?) {
        writeln!(out, "(\"{name}.h\", {}),", included(&path)).ok();
    }
    out.push_str("];\n");
    Ok(out)
}
