//! Every operation's cases on an NVIDIA GPU, as program and as native kernel.

use hologram_core::Executor;

hologram_core::conformance_suite!(
    Executor::open("cuda", None).expect("an NVIDIA GPU"),
    attributes: #[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
);
