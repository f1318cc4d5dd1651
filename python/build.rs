//! Links the unwinder of the system.
//!
//! Up to Python 3.13 the interpreter ends daemon threads at its exit by `pthread_exit`, whose unwinder is the C
//! library's `libgcc_s`. It passes frames of this library. zig links an unwinder of its own into the library, which does
//! not understand the other's state: the process crashed at its exit. Linkers of other compilers take `libgcc_s` anyway.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let of = |name: &str| env::var(name).unwrap_or_default();
    let native = of("HOST") == of("TARGET");
    if !native || of("CARGO_CFG_TARGET_OS") != "linux" || of("CARGO_CFG_TARGET_ENV") != "gnu" {
        return;
    }
    let folder = format!("{}-linux-gnu", of("CARGO_CFG_TARGET_ARCH"));
    let folders = [format!("/lib/{folder}"), format!("/usr/lib/{folder}"), "/lib64".into(), "/usr/lib64".into()];
    let mut libraries = folders.iter().map(|folder| PathBuf::from(folder).join("libgcc_s.so.1"));
    if let Some(library) = libraries.find(|library| library.exists()) {
        println!("cargo:rustc-link-arg-cdylib={}", library.display());
    }
}
