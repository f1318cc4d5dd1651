//! Kernels that GPUs launch for the cases of every operation: all requested names exist. Runs on any machine.

use std::sync::Arc;

use hologram_backends::{DryGpu, Target};
use hologram_core::{Executor, conformance};

#[test]
fn every_case_asks_for_kernels_that_exist() {
    let targets = [Target::nvidia(90, 132, 227 << 10), Target::nvidia(80, 108, 163 << 10), Target::APPLE];
    for target in targets {
        let executor = Executor::from_backend(Arc::new(DryGpu::new(target)));
        let mut native = 0;
        // A launch of a kernel that is not declared panics.
        conformance::run_native(&executor, usize::MAX, |_, _| native += 1).unwrap();
        assert!(native > 500, "{target:?}: {native} cases");
    }
}
