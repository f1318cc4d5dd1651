//! Kernels that GPUs launch for the cases of every operation: all requested names exist. Runs on any machine.

use std::sync::Arc;

use hologram_backends::{DType, DryGpu, Target};
use hologram_core::{Dim, Executor, Graph, TensorAttention, conformance};

fn every_case_asks_for_kernels_that_exist(target: Target) {
    let executor = Executor::from_backend(Arc::new(DryGpu::new(target)));
    let mut native = 0;
    // A launch of a kernel that is not declared panics.
    conformance::run_native(&executor, usize::MAX, |_, _| native += 1).unwrap();
    assert!(native > 500, "{target:?}: {native} cases");
}

#[test]
fn every_case_asks_for_kernels_that_exist_for_capability_9_0() {
    every_case_asks_for_kernels_that_exist(Target::nvidia(90, 132, 227 << 10));
}

#[test]
fn every_case_asks_for_kernels_that_exist_for_capability_8_0() {
    every_case_asks_for_kernels_that_exist(Target::nvidia(80, 108, 163 << 10));
}

#[test]
fn every_case_asks_for_kernels_that_exist_for_apple() {
    every_case_asks_for_kernels_that_exist(Target::APPLE);
}

/// The gradients of attention in 16 bits are launches of native kernels: one for the result, one for the sums, two for
/// the gradients, and copies of these.
#[test]
fn attention_and_its_gradients_have_kernels() -> hologram_core::Result<()> {
    for (ty, d) in [(DType::BF16, 64), (DType::F16, 64), (DType::BF16, 128), (DType::F16, 128)] {
        let dry = Arc::new(DryGpu::new(Target::nvidia(90, 132, 227 << 10)));
        let executor = Executor::from_backend(dry.clone());
        let mut g = Graph::new();
        let shape = |heads: usize, n: usize| [2, heads, n, d].map(Dim::Fixed);
        let q = g.input("q", ty, &shape(4, 70))?;
        let k = g.input("k", ty, &shape(2, 90))?;
        let v = g.input("v", ty, &shape(2, 90))?;
        let by_result = g.input("by result", ty, &shape(4, 70))?;
        let result = g.flash_attention(q, k, v, &TensorAttention { scale: None, causal: true })?;
        let grads = g.vjp(&[(result, by_result)], &[q, k, v])?;
        g.output("result", result)?;
        for (name, grad) in ["by q", "by k", "by v"].into_iter().zip(grads) {
            let grad = g.copy(grad)?;
            g.output(name, grad)?;
        }
        let mut plan = g.compile(&executor, &[])?;
        plan.run()?;
        let run = dry.last();
        assert_eq!((run.launches, run.programs), (1 + 1 + 2 + 3, 0), "{ty:?}, {d}: {:?}", dry.last_programs());
    }
    Ok(())
}
