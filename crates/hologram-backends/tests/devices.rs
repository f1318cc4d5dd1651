//! Memory, copies, recording, the queue and its errors on every device, with programs as kernels. The tests of the
//! NVIDIA GPU need one: `cargo test -p hologram-backends --test devices -- --ignored`. Those of Metal run on its test
//! double (`tools/metal/double/tests/devices.rs`).

#[path = "common/devices.rs"]
#[macro_use]
mod common;

devices! {
    cpu, "cpu",;
    reference, "reference",;
    cuda, "cuda", #[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"];
}
