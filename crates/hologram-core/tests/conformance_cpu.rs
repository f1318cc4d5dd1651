//! Every operation's cases on the CPU, as program and as native kernel.

use hologram_core::Executor;

hologram_core::conformance_suite!(Executor::open("cpu", None).expect("there is always a CPU"));
