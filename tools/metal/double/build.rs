//! Compiles the double with clang and links it with GCC's Objective-C runtime.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(status.success(), "{command:?}: {status}");
}

fn main() {
    let variable = |name: &str| PathBuf::from(env::var_os(name).unwrap());
    let (out, here) = (variable("OUT_DIR"), variable("CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed=objc");
    println!("cargo:rerun-if-env-changed=OBJC_CC");
    let compiler = env::var("OBJC_CC").unwrap_or("clang-19".into());
    let gcc = fs::read_dir("/usr/lib/gcc/x86_64-linux-gnu").into_iter().flatten().flatten().map(|e| e.path());
    let gcc = gcc.filter(|p| p.join("include/objc/objc.h").is_file()).max();
    let gcc = gcc.expect("GCC's Objective-C runtime is needed: the package of clang-19 or libobjc-12-dev has it");
    let mut objects = Vec::new();
    for source in ["runtime.m", "foundation.m", "memory.m", "library.m", "queue.m", "metal.m", "compiler.c"] {
        let object = out.join(source).with_extension("o");
        println!("cargo:rerun-if-changed={}", Path::new("objc").join(source).display());
        run(Command::new(&compiler)
            .args(["-fPIC", "-O1", "-g", "-Wall", "-Wno-objc-root-class", "-D_GNU_SOURCE", "-DLEVEL=\"1\"", "-c"])
            .args(if source.ends_with(".m") { &["-fobjc-runtime=gcc", "-fblocks", "-fexceptions"][..] } else { &[] })
            .arg("-idirafter")
            .arg(gcc.join("include"))
            .arg(format!("-DMSLC=\"{}\"", here.join("../mslc.py").display()))
            .arg(here.join("objc").join(source))
            .arg("-o")
            .arg(&object));
        objects.push(object);
    }
    // One object, so that the linker keeps the constructors that register the classes.
    let all = out.join("all.o");
    run(Command::new("ld").arg("-r").args(&objects).arg("-o").arg(&all));
    let library = out.join("libmetal_double.a");
    let _ = fs::remove_file(&library);
    run(Command::new("ar").arg("crs").arg(&library).arg(&all));
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static:+whole-archive=metal_double");
    println!("cargo:rustc-link-search=native={}", gcc.display());
    println!("cargo:rustc-link-lib=dylib=objc");
    println!("cargo:rustc-link-lib=dylib=dl");
}
