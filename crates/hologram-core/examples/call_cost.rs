//! The cost of small operations: nanoseconds of a call on tensors of 16 numbers, and of a function of 8 operations.
//!
//! `cargo run --release -p hologram-core --example call_cost -- DEVICE`

use std::time::Instant;

use hologram_core::{Executor, Function, Result, Tensor};

fn main() -> Result<()> {
    let device = std::env::args().nth(1).unwrap_or_else(|| "cpu".into());
    let executor = Executor::open(&device, None)?;
    let x = Tensor::from_slice(&executor, &[16], &[1.5f32; 16])?;
    let matrix = Tensor::from_slice(&executor, &[4, 4], &[0.5f32; 16])?;
    let chain = Function::new(&executor, |g, v| {
        let mut y = v[0];
        for _ in 0..4 {
            y = g.mul(y, v[0])?;
            y = g.add_scalar(y, 0.25)?;
        }
        Ok(vec![y])
    });
    type Call<'a> = (&'a str, Box<dyn Fn() -> Result<Tensor> + 'a>);
    let calls: [Call; 7] = [
        ("x + x", Box::new(|| &x + &x)),
        ("x + x.t()", Box::new(|| &matrix + &matrix.t()?)),
        ("exp(x)", Box::new(|| x.exp())),
        ("sum(x)", Box::new(|| x.sum(0))),
        ("matmul", Box::new(|| matrix.matmul(&matrix))),
        ("x + 1", Box::new(|| &x + 1.0)),
        ("8 operations", Box::new(|| Ok(chain.call(&[&x])?.remove(0)))),
    ];
    for (name, call) in &calls {
        let mut best = f64::INFINITY;
        for _ in 0..20 {
            let start = Instant::now();
            for _ in 0..500 {
                call()?;
            }
            executor.synchronize()?;
            best = best.min(start.elapsed().as_secs_f64() / 500.0);
        }
        println!("{name:14} {:7.0} ns", best * 1e9);
    }
    Ok(())
}
