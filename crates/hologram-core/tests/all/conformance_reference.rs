//! Every operation's smaller cases on the reference interpreter.

use std::sync::Arc;

use hologram_backends::ReferenceBackend;
use hologram_core::Executor;
use hologram_isa::meaning::Subnormals;

hologram_core::conformance_suite!(
    Executor::open("reference", None).expect("the interpreter is always there"),
    max_work: 150_000
);

/// As the reference of devices that count subnormal numbers as 0.
mod flushed {
    use super::*;
    hologram_core::conformance_suite!(
        Executor::from_backend(Arc::new(ReferenceBackend::with_subnormals(Subnormals::Flushed))),
        max_work: 10_000
    );
}

/// Larger cases too.
mod nightly_larger {
    use super::*;
    hologram_core::conformance_suite!(
        Executor::open("reference", None).expect("the interpreter is always there"),
        max_work: 6_000_000,
        attributes: #[ignore = "minutes: the nightly workflow"]
    );
}
