//! `compile_kernels`, which Macs without an Apple GPU can run: every text is compiled, and what the compiler rejects is
//! named.

use hologram_backends::metal::compile_kernels;
use hologram_isa::parse;

const PROGRAM: &str = "kernel one(out: buffer<u32, write>) workgroup(1) {\n  store.u32 out[0], 7\n}\n";
const WIDE: &str = "kernel wide(out: buffer<f64, write>) workgroup(1) {\n  store.f64 out[0], 7.0\n}\n";

#[test]
fn every_text_is_compiled() {
    // Nothing of it runs.
    // SAFETY: the test is the only one of its process.
    unsafe { std::env::set_var("METAL_DOUBLE_LEVEL", "0") };
    let programs = || [PROGRAM, WIDE].into_iter().map(|text| parse(text).unwrap());
    let mut failures = Vec::new();
    let count = compile_kernels(&mut programs(), &mut |name, why| failures.push(format!("{name}: {why}"))).unwrap();
    assert_eq!(failures, [""; 0]);
    // A program that needs f64 is none of Metal's.
    assert_eq!(count, hologram_gpu::texts::names().count() + 1);
    metal_double::plant("bfloat", "no_such_type");
    let mut failures = Vec::new();
    compile_kernels(&mut programs(), &mut |name, why| failures.push((name.to_string(), why.to_string()))).unwrap();
    metal_double::plant("", "");
    assert_eq!(failures.len(), count - 1, "{failures:?}");
    assert!(failures.iter().any(|(name, why)| name == "softmax" && why.contains("no_such_type")), "{failures:?}");
    assert_eq!(metal_double::live_objects(), 0);
}
