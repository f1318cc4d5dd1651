//! Every operation's cases on the CPU, as program and as native kernel, with the instruction sets that processors have.

use std::sync::Arc;

use hologram_backends::cpu::{CpuBackend, CpuOptions, InstructionSet};
use hologram_core::Executor;

/// The CPU with at most these instructions and three workers, a number that divides few of the sizes.
fn cpu(max_isa: Option<InstructionSet>) -> Executor {
    let options = CpuOptions { threads: Some(3), max_isa, ..CpuOptions::default() };
    Executor::from_backend(Arc::new(CpuBackend::with_options(options).expect("there is always a CPU")))
}

/// The most multiplications of a case with fewer instructions than the processor has; `detected` runs every case.
const MOST_WORK: usize = 150_000;

mod detected {
    use super::*;
    hologram_core::conformance_suite!(cpu(None));
}

mod avx512 {
    use super::*;
    hologram_core::conformance_suite!(cpu(Some(InstructionSet::Avx512)), max_work: MOST_WORK);
}

mod avx2 {
    use super::*;
    hologram_core::conformance_suite!(cpu(Some(InstructionSet::Avx2)), max_work: MOST_WORK);
}

mod plain {
    use super::*;
    hologram_core::conformance_suite!(cpu(Some(InstructionSet::Plain)), max_work: MOST_WORK);
}

mod nightly_larger {
    use super::*;

    mod avx512 {
        use super::*;
        hologram_core::conformance_suite!(
            cpu(Some(InstructionSet::Avx512)),
            attributes: #[ignore = "a minute: the nightly workflow"]
        );
    }

    mod avx2 {
        use super::*;
        hologram_core::conformance_suite!(
            cpu(Some(InstructionSet::Avx2)),
            attributes: #[ignore = "a minute: the nightly workflow"]
        );
    }

    mod plain {
        use super::*;
        hologram_core::conformance_suite!(
            cpu(Some(InstructionSet::Plain)),
            attributes: #[ignore = "a minute: the nightly workflow"]
        );
    }
}
