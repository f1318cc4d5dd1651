//! The devices that tests of tensors run on.

use hologram_core::Executor;

/// The devices that every machine has.
pub fn devices() -> [Executor; 2] {
    ["cpu", "reference"].map(|device| Executor::open(device, Some(2)).expect("always there"))
}

/// The devices that this run tests: an NVIDIA GPU or those that every machine has.
pub fn tested(gpu: bool) -> Vec<Executor> {
    if gpu { vec![Executor::open("cuda", None).expect("an NVIDIA GPU")] } else { devices().into() }
}
