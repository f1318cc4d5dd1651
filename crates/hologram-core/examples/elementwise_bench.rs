//! Times elementwise programs on a device: a sum, and the chain relu(sigmoid(x·y + x) − 0.25·tanh(y))·exp(−|x|).
//! The chain runs with exact and with fast functions; the device's copy bandwidth is printed for comparison.
//!
//! ```text
//! cargo run --release -p hologram-core --example elementwise_bench -- DEVICE [ELEMENTS]
//! ```

use std::error::Error;

use hologram_core::{CompileOptions, Executor, Graph, NodeId, Result, Tensor, conformance};

const RUNS: usize = 25;

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let device = args.next().ok_or("usage: elementwise_bench DEVICE [ELEMENTS]")?;
    let elements: usize = args.next().map_or(Ok(1 << 26), |n| n.parse())?;
    let executor = Executor::open(&device, None)?;
    let ceiling = executor.backend().measure().copy_bandwidth()?;
    println!("{}: copy {:.0} GB/s", executor.info().name, ceiling / 1e9);
    let values = |seed: u32| -> Vec<f32> {
        let hash = |i: usize| (i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed).wrapping_mul(0x9e37_79b1) >> 8;
        (0..elements).map(|i| hash(i) as f32 / 1_398_101.0 - 6.0).collect()
    };
    let tensors = [
        Tensor::from_slice(&executor, &[elements], &values(1))?,
        Tensor::from_slice(&executor, &[elements], &values(2))?,
    ];
    type Build = fn(&mut Graph, &Executor, NodeId, NodeId) -> Result<NodeId>;
    let cases: [(&str, Build, bool); 3] =
        [("x + y", |g, _, x, y| g.add(x, y), false), ("chain, exact", chain, false), ("chain, fast", chain, true)];
    for (name, build, fast) in cases {
        let mut g = Graph::new();
        let (x, y) = (g.constant(&tensors[0])?, g.constant(&tensors[1])?);
        let result = build(&mut g, &executor, x, y)?;
        g.output("result", result)?;
        let mut plan = g.compile_with(&executor, &[], CompileOptions { native: false, fast })?;
        plan.run()?;
        let mut seconds = Vec::new();
        for _ in 0..RUNS {
            seconds.push(plan.profile()?.iter().map(|(_, s)| s).sum::<f64>());
        }
        seconds.sort_by(f64::total_cmp);
        let (median, bytes) = (seconds[RUNS / 2], 12.0 * elements as f64);
        println!(
            "{name}: {} launch, {:.3} ms, {:.0} GB/s, {:.1} % of copy",
            plan.launches(),
            median * 1e3,
            bytes / median / 1e9,
            100.0 * bytes / median / ceiling
        );
    }
    Ok(())
}

fn chain(g: &mut Graph, executor: &Executor, x: NodeId, y: NodeId) -> Result<NodeId> {
    let quarter = g.constant(&Tensor::from_slice(executor, &[], &[0.25f32])?)?;
    conformance::chain(g, x, y, quarter)
}
