//! Every operation's smaller cases on the reference interpreter.

use hologram_core::Executor;

hologram_core::conformance_suite!(
    Executor::open("reference", None).expect("the interpreter is always there"),
    max_work: 300_000
);
