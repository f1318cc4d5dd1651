//! The host's time per addition of 16,384 `f32`: a compiled plan, with and without a wait after each run, and an
//! operation on tensors.
//!
//! `cargo run --release -p hologram-core --example launch_time [DEVICE]`

use std::time::Instant;

use hologram_core::{Executor, Graph, Result, Tensor};

fn main() -> Result<()> {
    let device = std::env::args().nth(1).unwrap_or_else(|| "auto".into());
    let executor = Executor::open(&device, None)?;
    let n = 16_384;
    let x = Tensor::random_uniform(&executor, hologram_core::DType::F32, &[n], 1, 0)?;
    let y = Tensor::random_uniform(&executor, hologram_core::DType::F32, &[n], 2, 0)?;
    let mut g = Graph::new();
    let (a, b) = (g.constant(&x)?, g.constant(&y)?);
    let sum = g.add(a, b)?;
    g.output("sum", sum)?;
    let mut plan = g.compile(&executor, &[])?;

    measure("plan, waited for", || plan.submit()?.wait())?;
    measure("plan, 100 at a time", || {
        (0..99).try_for_each(|_| plan.run())?;
        plan.submit()?.wait()
    })?;
    measure("tensors, waited for", || x.add(&y)?.wait())?;
    let view = y.reshape(&[128, 128])?.transpose()?;
    let square = x.reshape(&[128, 128])?;
    measure("tensors, one transposed", || square.add(&view)?.wait())?;
    measure("tensor and scalar", || (&x * 1.5)?.wait())
}

/// Prints the median of 1001 calls, after 100 calls of warm-up.
fn measure(name: &str, mut call: impl FnMut() -> Result<()>) -> Result<()> {
    let mut times = Vec::new();
    for i in 0..1101 {
        let start = Instant::now();
        call()?;
        if i >= 100 {
            times.push(start.elapsed());
        }
    }
    times.sort_unstable();
    println!("{name:<26} {:>9.2} µs", times[times.len() / 2].as_secs_f64() * 1e6);
    Ok(())
}
