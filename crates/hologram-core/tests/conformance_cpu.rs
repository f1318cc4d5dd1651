//! Every operation's cases on the CPU, as program and as native kernel, with the instruction sets that processors have.

use std::sync::Arc;

use hologram_backends::cpu::features::Features;
use hologram_backends::cpu::{CpuBackend, CpuOptions};
use hologram_core::Executor;

/// The CPU with at most these instructions; three workers, which divide hardly any of the sizes.
fn cpu(features: Features) -> Executor {
    let options = CpuOptions { threads: Some(3), features: Some(features), ..CpuOptions::default() };
    Executor::from_backend(Arc::new(CpuBackend::with_options(options).expect("there is always a CPU")))
}

mod detected {
    use super::*;
    hologram_core::conformance_suite!(cpu(Features::detect()));
}

mod avx512 {
    use super::*;
    hologram_core::conformance_suite!(cpu(Features { avx2: true, avx512: true, ..Features::PLAIN }));
}

mod avx2 {
    use super::*;
    hologram_core::conformance_suite!(cpu(Features { avx2: true, ..Features::PLAIN }));
}

mod plain {
    use super::*;
    hologram_core::conformance_suite!(cpu(Features::PLAIN));
}
