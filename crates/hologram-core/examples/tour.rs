//! A tour of the library for a program of one's own: tensors, a kernel in Atlas, a graph that runs many times, and a
//! pool for data that change between the runs.
//!
//! ```text
//! cargo run --release -p hologram-core --example tour [cpu|cuda|reference]
//! ```

use hologram_core::{DType, Dim, Executor, Graph, Result, Tensor};

/// Iterates 4·x·(1 - x) a number of times.
const LOGISTIC: &str = "
kernel logistic(x: buffer<f32, readwrite>, n: u32, times: u32) workgroup(256) {
  %i = global.x
  %inside = lt.u32 %i, n
  if %inside {
    %v = load.f32 x[%i]
    for %t: u32 = 0 to times step 1 {
      %rest = sub.f32 1.0, %v
      %product = mul.f32 %v, %rest
      %v = mul.f32 %product, 4.0
    }
    store.f32 x[%i], %v
  }
}";

fn main() -> Result<()> {
    let device = std::env::args().nth(1).unwrap_or_else(|| "auto".into());
    let executor = Executor::open(&device, None)?;
    println!("{} ({})", executor.info().backend, executor.info().name);

    // Tensors: operations one at a time.
    let n = 10_000;
    let x = Tensor::random_uniform(&executor, DType::F32, &[n], 7, 0)?;
    println!(
        "{} numbers, of which {} are above 0.9",
        n,
        x.gt(&Tensor::full(&executor, DType::F32, &[1], 0.9)?)?.to_bools()?.iter().filter(|b| **b).count()
    );

    // A kernel of one's own on a tensor's memory. The numbers stay between 0 and 1 and crowd at both ends.
    let logistic = executor.program(LOGISTIC)?;
    logistic.run([n.div_ceil(256) as u32, 1, 1], &[(&x).into(), (n as u32).into(), 20u32.into()])?;
    let sorted = x.sort(0, false)?.to_vec::<f32>()?;
    println!("after the kernel the median is {:.3}, a tenth are below {:.3}", sorted[n / 2], sorted[n / 10]);

    // A graph, compiled once for up to 64 rows and run with any number of them. Its weights lie in a pool, where the
    // host writes new ones.
    let pool = executor.pool(4 * size_of::<f32>())?;
    let mut graph = Graph::new();
    let rows = graph.extent("rows", 64);
    let x = graph.input("x", DType::F32, &[rows, Dim::Fixed(4)])?;
    let weights = graph.constant(&pool.tensor(0, DType::F32, &[4])?)?;
    let product = graph.mul(x, weights)?;
    let positive = graph.relu(product)?;
    let sums = graph.reduce_sum(positive)?;
    graph.output("sums", sums)?;
    let mut plan = graph.compile(&executor, &[])?;
    plan.set_extent("rows", 2)?;
    plan.write("x", &[1.0f32, 2.0, 3.0, 4.0, -1.0, -2.0, -3.0, -4.0])?;
    for weights in [[1.0f32; 4], [1.0, -1.0, 1.0, -1.0]] {
        pool.write(0, &weights)?;
        let event = plan.submit()?; // On a GPU the host is free here.
        event.wait()?;
        println!("{:?} from {} kernels a run", plan.read::<f32>("sums")?, plan.launches());
    }
    Ok(())
}
