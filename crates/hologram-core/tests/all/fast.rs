//! Elementwise chains with the fast forms of functions.

use hologram_core::{CompileOptions, DType, Dim, Executor, Graph, Result, Tensor, conformance};

const ROWS: usize = 33;
const COLUMNS: usize = 1001;

/// relu(sigmoid(x·y + x) − 0.25·tanh(y))·exp(−|x|) as one launch: its inputs and result.
fn chain(executor: &Executor, fast: bool) -> Result<[Vec<f32>; 3]> {
    let mut g = Graph::new();
    let rows = g.extent("rows", ROWS + 7);
    let shape = [rows, Dim::Fixed(COLUMNS)];
    let (x, y) = (g.input("x", DType::F32, &shape)?, g.input("y", DType::F32, &shape)?);
    let quarter = g.constant(&Tensor::from_slice(executor, &[], &[0.25f32])?)?;
    let result = conformance::chain(&mut g, x, y, quarter)?;
    g.output("result", result)?;
    let mut plan = g.compile_with(executor, &[], CompileOptions { fast, ..Default::default() })?;
    assert_eq!(plan.launches(), 1);
    let values = |seed: u32| {
        let hash = |i: usize| (i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed).wrapping_mul(0x9e37_79b1) >> 8;
        (0..ROWS * COLUMNS).map(|i| hash(i) as f32 / 1_398_101.0 - 6.0).collect::<Vec<f32>>()
    };
    let (x, y) = (values(1), values(2));
    plan.set_extent("rows", ROWS)?;
    plan.write("x", &x)?;
    plan.write("y", &y)?;
    plan.run()?;
    Ok([x, y, plan.read("result")?])
}

#[test]
fn the_cpu_gives_the_exact_result_either_way() -> Result<()> {
    let executor = Executor::open("cpu", Some(2))?;
    let ([x, y, exact], [_, _, fast]) = (chain(&executor, false)?, chain(&executor, true)?);
    assert!(exact == fast);
    within_bounds(&x, &y, &exact, 4e-7);
    Ok(())
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn a_gpu_stays_within_the_bounds() -> Result<()> {
    let executor = Executor::open("cuda", None)?;
    for fast in [false, true] {
        let [x, y, result] = chain(&executor, fast)?;
        within_bounds(&x, &y, &result, if fast { 1e-6 } else { 4e-7 });
    }
    let (gpu, cpu) = (chain(&executor, false)?, chain(&Executor::open("cpu", Some(2))?, false)?);
    assert!(gpu == cpu, "without fast forms every device gives the same bits");
    Ok(())
}

fn within_bounds(x: &[f32], y: &[f32], got: &[f32], bound: f64) {
    assert_eq!(got.len(), x.len());
    for ((x, y), got) in x.iter().zip(y).zip(got) {
        let (x, y) = (f64::from(*x), f64::from(*y));
        let want = (1.0 / (1.0 + (-(x * y + x)).exp()) - 0.25 * y.tanh()).max(0.0) * (-x.abs()).exp();
        assert!((f64::from(*got) - want).abs() <= bound, "x {x}, y {y}: {got}, not {want}");
    }
}
