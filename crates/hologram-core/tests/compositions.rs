//! Operations that are made of several: as a user calls them, against what they are to compute.

use hologram_core::ops::{MatmulOptions, Reduction};
use hologram_core::{Dim, Element, Executor, Format, Graph, NodeId, Result, Tensor};

fn cpu() -> Executor {
    Executor::open("cpu", None).expect("there is always a CPU")
}

/// The result of a graph over constant tensors.
fn run<T: Element>(executor: &Executor, build: impl FnOnce(&mut Graph) -> Result<NodeId>) -> Result<Vec<T>> {
    let mut g = Graph::new();
    let y = build(&mut g)?;
    g.output("y", y)?;
    let mut plan = g.compile(executor, &[])?;
    plan.run()?;
    plan.read("y")
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n as u64).map(|i| ((i * 48_271 + 11) % 65_537 / 5) as f32 * 0.25 - 1500.0).collect()
}

#[test]
fn long_lines_are_sorted_stably() {
    let e = cpu();
    for (n, inner) in [(1, 1), (512, 1), (513, 1), (5000, 1), (1300, 3)] {
        let values = numbers(n * inner);
        let x = Tensor::from_slice(&e, &[n, inner], &values).unwrap();
        for descending in [false, true] {
            let order: Vec<u32> = run(&e, |g| {
                let x = g.constant(&x)?;
                g.arg_sort(x, 0, descending)
            })
            .unwrap();
            let sorted: Vec<f32> = run(&e, |g| {
                let x = g.constant(&x)?;
                g.sort(x, 0, descending)
            })
            .unwrap();
            for c in 0..inner {
                let mut want: Vec<usize> = (0..n).collect();
                let value = |i: usize| values[i * inner + c];
                want.sort_by(|i, j| {
                    let rising = value(*i).total_cmp(&value(*j));
                    if descending { rising.reverse() } else { rising }
                });
                for (j, i) in want.iter().enumerate() {
                    assert_eq!(order[j * inner + c] as usize, *i, "{j} of {n}, column {c}");
                    assert_eq!(sorted[j * inner + c], value(*i));
                }
            }
        }
    }
}

#[test]
fn updates_are_scattered_in_their_order() {
    let e = cpu();
    let x = Tensor::from_slice(&e, &[3, 2], &[0.0f32; 6]).unwrap();
    let indices = Tensor::from_slice(&e, &[4], &[2u32, 0, 2, 2]).unwrap();
    let updates = Tensor::from_slice(&e, &[4, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
    for (add, want) in [(false, [3.0, 4.0, 0.0, 0.0, 7.0, 8.0]), (true, [3.0, 4.0, 0.0, 0.0, 13.0, 16.0])] {
        let got: Vec<f32> = run(&e, |g| {
            let [x, indices, updates] = [g.constant(&x)?, g.constant(&indices)?, g.constant(&updates)?];
            if add { g.scatter_add(x, indices, updates, 0) } else { g.scatter(x, indices, updates, 0) }
        })
        .unwrap();
        assert_eq!(got, want);
    }
}

#[test]
fn indices_outside_are_errors_of_the_run() {
    for device in ["cpu", "reference"] {
        let e = Executor::open(device, None).unwrap();
        let x = Tensor::from_slice(&e, &[3], &[1.0f32; 3]).unwrap();
        let indices = Tensor::from_slice(&e, &[2], &[1u32, 3]).unwrap();
        let updates = Tensor::from_slice(&e, &[2], &[1.0f32; 2]).unwrap();
        let outcome = |op: &str| {
            let result: Result<Vec<f32>> = run(&e, |g| {
                let [x, indices, updates] = [g.constant(&x)?, g.constant(&indices)?, g.constant(&updates)?];
                match op {
                    "take" => g.take_along(x, indices, 0),
                    "scatter" => g.scatter(x, indices, updates, 0),
                    _ => g.scatter_add(x, indices, updates, 0),
                }
            });
            result.expect_err(op).to_string()
        };
        for op in ["take", "scatter", "scatter_add"] {
            let error = outcome(op);
            assert!(error.contains(op) && error.contains("outside"), "{device}: {error}");
        }
    }
}

#[test]
fn everything_is_reduced_to_a_scalar() {
    let e = cpu();
    let values: Vec<f32> = (1..=24).map(|i| i as f32).collect();
    let x = Tensor::from_slice(&e, &[2, 3, 4], &values).unwrap();
    let mean: Vec<f32> = run(&e, |g| {
        let x = g.constant(&x)?;
        g.reduce_all(Reduction::Mean, x)
    })
    .unwrap();
    assert_eq!(mean, [12.5]);
    // Over a run-time extent, only what a run has.
    let mut g = Graph::new();
    let rows = g.extent("rows", 5);
    let x = g.input("x", Format::I32, &[rows, Dim::Fixed(2)]).unwrap();
    let sum = g.reduce_all(Reduction::Sum, x).unwrap();
    g.output("sum", sum).unwrap();
    let mut plan = g.compile(&e, &[]).unwrap();
    plan.write("x", &[1i32, 2, 3, 4, 5, 6]).unwrap();
    plan.set_extent("rows", 2).unwrap();
    plan.run().unwrap();
    assert_eq!(plan.read::<i32>("sum").unwrap(), [10]);
}

#[test]
fn attention_is_two_products_and_a_softmax() {
    let e = cpu();
    let (heads, n, d) = (2, 3, 4);
    let values = |seed: usize| (0..heads * n * d).map(|i| ((i * 7 + seed) % 11) as f32 / 4.0 - 1.0).collect::<Vec<_>>();
    let [q, k, v] = [1, 5, 9].map(values);
    let tensor = |values: &[f32]| Tensor::from_slice(&e, &[heads, n, d], values).unwrap();
    let got: Vec<f32> = run(&e, |g| {
        let [q, k, v] = [g.constant(&tensor(&q))?, g.constant(&tensor(&k))?, g.constant(&tensor(&v))?];
        let scores = g.batch_matmul(q, k, &MatmulOptions { transpose_b: true, ..MatmulOptions::default() })?;
        let weights = g.softmax(scores)?;
        g.batch_matmul(weights, v, &MatmulOptions::default())
    })
    .unwrap();
    for row in 0..heads * n {
        let head = row / n * n;
        let at = |x: &[f32], row: usize, e: usize| f64::from(x[row * d + e]);
        let weights: Vec<f64> =
            (0..n).map(|j| (0..d).map(|e| at(&q, row, e) * at(&k, head + j, e)).sum::<f64>().exp()).collect();
        let total: f64 = weights.iter().sum();
        for e in 0..d {
            let want: f64 = (0..n).map(|j| weights[j] / total * at(&v, head + j, e)).sum();
            assert!((f64::from(got[row * d + e]) - want).abs() < 1e-5, "row {row}, element {e}");
        }
    }
}

#[test]
fn shapes_that_no_index_reaches_are_errors() {
    let mut g = Graph::new();
    let n = 1 << 17;
    let x = g.input("x", Format::F32, &[Dim::Fixed(n), Dim::Fixed(1)]).unwrap();
    let options = MatmulOptions { transpose_b: true, ..MatmulOptions::default() };
    let error = g.batch_matmul(x, x, &options).unwrap_err().to_string();
    assert!(error.contains("[131072, 131072] has more than 4294967295 elements"), "{error}");
}
