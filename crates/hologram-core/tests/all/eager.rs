//! Operations on tensors from Rust: results, operators, events, the cache, and errors as a `main` prints them.

use hologram_core::ops::Reduction;
use hologram_core::{BackendType, CoreError, DType, Dim, Graph, Result, Tensor};

use crate::common::{devices, tested};

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn on_a_gpu() -> Result<()> {
    tensors_compute_on(true)?;
    work_is_waited_for_by_events_on(true)?;
    errors_stick_on(true)?;
    Ok(())
}

#[test]
fn tensors_compute() -> Result<()> {
    tensors_compute_on(false)
}

fn tensors_compute_on(gpu: bool) -> Result<()> {
    for executor in tested(gpu) {
        let a = Tensor::from_slice(&executor, &[2, 3], &[1.0f32, -2.0, 3.0, -4.0, 5.0, -6.0])?;
        let b = Tensor::from_slice(&executor, &[3], &[10.0f32, 20.0, 30.0])?;
        assert_eq!((&a + &b)?.to_vec::<f32>()?, [11.0, 18.0, 33.0, 6.0, 25.0, 24.0]);
        assert_eq!((&(&a * 2.0)? - &a)?.to_vec::<f32>()?, a.to_vec::<f32>()?);
        assert_eq!((-&a)?.relu()?.to_vec::<f32>()?, [0.0, 2.0, 0.0, 4.0, 0.0, 6.0]);
        assert_eq!(a.gt(&(&b / 10.0)?)?.to_bools()?, [false, false, false, false, true, false]);
        let least = a.clip(-2.0, 3.0)?;
        assert_eq!(least.to_vec::<f32>()?, [1.0, -2.0, 3.0, -2.0, 3.0, -2.0]);
        let mask = Tensor::from_bools(&executor, &[2, 1], &[true, false])?;
        assert_eq!((!&mask)?.select(&a, &b)?.to_vec::<f32>()?, [10.0, 20.0, 30.0, -4.0, 5.0, -6.0]);
        assert_eq!(a.pow(2.0)?.reduce(Reduction::Sum, 1)?.to_vec::<f32>()?, [14.0, 77.0]);
        assert_eq!(a.reduce_all(Reduction::Max)?.to_vec::<f32>()?, [5.0]);
        assert_eq!(a.matmul(&a.transpose()?)?.to_vec::<f32>()?, [14.0, -32.0, -32.0, 77.0]);
        assert_eq!(a.softmax(1)?.reduce(Reduction::Sum, 1)?.round()?.to_vec::<f32>()?, [1.0, 1.0]);
        let half = a.cast(DType::F16)?;
        assert_eq!((&half + 0.5)?.cast(DType::I8)?.to_vec::<i8>()?, [1, -1, 3, -3, 5, -5]);
        let bits = Tensor::full(&executor, DType::I64, &[2], -3.0)?;
        assert_eq!((&(&bits & 6.0)? << 40.0)?.to_vec::<i64>()?, [4 << 40, 4 << 40]);
        let count = Tensor::arange(&executor, DType::I32, 3.0, 2.0, 4)?;
        assert_eq!(count.pad(&[(1, 1)], -1.0)?.to_vec::<i32>()?, [-1, 3, 5, 7, 9, -1]);
        assert_eq!(count.concat(&[&count.slice(0, 0, 2)?], 0)?.to_vec::<i32>()?, [3, 5, 7, 9, 3, 5]);
        // The counter of a part is that of the whole plus a quarter of the index where the part begins.
        let whole = Tensor::random_uniform(&executor, DType::F32, &[20], 42, 7)?.to_vec::<f32>()?;
        let part = Tensor::random_uniform(&executor, DType::F32, &[8], 42, 10)?.to_vec::<f32>()?;
        assert_eq!(whole[12..], part);
        let normal = Tensor::random_normal(&executor, DType::F32, &[100_000], 1, 0)?;
        let mean = normal.reduce_all(Reduction::Mean)?.to_vec::<f32>()?[0];
        let variance = normal.pow(2.0)?.reduce_all(Reduction::Mean)?.to_vec::<f32>()?[0];
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "mean {mean}, variance {variance}");
        assert!(Tensor::full(&executor, DType::F32, &[0, 3], 1.0)?.exp()?.to_vec::<f32>()?.is_empty());
    }
    Ok(())
}

#[test]
fn an_operation_is_compiled_once_for_its_types_shapes_and_layouts() -> Result<()> {
    let executor = &devices()[0];
    let x = Tensor::from_slice(executor, &[4, 4], &(0..16).map(|i| i as f32).collect::<Vec<_>>())?;
    let compiled = || {
        let metrics = executor.metrics();
        (metrics.pipelines_compiled, metrics.pipeline_hits)
    };
    let first = x.exp()?;
    let before = compiled();
    for _ in 0..3 {
        assert_eq!(x.exp()?.to_vec::<f32>()?, first.to_vec::<f32>()?);
    }
    assert_eq!(compiled(), before);
    // Each of these is a separate program, and none is mistaken for another.
    for (view, want) in [
        (x.transpose()?, [0.0, 4.0, 8.0, 12.0]),
        (x.slice(1, 1, 2)?, [1.0, 5.0, 9.0, 13.0]),
        (x.slice(0, 2, 3)?, [8.0, 9.0, 10.0, 11.0]),
        (x.slice(0, 2, 3)?.slice(1, 1, 3)?.broadcast_to(&[2, 2])?, [9.0, 10.0, 9.0, 10.0]),
    ] {
        assert_eq!(view.abs()?.to_vec::<f32>()?[..4], want);
    }
    let y = x.reshape(&[16])?.slice(0, 3, 7)?;
    assert_eq!((&y + &y.slice(0, 1, 2)?)?.to_vec::<f32>()?, [7.0, 8.0, 9.0, 10.0]);
    Ok(())
}

/// A large one is copied into the order of its shape first, by a kernel of the device.
#[test]
fn transposed_operands_give_what_their_copies_give() -> Result<()> {
    for executor in devices().into_iter().filter(|executor| executor.info().backend == BackendType::Cpu) {
        let (a, b, c) = (4, 37, 89);
        let numbers: Vec<f32> = (0..a * b * c).map(|i| (i % 1009) as f32 - 500.0).collect();
        let x = Tensor::from_slice(&executor, &[a, b, c], &numbers)?;
        let rows = |order: [usize; 3]| -> Result<(Tensor, Vec<f32>)> {
            let sizes = order.map(|d| [a, b, c][d]);
            let at = |i: usize, j: usize, k: usize| {
                let mut place = [0; 3];
                order.iter().zip([i, j, k]).for_each(|(d, index)| place[*d] = index);
                numbers[(place[0] * b + place[1]) * c + place[2]]
            };
            let all =
                (0..sizes[0]).flat_map(|i| (0..sizes[1]).flat_map(move |j| (0..sizes[2]).map(move |k| (i, j, k))));
            Ok((x.permute(&order)?, all.map(|(i, j, k)| at(i, j, k)).collect()))
        };
        for order in [[0, 2, 1], [2, 1, 0], [1, 2, 0], [2, 0, 1], [1, 0, 2]] {
            let (view, want) = rows(order)?;
            let launches = executor.metrics().launches;
            let copied = view.neg()?.wait().map(|()| executor.metrics().launches - launches)?;
            // In [1, 0, 2] the last dimension stays where it was.
            assert_eq!(copied, if order[2] == 2 { 1 } else { 2 }, "{order:?}");
            assert_eq!(view.add(&view)?.to_vec::<f32>()?, want.iter().map(|x| x + x).collect::<Vec<_>>());
            assert_eq!(view.cast(DType::I32)?.to_vec::<i32>()?, want.iter().map(|x| *x as i32).collect::<Vec<_>>());
            let [_, _, n] = order.map(|d| [a, b, c][d]);
            let sums: Vec<f32> = want.chunks(n).map(|row| row.iter().sum()).collect();
            assert_eq!(view.reduce(Reduction::Sum, -1)?.to_vec::<f32>()?, sums);
            // A part of it, which begins behind the memory's start, and one operand in another order.
            let part = view.slice(0, 1, 4)?;
            let added = part.add(&part.contiguous()?)?.to_vec::<f32>()?;
            let len = want.len() / view.shape()[0];
            assert_eq!(added, want[len..4 * len].iter().map(|x| x + x).collect::<Vec<_>>());
        }
    }
    Ok(())
}

#[test]
fn work_is_waited_for_by_events() -> Result<()> {
    work_is_waited_for_by_events_on(false)
}

fn work_is_waited_for_by_events_on(gpu: bool) -> Result<()> {
    for executor in tested(gpu) {
        let x = Tensor::from_slice(&executor, &[2], &[1, 2])?;
        let zero = Tensor::from_slice(&executor, &[1], &[0])?;
        x.wait()?;
        x.add(&x)?.wait()?;
        let quotient = x.div(&zero)?;
        let error = quotient.wait().expect_err("a division by zero");
        assert!(error.to_string().contains("div by zero"), "{error}");
        // As main prints it.
        assert_eq!(format!("{error:?}"), error.to_string());
        executor.synchronize()?;
        assert!(!executor.backend().is_behind(0)?);

        let mut g = Graph::new();
        let n = g.input("n", DType::I32, &[Dim::Fixed(2)])?;
        let twice = g.mul_scalar(n, 2.0)?;
        g.output("twice", twice)?;
        let mut plan = g.compile(&executor, &[])?;
        plan.write("n", &[3, 4])?;
        let event = plan.submit()?;
        event.wait()?;
        assert_eq!(plan.read::<i32>("twice")?, [6, 8]);
    }
    Ok(())
}

#[test]
fn errors_stick_to_what_failed_and_what_follows_from_it() -> Result<()> {
    errors_stick_on(false)
}

fn errors_stick_on(gpu: bool) -> Result<()> {
    for executor in tested(gpu) {
        let x = Tensor::from_slice(&executor, &[2], &[1, 2])?;
        let zero = Tensor::from_slice(&executor, &[1], &[0])?;
        let quotient = x.div(&zero)?;
        let unrelated = x.add(&x)?;
        let derived = quotient.slice(0, 1, 2)?.mul(&x)?.cast(DType::F32)?;
        let first = quotient.to_vec::<i32>().expect_err("a division by zero").to_string();
        assert!(first.contains("div by zero"), "{first}");
        for _ in 0..2 {
            assert_eq!(quotient.to_vec::<i32>().expect_err("failed").to_string(), first);
            assert_eq!(derived.to_vec::<f32>().expect_err("derived").to_string(), first);
            assert_eq!(derived.wait().expect_err("derived").to_string(), first);
            unrelated.wait()?;
            assert_eq!(unrelated.to_vec::<i32>()?, [2, 4]);
        }
        executor.synchronize()?;
        quotient.zero()?;
        assert_eq!(quotient.to_vec::<i32>()?, [0, 0]);

        // A plan's outputs fail with one run, not for ever; the run's inputs are unchanged.
        let mut g = Graph::new();
        let (n, d) = (g.constant(&x)?, g.input("d", DType::I32, &[Dim::Fixed(2)])?);
        let n = g.div(n, d)?;
        g.output("n", n)?;
        let mut plan = g.compile(&executor, &[])?;
        let unread = plan.read::<i32>("n").expect_err("nothing was run").to_string();
        assert_eq!(unread, "plan: output n is read before the first run");
        for divisor in [0, 2, 0, 1] {
            plan.write("d", &[1, divisor])?;
            let event = plan.submit()?;
            for _ in 0..2 {
                match divisor {
                    0 => assert!(plan.read::<i32>("n").is_err() && event.wait().is_err()),
                    d => assert_eq!(plan.read::<i32>("n")?, [1, 2 / d]),
                }
            }
        }
        assert_eq!(x.to_vec::<i32>()?, [1, 2]);
        executor.synchronize()?;
    }
    Ok(())
}

#[test]
fn wrong_operands_are_named() -> Result<()> {
    let [cpu, reference] = devices();
    let x = Tensor::from_slice(&cpu, &[2], &[1.0f32, 2.0])?;
    let y = Tensor::from_slice(&reference, &[2], &[1.0f32, 2.0])?;
    let wide = Tensor::from_slice(&cpu, &[2], &[1.0f64, 2.0])?;
    for (result, message) in [
        (&x + &y, "operation add: the operands belong to different executors"),
        (&x + &wide, "operation add: the operands must have one type; cast makes it so (operands: f32[2], f64[2])"),
        (
            x.cast(DType::I32)?.exp(),
            "operation exp: does not exist for i32; it takes f16, bf16, f32, f64 (operands: i32[2])",
        ),
        (&x & &x, "operation and: does not exist for f32"),
        (&x.cast(DType::I32)? + 0.5, "0.5 is no value of i32"),
    ] {
        let error = result.expect_err(message);
        assert!(error.to_string().contains(message), "{error}");
        assert_eq!(matches!(error, CoreError::Type { .. }), message.contains("does not exist for"), "{error}");
    }
    Ok(())
}
