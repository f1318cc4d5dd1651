//! Compresses the images of native kernels for the binary. They lie uncompressed in the tree, so that Git stores
//! differences.
//!
//! Written to `OUT_DIR`: `images.rs` and the files that it includes. The build fails if an image takes other arguments
//! than its text declares; the build of `hologram-gpu` passes the declarations. Builds for Apple's machines, which no
//! NVIDIA driver is made for, carry no images.

mod images;

use std::path::{Path, PathBuf};
use std::process::exit;

/// Where the images are.
const IMAGES: &str = "images";
/// Cargo sets it to the value of `declared` from the build of `hologram-gpu`.
const DECLARED: &str = "DEP_HOLOGRAM_GPU_DECLARED";

fn main() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed={IMAGES}");
    if let Err(message) = run() {
        println!("cargo::error={message}");
        exit(1);
    }
}

fn run() -> Result<(), String> {
    let variable = |name: &str| std::env::var(name).map_err(|e| format!("{name}: {e}"));
    let (out, declared) = (PathBuf::from(variable("OUT_DIR")?), variable(DECLARED)?);
    println!("cargo::rerun-if-changed={declared}");
    let declared = std::fs::read_to_string(&declared).map_err(|e| format!("{declared}: {e}"))?;
    let texts = match variable("CARGO_CFG_TARGET_VENDOR")?.as_str() {
        "apple" => Vec::new(),
        _ => images::texts(&declared),
    };
    let list = images::list(Path::new(IMAGES), &texts, &out)?;
    std::fs::write(out.join("images.rs"), list).map_err(|e| format!("images.rs: {e}"))
}
