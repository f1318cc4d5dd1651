//! The caches of compiled operations are bounded: the least recently used entry is evicted, and compiled
//! again when it is needed.

use hologram_core::{Executor, Result, Tensor};

fn shapes_stay_under_the_bound(device: &str, shapes: usize) -> Result<()> {
    let executor = Executor::open(device, Some(2))?;
    let values: Vec<f32> = (0..shapes).map(|i| i as f32 * 0.5 - 100.0).collect();
    let all = Tensor::from_slice(&executor, &[shapes], &values)?;
    let check = |n: usize| {
        // No device has a native kernel for floor, so each shape needs a program of its own.
        let got = all.slice(0, 0, n)?.floor()?.to_vec::<f32>()?;
        assert!(got.len() == n && got.iter().zip(&values).all(|(got, v)| *got == v.floor()), "{n} elements");
        Ok::<_, hologram_core::CoreError>(())
    };
    for n in 1..=shapes {
        check(n)?;
        let (kept, compiled) = (executor.operation_cache(), executor.metrics());
        assert!(kept.kept <= 1024 && compiled.pipelines_compiled - compiled.pipelines_evicted <= 1024, "{n}");
    }
    let (operations, metrics) = (executor.operation_cache(), executor.metrics());
    assert_eq!(operations.kept as u64 + operations.evicted, shapes as u64);
    assert_eq!(metrics.pipelines_compiled, shapes as u64);
    assert!(operations.evicted > shapes as u64 - 1025 && metrics.pipelines_evicted > shapes as u64 - 1025);
    // The last shapes are still cached; the first ones are compiled again.
    check(shapes)?;
    assert_eq!(executor.metrics().pipelines_compiled, shapes as u64);
    check(1)?;
    assert_eq!(executor.metrics().pipelines_compiled, shapes as u64 + 1);
    Ok(())
}

#[test]
fn ten_thousand_shapes_stay_under_the_bound() -> Result<()> {
    shapes_stay_under_the_bound("cpu", 10_000)
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn many_shapes_stay_under_the_bound_on_a_gpu() -> Result<()> {
    shapes_stay_under_the_bound("cuda", 1100)
}
