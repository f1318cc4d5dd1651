//! Operations that consist of several operations, compared with their definitions.

use hologram_core::ops::{Activation, Conv2dOptions, LossReduction, MatmulOptions, Pool2dOptions, Reduction};
use hologram_core::{DType, Dim, Element, Executor, Graph, NodeId, Result, Tensor};

/// A test on the CPU and, if there is one, on an NVIDIA GPU.
macro_rules! on_devices {
    ($($name:ident)*) => {
        mod cpu {
            $(#[test]
            fn $name() {
                super::$name(&super::Executor::open("cpu", None).expect("there is always a CPU"));
            })*
        }

        mod cuda {
            $(#[test]
            #[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
            fn $name() {
                super::$name(&super::Executor::open("cuda", None).expect("an NVIDIA GPU"));
            })*
        }
    };
}
on_devices! {
    long_lines_are_sorted_stably
    rows_are_sorted_stably
    updates_are_scattered_in_their_order
    indices_outside_are_errors_of_the_run
    everything_is_reduced_to_a_scalar
    attention_is_two_products_and_a_softmax
    long_lines_are_summed_in_chunks_of_chunks
    tensors_have_the_operations_one_at_a_time
    dimensions_are_counted_from_the_end
    losses_are_reduced
    without_lines_there_is_nothing_to_do
    an_activation_of_a_product_keeps_nan
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

fn long_lines_are_sorted_stably(e: &Executor) {
    for (n, inner) in [(1, 1), (512, 1), (513, 1), (5000, 1), (1300, 3)] {
        let values = numbers(n * inner);
        let x = Tensor::from_slice(e, &[n, inner], &values).unwrap();
        for descending in [false, true] {
            let order: Vec<u32> = run(e, |g| {
                let x = g.constant(&x)?;
                g.arg_sort(x, 0, descending)
            })
            .unwrap();
            let sorted: Vec<f32> = run(e, |g| {
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

/// Rows of every size that devices have kernels for, of few and many different elements.
fn rows_are_sorted_stably(e: &Executor) {
    for (rows, n) in [(37, 5), (3, 256), (9, 400), (300, 1024), (2, 1500), (5, 4096), (2, 4097)] {
        for few in [false, true] {
            let mut values = numbers(rows * n);
            if few {
                values.iter_mut().for_each(|v| *v = (*v / 400.0).round());
            }
            let x = Tensor::from_slice(e, &[rows, n], &values).unwrap();
            for descending in [false, true] {
                let order: Vec<u32> = run(e, |g| {
                    let x = g.constant(&x)?;
                    g.arg_sort(x, 1, descending)
                })
                .unwrap();
                for (r, (order, values)) in order.chunks(n).zip(values.chunks(n)).enumerate() {
                    let mut want: Vec<u32> = (0..n as u32).collect();
                    want.sort_by(|i, j| {
                        let rising = values[*i as usize].partial_cmp(&values[*j as usize]).unwrap();
                        if descending { rising.reverse() } else { rising }
                    });
                    assert!(order == want, "row {r} of {rows} x {n}, descending {descending}");
                }
            }
        }
    }
}

fn updates_are_scattered_in_their_order(e: &Executor) {
    let x = Tensor::from_slice(e, &[3, 2], &[0.0f32; 6]).unwrap();
    let indices = Tensor::from_slice(e, &[4], &[2u32, 0, 2, 2]).unwrap();
    let updates = Tensor::from_slice(e, &[4, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
    for (add, want) in [(false, [3.0, 4.0, 0.0, 0.0, 7.0, 8.0]), (true, [3.0, 4.0, 0.0, 0.0, 13.0, 16.0])] {
        let got: Vec<f32> = run(e, |g| {
            let [x, indices, updates] = [g.constant(&x)?, g.constant(&indices)?, g.constant(&updates)?];
            if add { g.scatter_add(x, indices, updates, 0) } else { g.scatter(x, indices, updates, 0) }
        })
        .unwrap();
        assert_eq!(got, want);
    }
}

fn indices_outside_are_errors_of_the_run(e: &Executor) {
    let x = Tensor::from_slice(e, &[3], &[1.0f32; 3]).unwrap();
    let rows = Tensor::from_slice(e, &[2, 3], &[1.0f32; 6]).unwrap();
    let updates = Tensor::from_slice(e, &[2], &[1.0f32; 2]).unwrap();
    let outcome = |op: &str, last: u32| -> Result<Vec<f32>> {
        let indices = Tensor::from_slice(e, &[2], &[1u32, last])?;
        run(e, |g| {
            let [x, rows, indices, updates] =
                [g.constant(&x)?, g.constant(&rows)?, g.constant(&indices)?, g.constant(&updates)?];
            match op {
                "take" => g.take_along(x, indices, 0),
                "scatter" => g.scatter(x, indices, updates, 0),
                "scatter_add" => g.scatter_add(x, indices, updates, 0),
                _ => g.cross_entropy(rows, indices, LossReduction::None),
            }
        })
    };
    for op in ["take", "scatter", "scatter_add", "cross_entropy"] {
        let error = outcome(op, 3).expect_err(op).to_string();
        assert!(error.contains(op) && error.contains("outside"), "{error}");
        // The failure does not affect later calls.
        outcome(op, 2).expect(op);
    }
}

fn everything_is_reduced_to_a_scalar(e: &Executor) {
    let values: Vec<f32> = (1..=24).map(|i| i as f32).collect();
    let x = Tensor::from_slice(e, &[2, 3, 4], &values).unwrap();
    let mean: Vec<f32> = run(e, |g| {
        let x = g.constant(&x)?;
        g.reduce_all(x, Reduction::Mean)
    })
    .unwrap();
    assert_eq!(mean, [12.5]);
    // Over a run-time extent, only the elements of the run count.
    let mut g = Graph::new();
    let rows = g.extent("rows", 5);
    let x = g.input("x", DType::I32, &[rows, Dim::Fixed(2)]).unwrap();
    let sum = g.reduce_all(x, Reduction::Sum).unwrap();
    g.output("sum", sum).unwrap();
    let mut plan = g.compile(e, &[]).unwrap();
    plan.write("x", &[1i32, 2, 3, 4, 5, 6]).unwrap();
    plan.set_extent("rows", 2).unwrap();
    plan.run().unwrap();
    assert_eq!(plan.read::<i32>("sum").unwrap(), [10]);
}

fn attention_is_two_products_and_a_softmax(e: &Executor) {
    let (heads, n, d) = (2, 3, 4);
    let values = |seed: usize| (0..heads * n * d).map(|i| ((i * 7 + seed) % 11) as f32 / 4.0 - 1.0).collect::<Vec<_>>();
    let [q, k, v] = [1, 5, 9].map(values);
    let tensor = |values: &[f32]| Tensor::from_slice(e, &[heads, n, d], values).unwrap();
    let got: Vec<f32> = run(e, |g| {
        let [q, k, v] = [g.constant(&tensor(&q))?, g.constant(&tensor(&k))?, g.constant(&tensor(&v))?];
        let scores = g.batch_matmul(q, k, &MatmulOptions { transpose_b: true, ..MatmulOptions::default() })?;
        let weights = g.softmax_rows(scores)?;
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

fn an_activation_of_a_product_keeps_nan(e: &Executor) {
    let (n, k) = (20, 40);
    let values: Vec<f32> = (0..n * k).map(|i| if i == 3 * k + 7 { f32::NAN } else { (i % 11) as f32 - 5.0 }).collect();
    let x = Tensor::from_slice(e, &[n, k], &values).unwrap();
    for activation in [Activation::Relu, Activation::Gelu, Activation::Silu] {
        let y: Vec<f32> = run(e, |g| {
            let x = g.constant(&x)?;
            let options = MatmulOptions { activation: Some(activation), transpose_b: true, ..MatmulOptions::default() };
            g.batch_matmul(x, x, &options)
        })
        .unwrap();
        // The row and the column of the element.
        let is_nan = |at: usize| at / n == 3 || at % n == 3;
        assert!(y.iter().enumerate().all(|(at, y)| y.is_nan() == is_nan(at)), "{activation:?}");
    }
}

#[test]
fn shapes_that_no_index_reaches_are_errors() {
    let mut g = Graph::new();
    let n = 1 << 17;
    let x = g.input("x", DType::F32, &[Dim::Fixed(n), Dim::Fixed(1)]).unwrap();
    let options = MatmulOptions { transpose_b: true, ..MatmulOptions::default() };
    let error = g.batch_matmul(x, x, &options).unwrap_err().to_string();
    assert!(error.contains("[131072, 131072] has more than 4294967295 elements"), "{error}");
}

fn long_lines_are_summed_in_chunks_of_chunks(e: &Executor) {
    // More than 2048 chunks of 2048 would need three levels; two levels are enough to test the carry.
    let n = 2048 * 3 + 5;
    let values: Vec<i32> = (0..n * 2).map(|i| i % 1000 - 300).collect();
    let x = Tensor::from_slice(e, &[n as usize, 2], &values).unwrap();
    let got: Vec<i32> = run(e, |g| {
        let x = g.constant(&x)?;
        g.cumsum(x, 0)
    })
    .unwrap();
    let mut sums = [0; 2];
    for (i, v) in values.iter().enumerate() {
        sums[i % 2] += v;
        assert_eq!(got[i], sums[i % 2], "element {i}");
    }
}

fn tensors_have_the_operations_one_at_a_time(e: &Executor) {
    let x = Tensor::from_slice(e, &[2, 3], &[3.0f32, 1.0, 2.0, -1.0, 5.0, 0.0]).unwrap();
    assert_eq!(x.sort(1, true).unwrap().to_vec::<f32>().unwrap(), [3.0, 2.0, 1.0, 5.0, 0.0, -1.0]);
    assert_eq!(x.sort(1, false).unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, -1.0, 0.0, 5.0]);
    // A view along the other dimension.
    assert_eq!(x.transpose().unwrap().arg_max(1).unwrap().to_vec::<u32>().unwrap(), [0, 1, 0]);
    assert_eq!(x.cumsum(0).unwrap().to_vec::<f32>().unwrap(), [3.0, 1.0, 2.0, 2.0, 6.0, 2.0]);
    let columns = Tensor::from_slice(e, &[2], &[2u32, 2]).unwrap();
    let updates = Tensor::from_slice(e, &[2, 2], &[1.0f32, 10.0, 2.0, 20.0]).unwrap();
    let added = x.scatter_add(&columns, &updates, 1).unwrap();
    assert_eq!(added.to_vec::<f32>().unwrap(), [3.0, 1.0, 13.0, -1.0, 5.0, 22.0]);
    let (image, kernel) =
        (x.reshape(&[1, 1, 2, 3]).unwrap(), Tensor::from_slice(e, &[1, 1, 1, 2], &[1.0f32, -1.0]).unwrap());
    let bias = Tensor::from_slice(e, &[1], &[0.5f32]).unwrap();
    let edges = image.conv2d(&kernel, Some(&bias), &Conv2dOptions::default()).unwrap();
    assert_eq!(edges.to_vec::<f32>().unwrap(), [2.5, -0.5, -5.5, 5.5]);
}

fn without_lines_there_is_nothing_to_do(e: &Executor) {
    for (shape, dim) in
        [(&[3, 0][..], 0), (&[2, 3, 0], 0), (&[2, 3, 0], 1), (&[2, 0, 3], 0), (&[2, 0, 3], 2), (&[5000, 0], 0)]
    {
        let x = Tensor::from_slice(e, shape, &[0.0f32; 0]).unwrap();
        let indices = x.arg_sort(dim, true).unwrap();
        assert_eq!(indices.shape(), shape);
        assert!(indices.to_vec::<u32>().unwrap().is_empty(), "{shape:?} along {dim}");
        let results = [
            x.sort(dim, false),
            x.cumsum(dim),
            x.softmax(dim),
            x.take_along(&indices, dim),
            x.scatter(&indices, &x, dim),
            x.scatter_add(&indices, &x, dim),
        ];
        for y in results {
            let y = y.unwrap();
            assert_eq!(y.shape(), shape);
            assert!(y.to_vec::<f32>().unwrap().is_empty(), "{shape:?} along {dim}");
        }
        let most = x.arg_max(dim).unwrap();
        assert!(most.to_vec::<u32>().unwrap().is_empty(), "{shape:?} along {dim}");
    }
}

/// Graphs count dimensions from the last as tensors do.
fn dimensions_are_counted_from_the_end(e: &Executor) {
    let x = Tensor::from_slice(e, &[2, 3], &[3.0f32, 1.0, 2.0, 6.0, 4.0, 5.0]).unwrap();
    let both = |build: &dyn Fn(&mut Graph, NodeId, i32) -> Result<NodeId>| {
        for (back, dim) in [(-1, 1), (-2, 0)] {
            let [a, b] = [back, dim].map(|dim| e.eval([&x], |g, [x]| build(g, x, dim)).unwrap());
            assert_eq!(a.shape(), b.shape());
            let [a, b] = [a, b].map(|t| t.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap());
            assert_eq!(a, b, "{back}");
        }
    };
    both(&|g, x, dim| g.softmax(x, dim));
    both(&|g, x, dim| g.log_softmax(x, dim));
    both(&|g, x, dim| g.reduce(x, Reduction::Sum, dim));
    both(&|g, x, dim| g.arg_max(x, dim));
    both(&|g, x, dim| g.arg_sort(x, dim, false));
    both(&|g, x, dim| g.sort(x, dim, true));
    both(&|g, x, dim| g.cumsum(x, dim));
    both(&|g, x, dim| g.cat(&[x, x], dim));
    both(&|g, x, dim| {
        let first = g.slice(x, dim, 0, 1)?;
        g.copy(first)
    });
    both(&|g, x, dim| {
        let order = g.arg_sort(x, dim, false)?;
        let taken = g.take_along(x, order, dim)?;
        g.scatter_add(taken, order, x, dim)
    });
}

fn losses_are_reduced(e: &Executor) {
    let logits = Tensor::from_slice(e, &[2, 3], &[1.0f32, 2.0, 3.0, 0.0, 0.0, 0.0]).unwrap();
    let classes = Tensor::from_slice(e, &[2], &[2u32, 1]).unwrap();
    // −log softmax, by hand.
    let rows = [(1.0 + (-1f64).exp() + (-2f64).exp()).ln(), 3f64.ln()];
    for (reduction, want) in [
        (LossReduction::None, rows.to_vec()),
        (LossReduction::Mean, vec![(rows[0] + rows[1]) / 2.0]),
        (LossReduction::Sum, vec![rows[0] + rows[1]]),
    ] {
        let got: Vec<f32> = run(e, |g| {
            let [x, t] = [g.constant(&logits)?, g.constant(&classes)?];
            g.cross_entropy(x, t, reduction)
        })
        .unwrap();
        assert_eq!(got.len(), want.len());
        assert!(got.iter().zip(&want).all(|(g, w)| (f64::from(*g) - w).abs() < 1e-6), "{got:?}, not {want:?}");
    }
    let [x, t] = [[1.0f32, -2.0], [0.0, 1.0]].map(|v| Tensor::from_slice(e, &[2], &v).unwrap());
    for (squared, want) in
        [(true, 5.0), (false, (1.0 + 1f64.exp()).ln() / 2.0 + (2.0 + (1.0 + (-2f64).exp()).ln()) / 2.0)]
    {
        let got: Vec<f32> = run(e, |g| {
            let [x, t] = [g.constant(&x)?, g.constant(&t)?];
            let mean = LossReduction::Mean;
            if squared { g.mse_loss(x, t, mean) } else { g.bce_with_logits(x, t, mean) }
        })
        .unwrap();
        assert!((f64::from(got[0]) - want).abs() < 1e-6, "{got:?}, not {want}");
    }
}

#[test]
fn operands_that_do_not_fit_are_refused_by_name() {
    let mut g = Graph::new();
    // A number that this graph has too: only its graph tells it apart.
    let foreign = Graph::new().input("other", DType::F32, &[Dim::Fixed(2), Dim::Fixed(3)]).unwrap();
    let mut input = |name: &str, format: DType, shape: &[usize]| {
        let dims: Vec<Dim> = shape.iter().map(|n| Dim::Fixed(*n)).collect();
        g.input(name, format, &dims).unwrap()
    };
    let (x, i, image) =
        (input("x", DType::F32, &[4, 6]), input("i", DType::I32, &[4, 6]), input("image", DType::F32, &[1, 4, 6, 6]));
    let kernel = input("kernel", DType::F32, &[2, 4, 7, 3]);
    let classes = input("classes", DType::U32, &[6]);
    let options = MatmulOptions { activation: Some(Activation::Gelu), transpose_b: true, ..MatmulOptions::default() };
    let stride = Conv2dOptions { stride: [0, 1], ..Conv2dOptions::default() };
    let (plain, conv) = (MatmulOptions::default(), Conv2dOptions::default());
    for (result, name) in [
        (g.reduce(x, Reduction::Sum, 2), "reduce_sum"),
        (g.reduce(i, Reduction::Mean, 0), "reduce_mean: does not exist for i32; it takes f16, bf16, f32, f64"),
        (g.softmax(i, 0), "softmax"),
        (g.softmax(x, -3), "softmax: there is no dimension -3 of 2"),
        (g.arg_max(x, 7), "arg_max"),
        (g.arg_sort(x, 2, false), "arg_sort"),
        (g.take_along(x, i, 0), "take_along"),
        (g.scatter(x, classes, i, 0), "scatter"),
        (g.cumsum(x, 2), "cumsum"),
        (g.batch_matmul(x, x, &plain), "batch_matmul"),
        (g.batch_matmul(i, i, &options), "batch_matmul"),
        (g.layer_norm(x, x, x, 1e-5), "layer_norm"),
        (g.cross_entropy(x, classes, LossReduction::None), "cross_entropy"),
        (g.mse_loss(x, i, LossReduction::None), "mse_loss"),
        (g.conv2d(image, kernel, &conv), "conv2d"),
        (g.conv2d(image, image, &stride), "conv2d"),
        (g.softmax_rows(foreign), "softmax"),
        (g.take(foreign, x), "take"),
        (g.arg_sort(foreign, 0, false), "arg_sort"),
        (g.scatter(x, foreign, x, 0), "scatter"),
        (g.cumsum(foreign, 0), "cumsum"),
        (g.reduce_all(foreign, Reduction::Sum), "reduce_all"),
        (g.relu(foreign), "relu: an operand is a value of another graph"),
        (g.add_scalar(foreign, 1.0), "add_scalar: an operand is a value of another graph"),
        (g.clip_scalar(foreign, 0.0, 1.0), "clip_scalar: an operand is a value of another graph"),
        (g.pad(foreign, &[(1, 1)], 0.0), "pad: an operand is a value of another graph"),
        (g.contiguous(foreign), "contiguous: an operand is a value of another graph"),
        (g.type_of(foreign).map(|_| foreign), "type_of: an operand is a value of another graph"),
    ] {
        let error = result.expect_err(name).to_string();
        assert!(error.contains(name), "{name}: {error}");
    }
}

#[test]
fn pooling_reduces_windows() -> Result<()> {
    let device = Executor::open("cpu", None)?;
    let (h, w) = (5usize, 7usize);
    let images: Vec<f32> = (0..2 * h * w).map(|i| ((i * 37) % 101) as f32 - 60.0).collect();
    let cases = [([2, 2], [2, 2], [0, 0]), ([3, 2], [1, 3], [1, 1]), ([1, 1], [2, 2], [0, 0])];
    for (kernel, stride, padding) in cases {
        for reduction in [Reduction::Max, Reduction::Min, Reduction::Mean] {
            let mut g = Graph::new();
            let x = g.input("x", DType::F32, &[1, 2, h, w].map(Dim::Fixed))?;
            let y = g.pool2d(x, reduction, &Pool2dOptions { kernel, stride, padding })?;
            let y = g.copy(y)?;
            g.output("y", y)?;
            let mut plan = g.compile(&device, &[])?;
            plan.write("x", &images)?;
            plan.run()?;
            let counts = [h, w].into_iter().enumerate().map(|(k, n)| (n + 2 * padding[k] - kernel[k]) / stride[k] + 1);
            let counts: Vec<usize> = counts.collect();
            let mut want = Vec::new();
            for i in 0..2 * counts[0] * counts[1] {
                let (image, row, column) = (i / (counts[0] * counts[1]), i / counts[1] % counts[0], i % counts[1]);
                let mut window = Vec::new();
                for at in 0..kernel[0] * kernel[1] {
                    let y = (row * stride[0] + at / kernel[1]).checked_sub(padding[0]).filter(|y| *y < h);
                    let x = (column * stride[1] + at % kernel[1]).checked_sub(padding[1]).filter(|x| *x < w);
                    window.extend(y.zip(x).map(|(y, x)| images[(image * h + y) * w + x]));
                }
                want.push(match reduction {
                    Reduction::Max => window.iter().copied().fold(f32::NEG_INFINITY, f32::max),
                    Reduction::Min => window.iter().copied().fold(f32::INFINITY, f32::min),
                    _ => window.iter().sum::<f32>() / (kernel[0] * kernel[1]) as f32,
                });
            }
            let have = plan.read::<f32>("y")?;
            assert_eq!(have.len(), want.len());
            let off = have.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 1e-4, "{reduction:?} {kernel:?} {stride:?} {padding:?}: {have:?}, not {want:?}");
        }
    }
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, &[1, 1, 4, 4].map(Dim::Fixed))?;
    for (kernel, stride, padding) in [([5, 1], [1, 1], [0, 0]), ([2, 2], [0, 1], [0, 0]), ([2, 2], [1, 1], [2, 0])] {
        assert!(g.pool2d(x, Reduction::Max, &Pool2dOptions { kernel, stride, padding }).is_err());
    }
    Ok(())
}
