//! The semantics of the Python array API standard (2024.12) that tensors have, on the CPU and, where there is one, on
//! an NVIDIA GPU.

use hologram_core::ops::Reduction;
use hologram_core::{DType, Executor, Result, Tensor};

macro_rules! on_devices {
    ($($name:ident)*) => {
        mod cpu {
            $(#[test]
            fn $name() -> super::Result<()> {
                super::$name(&super::Executor::open("cpu", Some(2))?)
            })*
        }

        mod cuda {
            $(#[test]
            #[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
            fn $name() -> super::Result<()> {
                super::$name(&super::Executor::open("cuda", None)?)
            })*
        }
    };
}
on_devices! {
    nan_propagates
    slices_have_steps
    indices_may_be_negative_and_of_any_type
    elements_are_moved
    truth_is_reduced
    narrow_sums_are_wide
    what_is_not_zero_is_found
    places_in_a_sorted_line_are_found
    distinct_elements_are_found
    products_are_cumulative
    empty_tensors_and_scalars_work_everywhere
}

fn line(e: &Executor, n: i32) -> Result<Tensor> {
    Tensor::from_slice(e, &[n as usize], &(0..n).collect::<Vec<_>>())
}

fn nan_propagates(e: &Executor) -> Result<()> {
    let nan = f32::NAN;
    for n in [2usize, 40, 3000, 70_000] {
        let mut values = vec![1.0f32; n];
        values[n / 2] = nan;
        let x = Tensor::from_slice(e, &[n], &values)?;
        let zero = x.zeros_like()?;
        for (name, y) in [
            ("maximum", x.maximum(&zero)?),
            ("minimum", zero.minimum(&x)?),
            ("clip", x.clip(0.0, 5.0)?),
            ("relu", x.relu()?),
        ] {
            let y = y.to_vec::<f32>()?;
            assert!(y.iter().enumerate().all(|(i, y)| y.is_nan() == (i == n / 2)), "{name} of {n}");
        }
        for reduction in [Reduction::Max, Reduction::Min] {
            assert!(x.reduce_over(reduction, .., false)?.to_scalar::<f32>()?.is_nan(), "{reduction:?} of {n}");
            let rows = Tensor::stack(&[&x, &zero], 0)?;
            let both = rows.reduce_over(reduction, 1, true)?.to_vec::<f32>()?;
            assert!(both[0].is_nan() && both[1] == 0.0, "{reduction:?} of rows of {n}");
            let columns = rows.reduce_over(reduction, 0, false)?.to_vec::<f32>()?;
            assert!(columns[n / 2].is_nan() && columns[0] == if reduction == Reduction::Max { 1.0 } else { 0.0 });
        }
    }
    Ok(())
}

fn slices_have_steps(e: &Executor) -> Result<()> {
    let x = line(e, 7)?;
    // Start, stop, step, and what Python gives.
    type Case = (Option<i64>, Option<i64>, i64, &'static [i32]);
    let cases: [Case; 12] = [
        (None, None, 1, &[0, 1, 2, 3, 4, 5, 6]),
        (None, None, -1, &[6, 5, 4, 3, 2, 1, 0]),
        (Some(1), Some(6), 2, &[1, 3, 5]),
        (Some(1), Some(6), 3, &[1, 4]),
        (Some(-3), None, 1, &[4, 5, 6]),
        (Some(-2), Some(1), -2, &[5, 3]),
        (Some(100), Some(-100), -3, &[6, 3, 0]),
        (Some(-100), Some(100), 4, &[0, 4]),
        (Some(3), Some(3), 1, &[]),
        (Some(4), Some(2), 1, &[]),
        (Some(2), Some(4), -1, &[]),
        (Some(6), Some(i64::MIN), i64::MIN, &[6]),
    ];
    for (start, stop, step, want) in cases {
        let part = x.slice_step(0, start, stop, step)?;
        assert_eq!(
            (part.shape(), part.to_vec::<i32>()?.as_slice()),
            (&[want.len()][..], want),
            "{start:?}:{stop:?}:{step}"
        );
    }
    let matrix = line(e, 24)?.reshape(&[4, 6])?;
    let part = matrix.slice_step(1, Some(1), None, 2)?.slice_step(0, None, None, -2)?;
    assert_eq!(part.to_vec::<i32>()?, [19, 21, 23, 7, 9, 11]);
    assert_eq!((part.t()? + 1.0)?.to_vec::<i32>()?, [20, 8, 22, 10, 24, 12]);
    assert!(x.slice_step(0, None, None, 0).is_err());
    assert!(line(e, 0)?.slice_step(0, None, None, -1)?.to_vec::<i32>()?.is_empty());
    Ok(())
}

fn indices_may_be_negative_and_of_any_type(e: &Executor) -> Result<()> {
    let x = line(e, 12)?.reshape(&[3, 4])?;
    let indices = Tensor::from_slice(e, &[2, 2], &[-1i64, 0, 2, -4])?;
    assert_eq!(x.take(&indices, 1)?.shape(), [3, 2, 2]);
    assert_eq!(x.take(&indices, 1)?.to_vec::<i32>()?, [3, 0, 2, 0, 7, 4, 6, 4, 11, 8, 10, 8]);
    let few = Tensor::from_slice(e, &[2], &[-1i8, 1])?;
    assert_eq!(x.take(&few, 0)?.to_vec::<i32>()?, [8, 9, 10, 11, 4, 5, 6, 7]);
    for ty in [DType::U32, DType::Plain(hologram_isa::Type::U8), DType::Plain(hologram_isa::Type::U64)] {
        let of_type = Tensor::from_slice(e, &[2], &[2i32, 1])?.cast(ty)?;
        assert_eq!(x.take(&of_type, 0)?.to_vec::<i32>()?, [8, 9, 10, 11, 4, 5, 6, 7]);
    }
    let along = Tensor::from_slice(e, &[1, 3], &[0i64, -1, 1])?;
    assert_eq!(x.take_along_axis(&along, 1)?.to_vec::<i32>()?, [0, 3, 1, 4, 7, 5, 8, 11, 9]);
    for bad in [3i64, -4, 1 << 32, i64::MIN] {
        let bad = Tensor::from_slice(e, &[1], &[bad])?;
        let error = x.take(&bad, 0).and_then(|y| y.to_vec::<i32>()).unwrap_err().to_string();
        assert!(error.contains("take"), "{error}");
    }
    assert!(x.take(&Tensor::from_slice(e, &[1], &[0.0f32])?, 0).is_err());
    Ok(())
}

fn elements_are_moved(e: &Executor) -> Result<()> {
    let x = line(e, 6)?.reshape(&[2, 3])?;
    assert_eq!(x.flip(..)?.to_vec::<i32>()?, [5, 4, 3, 2, 1, 0]);
    assert_eq!(x.flip(0)?.to_vec::<i32>()?, [3, 4, 5, 0, 1, 2]);
    assert_eq!(x.roll(1, 1)?.to_vec::<i32>()?, [2, 0, 1, 5, 3, 4]);
    assert_eq!(x.roll(-5, -1)?.to_vec::<i32>()?, [2, 0, 1, 5, 3, 4]);
    assert_eq!(x.roll(i64::MIN, 0)?.to_vec::<i32>()?, [0, 1, 2, 3, 4, 5]);
    assert!(x.slice(0, 0, 0)?.roll(3, 0)?.to_vec::<i32>()?.is_empty());
    Ok(())
}

fn truth_is_reduced(e: &Executor) -> Result<()> {
    let x = Tensor::from_slice(e, &[2, 3], &[0.0f32, -0.0, 0.0, f32::NAN, 2.0, 0.0])?;
    assert_eq!(x.any(1, false)?.to_bools()?, [false, true]);
    assert_eq!(x.all(0, false)?.to_bools()?, [false, false, false]);
    assert_eq!(x.all((0, 1), true)?.shape(), [1, 1]);
    assert_eq!(x.count_nonzero(.., false)?.to_vec::<i64>()?, [2]);
    let none = x.slice(1, 0, 0)?;
    assert_eq!(none.any(1, false)?.to_bools()?, [false, false]);
    assert_eq!(none.all(1, false)?.to_bools()?, [true, true]);
    let truth = Tensor::from_bools(e, &[2, 2], &[true, true, false, true])?;
    assert_eq!(truth.all(1, true)?.to_bools()?, [true, false]);
    assert_eq!(truth.any(.., false)?.to_bools()?, [true]);
    Ok(())
}

fn narrow_sums_are_wide(e: &Executor) -> Result<()> {
    let x = Tensor::from_slice(e, &[2, 3], &[100i8, 100, 100, -100, -100, -100])?;
    assert_eq!(x.sum(1)?.to_vec::<i64>()?, [300, -300]);
    assert_eq!(x.prod_keepdim(1)?.to_vec::<i64>()?, [1_000_000, -1_000_000]);
    assert_eq!(Tensor::from_slice(e, &[2], &[65535u16; 2])?.sum_all()?.to_vec::<u64>()?, [131_070]);
    assert_eq!(Tensor::from_bools(e, &[3], &[true, false, true])?.sum(0)?.to_vec::<i64>()?, [2]);
    Ok(())
}

fn what_is_not_zero_is_found(e: &Executor) -> Result<()> {
    let x = Tensor::from_slice(e, &[2, 3], &[0, 5, 0, 7, 0, 9])?;
    let [rows, columns] = &x.nonzero()?[..] else { panic!("two dimensions") };
    assert_eq!((rows.to_vec::<i64>()?, columns.to_vec::<i64>()?), (vec![0, 1, 1], vec![1, 0, 2]));
    assert_eq!(x.masked(&x.gt(5)?)?.to_vec::<i32>()?, [7, 9]);
    let rows = Tensor::from_bools(e, &[2], &[false, true])?;
    assert_eq!(x.masked(&rows)?.to_vec::<i32>()?, [7, 0, 9]);
    assert_eq!(x.masked(&x.lt(0)?)?.shape(), [0]);
    let n = 5000;
    let many = line(e, n)?;
    let odd = many.remainder(3)?.eq(1)?;
    let want: Vec<i32> = (0..n).filter(|i| i % 3 == 1).collect();
    assert_eq!(many.masked(&odd)?.to_vec::<i32>()?, want);
    assert!(many.slice(0, 0, 0)?.nonzero()?[0].to_vec::<i64>()?.is_empty());
    assert!(many.masked(&rows).is_err() && Tensor::full(e, DType::F32, &[], 1.0)?.nonzero().is_err());
    Ok(())
}

fn places_in_a_sorted_line_are_found(e: &Executor) -> Result<()> {
    let nan = f32::NAN;
    let sorted = Tensor::from_slice(e, &[6], &[-1.0f32, 0.0, 0.0, 2.0, f32::INFINITY, nan])?;
    let values = Tensor::from_slice(e, &[2, 4], &[-5.0f32, -1.0, 0.0, 1.0, 2.0, f32::INFINITY, nan, -0.0])?;
    assert_eq!(sorted.search_sorted(&values, false)?.to_vec::<u32>()?, [0, 0, 1, 3, 3, 4, 5, 1]);
    assert_eq!(sorted.search_sorted(&values, true)?.to_vec::<u32>()?, [0, 1, 3, 3, 4, 5, 6, 3]);
    let many = line(e, 3000)?;
    let probes = Tensor::from_slice(e, &[4], &[-1, 0, 2999, 3000])?;
    assert_eq!(many.search_sorted(&probes, false)?.to_vec::<u32>()?, [0, 0, 2999, 3000]);
    assert_eq!(many.slice(0, 0, 0)?.search_sorted(&probes, true)?.to_vec::<u32>()?, [0; 4]);
    Ok(())
}

fn distinct_elements_are_found(e: &Executor) -> Result<()> {
    let x = Tensor::from_slice(e, &[2, 4], &[3, 1, 3, 2, 1, 1, 9, 3])?;
    let unique = x.unique()?;
    assert_eq!(unique.values.to_vec::<i32>()?, [1, 2, 3, 9]);
    assert_eq!(unique.indices.to_vec::<i64>()?, [1, 3, 0, 6]);
    assert_eq!(unique.counts.to_vec::<i64>()?, [3, 1, 3, 1]);
    assert_eq!((unique.inverse.shape(), unique.inverse.to_vec::<i64>()?), (&[2, 4][..], vec![2, 0, 2, 1, 0, 0, 3, 2]));
    let odd = Tensor::from_slice(e, &[5], &[f32::NAN, 0.0, -0.0, f32::NAN, 1.0])?.unique()?;
    assert_eq!(odd.counts.to_vec::<i64>()?, [2, 1, 1, 1]);
    assert_eq!(Tensor::from_bools(e, &[3], &[true, false, true])?.unique()?.values.to_bools()?, [false, true]);
    assert_eq!(Tensor::full(e, DType::F32, &[], 4.0)?.unique()?.inverse.shape(), [0usize; 0]);
    assert_eq!(x.slice(0, 0, 0)?.unique()?.values.shape(), [0]);
    Ok(())
}

fn products_are_cumulative(e: &Executor) -> Result<()> {
    let x = Tensor::from_slice(e, &[2, 5], &[1i64, 2, 3, 4, 5, -1, -1, 2, 0, 7])?;
    assert_eq!(x.cumprod(1)?.to_vec::<i64>()?, [1, 2, 6, 24, 120, -1, 1, 2, 0, 0]);
    assert_eq!(x.cumprod(0)?.to_vec::<i64>()?, [1, 2, 3, 4, 5, -1, -2, 6, 0, 35]);
    assert!(x.slice(1, 0, 0)?.cumprod(1)?.to_vec::<i64>()?.is_empty());
    Ok(())
}

/// Every kind of operation over tensors without dimensions and without elements.
fn empty_tensors_and_scalars_work_everywhere(e: &Executor) -> Result<()> {
    let scalar = Tensor::full(e, DType::F32, &[], 2.5)?;
    let near = |x: Result<Tensor>, want: f32| -> Result<()> {
        let x = x?;
        assert_eq!((x.shape(), x.cast(DType::F32)?.to_vec::<f32>()?), (&[][..], vec![want]));
        Ok(())
    };
    near(&scalar + &scalar, 5.0)?;
    near(scalar.sum(..), 2.5)?;
    near(scalar.mean(..), 2.5)?;
    near(scalar.max_all(), 2.5)?;
    near(scalar.prod_keepdim(..), 2.5)?;
    near(scalar.any(.., false), 1.0)?;
    near(scalar.all(.., true), 1.0)?;
    near(scalar.reshape(&[1])?.squeeze(0), 2.5)?;
    near(scalar.cast(hologram_isa::Type::I64), 2.0)?;
    near(scalar.broadcast_to(&[]), 2.5)?;
    near(scalar.permute(&[]), 2.5)?;
    near(scalar.flip(..), 2.5)?;
    near(scalar.copy(), 2.5)?;
    near(scalar.to(&Executor::open("cpu", Some(1))?), 2.5)?;
    for shape in [&[0usize][..], &[0, 3], &[3, 0], &[2, 0, 4]] {
        let none = Tensor::zeros(e, DType::F32, shape)?;
        let rank = shape.len();
        let results = [
            ("add", &none + 1.0),
            ("broadcast", &none + &Tensor::ones(e, DType::F32, &[1])?),
            ("copy", none.copy()),
            ("cast", none.cast(hologram_isa::Type::I8)),
            ("flip", none.flip(..)),
            ("roll", none.roll(2, -1)),
            ("cumsum", none.cumsum(-1)),
            ("cumprod", none.cumprod(0)),
            ("sort", none.sort(-1, false)),
            ("softmax", none.softmax(-1)),
            ("cat", Tensor::cat(&[&none, &none], (rank - 1) as i64).and_then(|x| x.reshape(shape))),
            ("to", none.to(&Executor::open("cpu", Some(1))?)),
        ];
        for (name, result) in results {
            let result = result.unwrap_or_else(|error| panic!("{name} of {shape:?}: {error}"));
            assert_eq!(result.shape(), shape, "{name}");
            assert_eq!(result.cast(DType::F32)?.to_vec::<f32>()?, Vec::<f32>::new(), "{name} of {shape:?}");
        }
        assert_eq!(none.sum(..)?.to_vec::<f32>()?, [0.0], "{shape:?}");
        assert_eq!(none.prod_all()?.to_vec::<f32>()?, [1.0], "{shape:?}");
        assert!(none.mean(..)?.to_scalar::<f32>()?.is_nan() && none.max_all().is_err(), "{shape:?}");
        assert_eq!(none.nonzero()?.len(), rank);
        assert_eq!(none.arg_sort(-1, true)?.shape(), shape);
    }
    let (left, right) = (Tensor::zeros(e, DType::F32, &[2, 0])?, Tensor::zeros(e, DType::F32, &[0, 3])?);
    assert_eq!(left.matmul(&right)?.to_vec::<f32>()?, [0.0; 6]);
    Ok(())
}
