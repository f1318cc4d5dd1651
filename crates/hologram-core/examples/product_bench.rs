//! Times products of matrices on the CPU for `benches/products.py`, which takes turns with another library:
//! `cargo run --release -p hologram-core --example product_bench [THREADS]`.
//!
//! Each line of standard input is `FORMAT BATCHES N M K LAYOUT COUNT`; the answer is a line with the seconds of one
//! product, the least of some runs of COUNT products. A layout is `NN`, `NT`, `TN` or `TT`: which sides are stored
//! transposed. The line `peak` gives the operations per second of multiplications alone, on the same threads.

use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, Write};
use std::time::Instant;

use hologram_backends::CeilingKind;
use hologram_core::ops::MatmulOptions;
use hologram_core::{DType, Dim, Executor, Graph, Plan};
use hologram_isa::Type;

fn main() -> Result<(), Box<dyn Error>> {
    let threads = std::env::args().nth(1).map(|n| n.parse()).transpose()?;
    let executor = Executor::open("cpu", threads)?;
    let mut plans: HashMap<String, (Plan, usize)> = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line == "peak" {
            println!("{}", peak(&executor)?);
        } else {
            if !plans.contains_key(&line) {
                plans.insert(line.clone(), product(&executor, &line)?);
            }
            let (plan, count) = plans.get_mut(&line).ok_or("unreachable: the plan was made")?;
            let run = || {
                plan.run()?;
                Ok(executor.backend().synchronize()?)
            };
            println!("{}", least(run)? / *count as f64);
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// The least seconds of some runs.
fn least(mut run: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let mut least = f64::INFINITY;
    run()?;
    for _ in 0..5 {
        let start = Instant::now();
        run()?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok(least)
}

fn peak(executor: &Executor) -> Result<f64, Box<dyn Error>> {
    let backend = executor.backend();
    let ceiling = backend.measure().ceiling(CeilingKind::F32)?.ok_or("the device has no such measurement")?;
    let list = backend.record(&[ceiling.launch])?;
    let run = || {
        backend.submit(&list)?;
        Ok(backend.synchronize()?)
    };
    Ok(ceiling.amount / least(run)?)
}

/// A plan of some products, and their number.
fn product(executor: &Executor, line: &str) -> Result<(Plan, usize), Box<dyn Error>> {
    let words: Vec<&str> = line.split(' ').collect();
    let [format, batches, n, m, k, layout, count] = words[..] else { return Err("a line has seven words".into()) };
    let format = match format {
        "f32" => DType::F32,
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        "i8" => DType::Plain(Type::I8),
        "i32" => DType::I32,
        "f64" => DType::Plain(Type::F64),
        other => return Err(format!("there is no format {other}").into()),
    };
    let [batches, n, m, k, count]: [usize; 5] = [batches.parse()?, n.parse()?, m.parse()?, k.parse()?, count.parse()?];
    let [transpose_a, transpose_b] = [0, 1].map(|side| layout.as_bytes().get(side) == Some(&b'T'));
    let operand = |rows: usize, columns: usize, turned: bool| {
        let [x, y] = if turned { [columns, rows] } else { [rows, columns] };
        executor.eval([], |g, []| {
            let numbers = g.arange(DType::F32, 0.0, 1.0, Dim::Fixed(batches * x * y))?;
            let numbers = g.sin(numbers)?;
            let numbers = g.mul_scalar(numbers, 50.0)?;
            let numbers = g.cast(numbers, format)?;
            g.reshape(numbers, &[batches, x, y].map(Dim::Fixed))
        })
    };
    let (a, b) = (operand(n, k, transpose_a)?, operand(k, m, transpose_b)?);
    let mut g = Graph::new();
    let [a, b] = [g.constant(&a)?, g.constant(&b)?];
    let options = MatmulOptions { transpose_a, transpose_b, ..MatmulOptions::default() };
    for i in 0..count {
        let y = g.batch_matmul(a, b, &options)?;
        g.output(&i.to_string(), y)?;
    }
    Ok((g.compile(executor, &[])?, count))
}
