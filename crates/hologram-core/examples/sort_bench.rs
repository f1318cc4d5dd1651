//! Times sorting on the CPU against the standard library:
//! `cargo run --release -p hologram-core --example sort_bench [THREADS]`.
//!
//! Each line has the median of several runs that take turns: `sort_unstable_by` of the values alone on one thread, and
//! the operations `sort` and `arg_sort`, whose order is stable.

use std::time::Instant;

use hologram_core::{Executor, Graph, Tensor};

/// Number of turns; the median is printed.
const TURNS: usize = 11;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().nth(1).map(|n| n.parse()).transpose()?;
    let executor = Executor::open("cpu", threads)?;
    println!("{:>16} {:>14} {:>10} {:>12}", "f32", "sort_unstable", "sort", "arg_sort, ms");
    for (rows, n) in [(1, 1 << 20), (1, 1 << 24), (1 << 10, 1 << 12), (1 << 16, 64)] {
        let mut state = 1u64;
        let values: Vec<f32> = (0..rows * n)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as f32 / 1e6 - 8.0
            })
            .collect();
        let x = Tensor::from_slice(&executor, &[rows, n], &values)?;
        let mut plans = Vec::new();
        for values in [true, false] {
            let mut g = Graph::new();
            let x = g.constant(&x)?;
            let y = if values { g.sort(x, 1, false)? } else { g.arg_sort(x, 1, false)? };
            g.output("y", y)?;
            plans.push(g.compile(&executor, &[])?);
        }
        let mut times = [const { Vec::new() }; 3];
        for turn in 0..=TURNS {
            let mut copy = values.clone();
            let start = Instant::now();
            copy.chunks_mut(n).for_each(|row| row.sort_unstable_by(f32::total_cmp));
            let mut taken = vec![start.elapsed()];
            for plan in &mut plans {
                let start = Instant::now();
                plan.run()?;
                executor.backend().synchronize()?;
                taken.push(start.elapsed());
            }
            if turn > 0 {
                times.iter_mut().zip(taken).for_each(|(times, taken)| times.push(taken.as_secs_f64() * 1e3));
            } else {
                let sorted = plans[0].read::<f32>("y")?;
                assert!(sorted.iter().zip(&copy).all(|(a, b)| a == b), "{rows} × {n} is not sorted");
            }
        }
        let [a, b, c] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        println!("{:>16} {a:>14.2} {b:>10.2} {c:>12.2}", format!("{rows} × {n}"));
    }
    Ok(())
}
