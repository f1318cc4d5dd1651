//! Every operation's cases on the CPU, as program and as native kernel, with the instruction sets that processors have.

use std::sync::Arc;

use hologram_backends::cpu::{CpuBackend, CpuOptions, InstructionSet};
use hologram_core::Executor;

/// The CPU with at most these instructions and three workers, a number that divides few of the sizes.
fn cpu(max_isa: Option<InstructionSet>) -> Executor {
    let options = CpuOptions { threads: Some(3), max_isa, ..CpuOptions::default() };
    Executor::from_backend(Arc::new(CpuBackend::with_options(options).expect("there is always a CPU")))
}

mod detected {
    use super::*;
    hologram_core::conformance_suite!(cpu(None));
}

mod avx512 {
    use super::*;
    hologram_core::conformance_suite!(cpu(Some(InstructionSet::Avx512)));
}

mod avx2 {
    use super::*;
    hologram_core::conformance_suite!(cpu(Some(InstructionSet::Avx2)));
}

mod plain {
    use super::*;
    hologram_core::conformance_suite!(cpu(Some(InstructionSet::Plain)));
}
