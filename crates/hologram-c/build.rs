//! Linker options: the shared library exports this crate's functions alone. A dependency (llguidance) brings C
//! functions of its own.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let unix = std::env::var("CARGO_CFG_TARGET_FAMILY").is_ok_and(|family| family == "unix");
    let apple = std::env::var("CARGO_CFG_TARGET_VENDOR").is_ok_and(|vendor| vendor == "apple");
    if unix && !apple {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    }
}
