//! Views of tensors and of graph values: which operations read them in place, which get a copy, and
//! which views are rejected.

use hologram_core::ops::MatmulOptions;
use hologram_core::{DType, Dim, Graph, NodeId, Result, Tensor};

use crate::common::{devices, tested};

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn on_a_gpu() -> Result<()> {
    chains_read_views_in_place_and_other_operations_get_copies_on(true)?;
    views_keep_run_time_extents_on(true)?;
    tensors_have_views_on(true)?;
    whole_numbers_divided_by_zero_are_an_error_of_the_run_on(true)?;
    Ok(())
}

fn fixed(sizes: &[usize]) -> Vec<Dim> {
    sizes.iter().map(|n| Dim::Fixed(*n)).collect()
}

#[test]
fn chains_read_views_in_place_and_other_operations_get_copies() -> Result<()> {
    chains_read_views_in_place_and_other_operations_get_copies_on(false)
}

fn chains_read_views_in_place_and_other_operations_get_copies_on(gpu: bool) -> Result<()> {
    type Build = fn(&mut Graph, NodeId) -> Result<NodeId>;
    let x: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let transposed = |f: fn(f32) -> f32| (0..24).map(|i| f((i % 4 * 6 + i / 4) as f32)).collect::<Vec<f32>>();
    // The value, the number of launches, and the expected result; the input is `f32 [4, 6]`, row-major from 0 on.
    let product = |of: fn(usize, usize) -> f32| {
        let sum = |i: usize| (0..24 / 4).map(|k| of(i / 4, k) * of(i % 4, k)).sum();
        (0..16).map(sum).collect::<Vec<f32>>()
    };
    let cases: [(&str, Build, usize, Vec<f32>); 9] = [
        (
            "a product with a transposed view, which is read in place",
            |g, x| {
                let y = g.transpose(x)?;
                g.matmul(x, y)
            },
            1,
            product(|row, k| (6 * row + k) as f32),
        ),
        (
            "a product with a part of one, which is copied",
            |g, x| {
                let y = g.transpose(x)?;
                let rows = g.slice(y, 0, 1, 5)?;
                let options = MatmulOptions { transpose_a: true, ..MatmulOptions::default() };
                g.batch_matmul(rows, rows, &options)
            },
            2,
            (0..16).map(|i| (1..5).map(|k| ((6 * (i / 4) + k) * (6 * (i % 4) + k)) as f32).sum()).collect(),
        ),
        (
            "a chain over a transposed input",
            |g, x| {
                let x = g.transpose(x)?;
                let y = g.mul_scalar(x, 2.0)?;
                g.add(y, x)
            },
            1,
            transposed(|v| 3.0 * v),
        ),
        (
            "a view of a computed value",
            |g, x| {
                let y = g.neg(x)?;
                let y = g.transpose(y)?;
                g.abs(y)
            },
            2,
            transposed(|v| v),
        ),
        (
            "rows of a computed value",
            |g, x| {
                let y = g.neg(x)?;
                let (a, b) = (g.slice(y, 0, 1, 2)?, g.slice(y, 0, 3, 4)?);
                g.sub(a, b)
            },
            2,
            vec![12.0; 6],
        ),
        (
            "an operation that takes row-major inputs",
            |g, x| {
                let x = g.transpose(x)?;
                g.reduce_sum(x)
            },
            2,
            vec![36.0, 40.0, 44.0, 48.0, 52.0, 56.0],
        ),
        (
            "one copy for two such operations",
            |g, x| {
                let x = g.transpose(x)?;
                let (a, b) = (g.reduce_sum(x)?, g.reduce_max(x)?);
                g.sub(a, b)
            },
            4,
            vec![18.0, 21.0, 24.0, 27.0, 30.0, 33.0],
        ),
        (
            "a view as output",
            |g, x| {
                let y = g.neg(x)?;
                g.transpose(y)
            },
            2,
            transposed(|v| -v),
        ),
        (
            "a shape that no strides can say",
            |g, x| {
                let y = g.transpose(x)?;
                let y = g.reshape(y, &[Dim::Fixed(24)])?;
                g.neg(y)
            },
            2,
            transposed(|v| -v),
        ),
    ];
    for executor in tested(gpu) {
        let tensor = Tensor::from_slice(&executor, &[4, 6], &x)?;
        for (name, build, launches, want) in &cases {
            let mut g = Graph::new();
            let x = g.constant(&tensor)?;
            let y = build(&mut g, x)?;
            g.output("y", y)?;
            let mut plan = g.compile(&executor, &[])?;
            plan.run()?;
            assert_eq!(plan.launches(), *launches, "{name}");
            assert_eq!(plan.read::<f32>("y")?, *want, "{name}");
        }
    }
    Ok(())
}

#[test]
fn views_keep_run_time_extents() -> Result<()> {
    views_keep_run_time_extents_on(false)
}

fn views_keep_run_time_extents_on(gpu: bool) -> Result<()> {
    for executor in tested(gpu) {
        let mut g = Graph::new();
        let rows = g.extent("rows", 7);
        let x = g.input("x", DType::F32, &[rows, Dim::Fixed(6)])?;
        let heads = g.reshape(x, &[rows, Dim::Fixed(2), Dim::Fixed(3)])?;
        let turned = g.permute(heads, &[0, 2, 1])?;
        let part = g.slice(turned, 1, 1, 3)?;
        let one = Tensor::from_slice(&executor, &[2, 1], &[1.0f32, 2.0])?;
        let one = g.constant(&one)?;
        let y = g.add(part, one)?;
        g.output("y", y)?;
        let mut plan = g.compile(&executor, &[("rows", 4)])?;
        plan.set_extent("rows", 2)?;
        plan.write("x", &[0.0f32, 1., 2., 3., 4., 5., 10., 11., 12., 13., 14., 15.])?;
        plan.run()?;
        assert_eq!(plan.read::<f32>("y")?, [2., 5., 4., 7., 12., 15., 14., 17.]);
    }
    Ok(())
}

#[test]
fn tensors_have_views() -> Result<()> {
    tensors_have_views_on(false)
}

fn tensors_have_views_on(gpu: bool) -> Result<()> {
    for executor in tested(gpu) {
        let x = Tensor::from_slice(&executor, &[2, 3, 4], &(0..24).collect::<Vec<i32>>())?;
        let part = x.slice(2, 1, 3)?.permute(&[1, 0, 2])?;
        assert!(!part.is_contiguous() && part.shape() == [3, 2, 2] && part.bytes() == 48);
        assert_eq!(part.to_vec::<i32>()?, [1, 2, 13, 14, 5, 6, 17, 18, 9, 10, 21, 22]);
        assert_eq!(part.slice(0, 1, 2)?.reshape(&[4])?.to_vec::<i32>()?, [5, 6, 17, 18]);
        let column = x.slice(2, 3, 4)?.slice(0, 1, 2)?;
        let repeated = column.reshape(&[3, 1])?.broadcast_to(&[3, 2])?;
        assert_eq!(repeated.to_vec::<i32>()?, [15, 15, 19, 19, 23, 23]);
        let sum = executor.eval([&x.transpose()?, &column], |g, [x, y]| {
            let y = g.reshape(y, &[Dim::Fixed(3)])?;
            g.add(x, y)
        })?;
        assert_eq!(sum.shape(), [2, 4, 3]);
        assert_eq!(&sum.to_vec::<i32>()?[12..15], [27, 35, 43]);
        assert!(x.slice(0, 1, 1)?.to_vec::<i32>()?.is_empty());
        // Any operation reads rows that begin at an unaligned address.
        let row = x.slice(0, 1, 2)?.slice(1, 1, 2)?;
        let max = executor.eval([&row], |g, [x]| g.reduce_max(x))?;
        assert_eq!(max.to_vec::<i32>()?, [19]);
    }
    Ok(())
}

#[test]
fn what_cannot_be_viewed_is_refused() -> Result<()> {
    type Build = fn(&mut Graph, NodeId, NodeId) -> Result<NodeId>;
    let executor = &devices()[0];
    let tensor = Tensor::from_slice(executor, &[2, 3], &[0i32; 6])?;
    // `x` is `f32 [rows, 4]`, `state` is `i32 [2, 3]`.
    let cases: [(Build, &str); 9] = [
        (|g, x, _| g.slice(x, 0, 0, 1), "a run-time extent cannot be sliced"),
        (|g, x, _| g.slice(x, 1, 3, 5), "3..5 is no range of the 4 indices of dimension 1"),
        (|g, x, _| g.slice(x, 2, 0, 0), "there is no dimension 2 of 2"),
        (|g, x, _| g.permute(x, &[1, 0]), "only the first dimension may be a run-time extent"),
        (|g, x, _| g.permute(x, &[0, 0]), "does not name each of 2 dimensions once"),
        (|g, x, _| g.broadcast_to(x, &fixed(&[8, 4])), "a run-time extent does not repeat"),
        (|g, x, _| g.broadcast_to(x, &fixed(&[4])), "has fewer dimensions"),
        (|g, x, s| g.add(x, s), "the shapes do not broadcast"),
        (
            |g, x, _| {
                let y = g.cast(x, DType::I32)?;
                g.exp(y)
            },
            "operation exp: does not exist for i32; it takes f16, bf16, f32, f64 (operands: i32[rows, 4])",
        ),
    ];
    for (build, expected) in cases {
        let mut g = Graph::new();
        let rows = g.extent("rows", 8);
        let x = g.input("x", DType::F32, &[rows, Dim::Fixed(4)])?;
        let state = g.state(&tensor)?;
        let message = build(&mut g, x, state).expect_err(expected).to_string();
        assert!(message.contains(expected), "{message}");
    }
    let message = tensor.broadcast_to(&[2, 4]).expect_err("3 is not 1").to_string();
    assert_eq!(message, "operation broadcast_to: dimension 1 of size 3 does not repeat to 4 (operands: i32[2, 3])");
    let message = tensor.reshape(&[7]).expect_err("6 elements").to_string();
    assert_eq!(message, "operation reshape: [7] has 7 elements, not 6 (operands: i32[2, 3])");
    assert!(Graph::new().state(&tensor.transpose()?).is_err());
    assert!(tensor.transpose()?.zero().is_err());
    Ok(())
}

#[test]
fn whole_numbers_divided_by_zero_are_an_error_of_the_run() -> Result<()> {
    whole_numbers_divided_by_zero_are_an_error_of_the_run_on(false)
}

fn whole_numbers_divided_by_zero_are_an_error_of_the_run_on(gpu: bool) -> Result<()> {
    for executor in tested(gpu) {
        for divisor in [vec![3, 0], vec![0]] {
            let x = Tensor::from_slice(&executor, &[2], &[7, 8])?;
            let y = Tensor::from_slice(&executor, &[divisor.len()], &divisor)?;
            let quotient = executor.eval([&x, &y], |g, [x, y]| g.div(x, y));
            let message = quotient.and_then(|q| q.to_vec::<i32>()).expect_err("a division by zero").to_string();
            assert!(message.contains("div by zero"), "{message}");
            assert_eq!(x.to_vec::<i32>()?, [7, 8], "the device goes on");
        }
    }
    Ok(())
}
