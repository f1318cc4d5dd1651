//! Edge cases: NaN among numbers, dimensions of size 0, booleans in plans, tensors of another executor,
//! and names in errors.

use hologram_backends::{Backend, cpu::CpuBackend};
use hologram_core::ops::{LossReduction, Reduction};
use hologram_core::{DType, Dim, Executor, Graph, Result, Tensor};

use crate::common::{devices, tested};

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn on_a_gpu() -> Result<()> {
    orders_agree_on(true)?;
    nothing_is_computed_on(true)?;
    truth_values_on(true)
}

#[test]
fn sorting_and_the_greatest_agree_on_nan_and_ties() -> Result<()> {
    orders_agree_on(false)
}

fn orders_agree_on(gpu: bool) -> Result<()> {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for executor in tested(gpu) {
        // The first NaN is the greatest and the least; sorting takes NaN for the greatest.
        for (values, greatest, least, first_of_sorted) in [
            (vec![1.0, nan, 3.0, -inf, nan, inf], 1, 1, 3),
            (vec![nan, nan, nan], 0, 0, 0),
            (vec![nan, 2.0, -nan], 0, 0, 1),
            (vec![-0.0, 0.0, -1.0, 0.0, -1.0], 0, 2, 2),
        ] {
            let x = Tensor::from_slice(&executor, &[values.len()], &values)?;
            for x in [x.clone(), x.cast(DType::F16)?, x.cast(DType::F64)?] {
                let first =
                    |descending| Ok::<_, hologram_core::CoreError>(x.arg_sort(0, descending)?.to_vec::<u32>()?[0]);
                let found = [x.arg_max(0)?.to_vec::<u32>()?[0], first(true)?, x.top_k(1)?.1.to_vec::<u32>()?[0]];
                assert_eq!(found, [greatest; 3], "greatest of {values:?}");
                let found = [x.arg_min(0)?.to_vec::<u32>()?[0], first(false)?];
                assert_eq!(found, [least, first_of_sorted], "least of {values:?}");
            }
        }
        // Any k of a row of any numbers, by the operation or by sorting.
        let values: Vec<f32> = (0..2 * 700u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 25) as f32 - 60.0).collect();
        let x = Tensor::from_slice(&executor, &[2, 700], &values)?;
        for ty in [DType::F32, DType::BF16, DType::F64, DType::I32, DType::I8] {
            let x = x.cast(ty)?;
            let order = x.arg_sort(1, true)?.to_vec::<u32>()?;
            for k in [1, 5, 256, 257, 700] {
                let (top, indices) = x.top_k(k)?;
                let want: Vec<u32> = order.chunks(700).flat_map(|row| &row[..k]).copied().collect();
                assert_eq!(indices.to_vec::<u32>()?, want, "{k} of {ty}");
                let elements = want.iter().enumerate().map(|(i, at)| values[i / k * 700 + *at as usize]);
                assert!(top.cast(DType::F32)?.to_vec::<f32>()?.into_iter().eq(elements), "{k} of {ty}");
            }
        }
    }
    Ok(())
}

#[test]
fn nothing_is_computed_as_in_numpy() -> Result<()> {
    nothing_is_computed_on(false)
}

fn nothing_is_computed_on(gpu: bool) -> Result<()> {
    for executor in tested(gpu) {
        let zeros = |shape: &[usize]| Tensor::from_slice::<f32>(&executor, shape, &[]);
        let (line, rows, empty) = (zeros(&[0])?, zeros(&[2, 0])?, zeros(&[0, 3])?);
        for (reduction, of_nothing) in [(Reduction::Sum, 0.0), (Reduction::Prod, 1.0), (Reduction::Mean, f32::NAN)] {
            for (result, shape) in [
                (line.reduce(reduction, 0)?, vec![]),
                (rows.reduce(reduction, 1)?, vec![2]),
                (empty.reduce(reduction, 0)?, vec![3]),
                (empty.reduce(reduction, 1)?, vec![0]),
                (empty.reduce_all(reduction)?, vec![]),
                (rows.transpose()?.reduce(reduction, 0)?, vec![2]),
            ] {
                assert_eq!(result.shape(), shape);
                let same = |v: &f32| v.to_bits() == of_nothing.to_bits() || v.is_nan() && of_nothing.is_nan();
                assert!(result.to_vec::<f32>()?.iter().all(same), "{reduction:?} gives {result:?}");
            }
        }
        for (result, text) in [
            (
                rows.reduce(Reduction::Max, 1),
                "operation reduce_max: there is no greatest of no elements: dimension 1 has size 0",
            ),
            (line.reduce_all(Reduction::Min), "there is no least of no elements: dimension 0 has size 0"),
            (rows.arg_max(1), "operation arg_max: dimension 1 has no elements"),
        ] {
            let error = result.expect_err(text).to_string();
            assert!(error.contains(text), "{error}");
        }
        // The other dimension has no elements: there are no lines, so nothing is rejected.
        assert!(rows.reduce(Reduction::Max, 0)?.to_vec::<f32>()?.is_empty());
        for result in
            [rows.softmax(1)?, rows.cumsum(1)?, rows.sort(1, false)?, (&rows + 1.0)?, rows.exp()?, rows.log_softmax(1)?]
        {
            assert_eq!((result.shape(), result.to_vec::<f32>()?), (&[2, 0][..], vec![]));
        }
        // Products over no elements are 0.
        assert_eq!(rows.matmul(&empty)?.to_vec::<f32>()?, [0.0; 6]);
        let x = Tensor::from_slice(&executor, &[3, 2], &[1.0f32; 6])?;
        assert_eq!(empty.matmul(&x)?.shape(), [0, 2]);
        assert!(empty.matmul(&x)?.to_vec::<f32>()?.is_empty() && x.matmul(&rows)?.to_vec::<f32>()?.is_empty());
    }
    Ok(())
}

#[test]
fn truth_values_are_inputs_and_outputs_of_plans() -> Result<()> {
    truth_values_on(false)
}

fn truth_values_on(gpu: bool) -> Result<()> {
    for executor in tested(gpu) {
        let mut g = Graph::new();
        let n = g.extent("n", 8);
        let mask = g.input("mask", DType::BOOL, &[n])?;
        let (x, y) = (g.input("x", DType::F32, &[n])?, g.input("y", DType::F32, &[n])?);
        let (chosen, greater) = (g.select(mask, x, y)?, g.gt(x, y)?);
        let both = g.and(mask, greater)?;
        for (name, value) in [("chosen", chosen), ("greater", greater), ("both", both)] {
            g.output(name, value)?;
        }
        let mut plan = g.compile(&executor, &[])?;
        for (name, result) in
            [("output both", plan.read_bools("both").map(drop)), ("no output named x", plan.read_bools("x").map(drop))]
        {
            assert!(result.expect_err(name).to_string().contains(name));
        }
        plan.set_extent("n", 3)?;
        plan.write_bools("mask", &[true, false, true])?;
        plan.write("x", &[1.0f32, 2.0, 3.0])?;
        plan.write("y", &[0.0f32, 5.0, 7.0])?;
        plan.run()?;
        assert_eq!(plan.read::<f32>("chosen")?, [1.0, 5.0, 3.0]);
        assert_eq!(plan.read_bools("greater")?, [true, false, false]);
        assert_eq!(plan.read_bools("both")?, [true, false, false]);
        for (result, text) in [
            (plan.write("mask", &[1u8]).err(), "input mask has elements of bool, not u8"),
            (plan.write_bools("x", &[true]).err(), "input x has elements of f32, not bool"),
            (plan.write_bools("mask", &[true; 9]).err(), "input mask holds at most 8 elements, not 9"),
            (plan.read::<u8>("both").err(), "output both has elements of bool, not u8"),
            (plan.read_bools("chosen").err(), "output chosen has elements of f32, not bool"),
        ] {
            assert!(result.expect(text).to_string().contains(text), "{text}");
        }
    }
    Ok(())
}

#[test]
fn tensors_of_another_executor_are_refused() -> Result<()> {
    let [here, _] = devices();
    let cpu = std::sync::Arc::new(CpuBackend::new(Some(1))?);
    let there = Executor::from_backend(cpu.clone());
    let (x, y) = (Tensor::from_slice(&here, &[2], &[1.0f32; 2])?, Tensor::from_slice(&there, &[2], &[1.0f32; 2])?);
    let refused = |error: Option<hologram_core::CoreError>| {
        let error = error.expect("another executor's").to_string();
        assert!(
            error.contains("belongs to another executor") || error.contains("belong to different executors"),
            "{error}"
        );
    };
    refused(x.add(&y).err());
    refused(here.eval([&y], |g, [y]| g.exp(y)).err());
    refused(here.eval([&x, &y], |g, [x, y]| g.add(x, y)).err());
    let mut g = Graph::new();
    let node = g.constant(&x)?;
    refused(g.constant(&y).err());
    let sum = g.exp(node)?;
    g.output("sum", sum)?;
    refused(g.compile(&there, &[]).err());
    refused(Tensor::from_buffer(&here, cpu.allocate_buffer(8)?, 0, DType::F32, &[2]).err());
    assert!(Tensor::from_buffer(&there, cpu.allocate_buffer(8)?, 0, DType::F32, &[2]).is_ok());
    // The failed calls changed nothing.
    g.compile(&here, &[])?.run()?;
    assert_eq!(x.add(&x)?.to_vec::<f32>()?, [2.0; 2]);
    Ok(())
}

#[test]
fn refusals_name_the_operation_that_was_called() -> Result<()> {
    let executor = &devices()[0];
    let mut g = Graph::new();
    let text = g.constant(&Tensor::from_bools(executor, &[2, 3], &[true; 6])?)?;
    let x = g.constant(&Tensor::from_slice(executor, &[2, 3], &[1.0f32; 6])?)?;
    let long = g.constant(&Tensor::from_bools(executor, &[5000], &[true; 5000])?)?;
    let other = LossReduction::Mean;
    for (name, result) in [
        ("sort", g.sort(text, 0, true)),
        ("sort", g.sort(x, 2, true)),
        ("arg_sort", g.arg_sort(text, 0, true)),
        ("cumsum", g.cumsum(text, 0)),
        ("cumsum", g.cumsum(long, 0)),
        ("cumsum", g.cumsum(x, 7)),
        ("take", g.take(x, x)),
        ("take_along", g.take_along(x, x, 0)),
        ("scatter", g.scatter(x, text, x, 0)),
        ("scatter_add", g.scatter_add(x, x, x, 5)),
        ("top_k", g.top_k(x, 4).map(|k| k.0)),
        ("top_k", g.top_k(x, 400).map(|k| k.0)),
        ("top_k", g.top_k(x, 0).map(|k| k.0)),
        ("top_k", g.top_k(text, 1).map(|k| k.0)),
        ("mse_loss", g.mse_loss(text, x, other)),
        ("bce_with_logits", g.bce_with_logits(text, x, other)),
        ("cross_entropy", g.cross_entropy(text, x, other)),
        ("arg_max", g.arg_max(text, 0)),
        ("reduce_max", g.reduce_max(text)),
        ("softmax", g.softmax_rows(text)),
        ("transpose", g.transpose(long)),
    ] {
        let error = result.expect_err(name).to_string();
        assert!(error.starts_with(&format!("operation {name}: ")), "{error}");
    }
    let matrix = Tensor::from_slice(executor, &[2, 3], &[1.0f32; 6])?;
    let error = matrix.matmul(&matrix).expect_err("2 × 3 times 2 × 3").to_string();
    assert!(error.starts_with("operation matmul: "), "{error}");
    Ok(())
}

/// Codes of grids are entries of tables that programs lack: a device without a kernel of its own says so.
#[test]
fn grids_have_no_program() {
    let executor = Executor::open("reference", None).unwrap();
    let grid = DType::GRIDS[0];
    let w = Tensor::from_bytes(&executor, grid, &[3, 256], &vec![0; 3 * grid.block_bytes()]).unwrap();
    for x in [DType::F32, DType::BF16] {
        let mut g = Graph::new();
        let (x, w) = (g.input("x", x, &[Dim::Fixed(40), Dim::Fixed(256)]).unwrap(), g.constant(&w).unwrap());
        let y = g.linear(x, w).unwrap();
        g.output("y", y).unwrap();
        let error = g.compile(&executor, &[]).err().unwrap().to_string();
        assert!(error.contains(&format!("no program reads {grid}; convert it to")), "{error}");
    }
}
