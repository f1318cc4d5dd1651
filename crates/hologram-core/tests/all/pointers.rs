//! Tensors over another library's memory, and the memory of tensors for another library.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hologram_core::{DType, Executor, ForeignPointer, Function, Result, Tensor};

/// An owner that counts how often it is dropped.
struct Counted(#[expect(dead_code, reason = "held")] Arc<Vec<f32>>, Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

fn pointer(memory: &Arc<Vec<f32>>, first: usize, drops: &Arc<AtomicUsize>) -> ForeignPointer {
    let owner = Arc::new(Counted(memory.clone(), drops.clone()));
    let rest = &memory[first..];
    // SAFETY: the owner keeps the vector, which nobody writes.
    unsafe { ForeignPointer::new(owner, rest.as_ptr().expose_provenance() as u64, size_of_val(rest), false) }
}

#[test]
fn foreign_memory_is_used_in_place() -> Result<()> {
    let executor = Executor::open("cpu", Some(2))?;
    let drops = Arc::new(AtomicUsize::new(0));
    let memory = Arc::new((0..200).map(|i| i as f32).collect::<Vec<_>>());
    let values = |x: &Tensor| x.to_vec::<f32>();
    for first in [0, 1, 5, 16, 33] {
        let x = Tensor::from_pointer(&executor, pointer(&memory, first, &drops), DType::F32, &[4, 5], None)?;
        let want: Vec<f32> = (first..first + 20).map(|i| i as f32).collect();
        assert_eq!(x.address(), Some(memory[first..].as_ptr().addr() as u64), "the same memory");
        assert_eq!(values(&x)?, want);
        // Elementwise operations read it where it is, others may copy it.
        assert_eq!(values(&(&x + 1.0)?)?, want.iter().map(|v| v + 1.0).collect::<Vec<_>>());
        assert_eq!(values(&x.sum(1)?)?, want.chunks(5).map(|row| row.iter().sum()).collect::<Vec<f32>>());
        assert_eq!(x.matmul(&x.t()?)?.shape(), [4, 4]);
        let row = x.slice(0, 2, 3)?;
        assert_eq!(values(&row)?, want[10..15]);
        assert_eq!(row.address(), Some(memory[first + 10..].as_ptr().addr() as u64));
        // SAFETY: nobody writes the vector.
        assert_eq!(unsafe { x.host_slice::<f32>() }?, want);
        let count = drops.load(Ordering::Relaxed);
        drop(x);
        assert_eq!(drops.load(Ordering::Relaxed), count, "a view keeps the owner");
        drop(row);
        assert_eq!(drops.load(Ordering::Relaxed), count + 1);
    }
    let turned = Tensor::from_pointer(&executor, pointer(&memory, 3, &drops), DType::F32, &[3, 2], Some(&[1, 3]))?;
    assert_eq!((values(&turned)?, turned.strides()), (vec![3.0, 6.0, 4.0, 7.0, 5.0, 8.0], vec![1, 3]));
    // SAFETY: the elements are not row-major, so there is no slice.
    assert!(unsafe { turned.host_slice::<f32>() }.is_err());
    let scalar = Tensor::from_pointer(&executor, pointer(&memory, 7, &drops), DType::F32, &[], None)?;
    assert_eq!((&scalar * &scalar)?.to_scalar::<f32>()?, 49.0);
    let none = Tensor::from_pointer(&executor, pointer(&memory, 7, &drops), DType::F32, &[3, 0], None)?;
    assert!(values(&(&none + 1.0)?)?.is_empty());
    Ok(())
}

#[test]
fn what_does_not_fit_is_an_error() -> Result<()> {
    let executor = Executor::open("cpu", Some(1))?;
    let drops = Arc::new(AtomicUsize::new(0));
    let memory = Arc::new(vec![0.0f32; 10]);
    type Case = (DType, &'static [usize], Option<&'static [usize]>, &'static str);
    let cases: [Case; 5] = [
        (DType::F32, &[11], None, "does not fit"),
        (DType::F32, &[2, 3], Some(&[5]), "are no strides"),
        (DType::F32, &[3, 3], Some(&[4, 1]), "does not fit"),
        (DType::F32, &[2], Some(&[usize::MAX]), "does not fit"),
        (DType::Q4_0, &[32], None, "no type of plain elements"),
    ];
    for (dtype, shape, strides, want) in cases {
        let error = Tensor::from_pointer(&executor, pointer(&memory, 0, &drops), dtype, shape, strides).unwrap_err();
        assert!(error.to_string().contains(want), "{error}");
    }
    assert_eq!(drops.load(Ordering::Relaxed), cases.len(), "each owner is released once");
    let at = memory.as_ptr().expose_provenance() as u64 + 2;
    // SAFETY: the vector has these bytes and is not written.
    let odd = unsafe { ForeignPointer::new(memory.clone(), at, 8, false) };
    let error = Tensor::from_pointer(&executor, odd, DType::F32, &[1], None).unwrap_err();
    assert!(error.to_string().contains("not aligned"), "{error}");
    // Bytes before the memory are nobody's.
    let x = Tensor::from_pointer(&executor, pointer(&memory, 1, &drops), DType::F32, &[4], None)?;
    if x.offset() > 0 {
        let before = executor.backend().copy_from_buffer(x.buffer(), 0, &mut [0; 4]).unwrap_err();
        assert!(before.to_string().contains("before the foreign memory"), "{before}");
        assert!(executor.backend().copy_to_buffer(x.buffer(), x.offset(), &[0; 4]).is_err(), "it is read-only");
    }
    Ok(())
}

#[test]
fn writable_memory_is_written_in_place() -> Result<()> {
    let executor = Executor::open("cpu", Some(1))?;
    let mut memory = Box::new([0.0f32; 8]);
    let at = memory.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the array outlives the tensor and is not used until then.
    let pointer = unsafe { ForeignPointer::new(Arc::new(()), at, 32, true) };
    let x = Tensor::from_pointer(&executor, pointer, DType::F32, &[8], None)?;
    executor.backend().copy_to_buffer(x.buffer(), x.offset() + 4, &2.5f32.to_le_bytes())?;
    drop(x);
    assert_eq!(memory[..3], [0.0, 2.5, 0.0]);
    Ok(())
}

#[test]
fn functions_have_results_of_their_own() -> Result<()> {
    let executor = Executor::open("cpu", Some(2))?;
    let scale = Tensor::from_slice(&executor, &[3], &[1.0f32, 10.0, 100.0])?;
    let function = Function::new(&executor, move |g, v| {
        let scale = g.constant(&scale)?;
        let y = g.mul(v[0], scale)?;
        let sum = g.reduce_sum(y)?;
        let first = g.slice(v[0], 0, 0, 1)?;
        let part = g.slice(y, 0, 1, 3)?;
        Ok(vec![y, sum, v[0], first, y, part])
    });
    let call = |numbers: &[f32; 3]| -> Result<Vec<Tensor>> {
        function.call(&[&Tensor::from_slice(&executor, &[3], numbers)?])
    };
    let one = call(&[1.0, 2.0, 3.0])?;
    let two = call(&[4.0, 5.0, 6.0])?;
    let values = |results: &[Tensor]| results.iter().map(|x| x.to_vec::<f32>()).collect::<Result<Vec<_>>>();
    let want = |a: f32, b: f32, c: f32| {
        let y = vec![a, 10.0 * b, 100.0 * c];
        vec![y.clone(), vec![y.iter().sum()], vec![a, b, c], vec![a], y.clone(), y[1..].to_vec()]
    };
    assert_eq!(values(&one)?, want(1.0, 2.0, 3.0));
    assert_eq!(values(&two)?, want(4.0, 5.0, 6.0));
    assert_eq!(function.compiled(), 1);
    // Another layout is another signature, another type an error of the graph.
    let column =
        Tensor::from_slice(&executor, &[3, 2], &[1.0f32, 0.0, 2.0, 0.0, 3.0, 0.0])?.slice(1, 0, 1)?.squeeze(1)?;
    assert_eq!(values(&function.call(&[&column])?)?, want(1.0, 2.0, 3.0));
    assert_eq!(function.compiled(), 2);
    assert!(function.call(&[&Tensor::from_slice(&executor, &[3], &[1i32; 3])?]).is_err());
    assert!(function.call(&[&Tensor::from_slice(&Executor::open("cpu", Some(1))?, &[3], &[1.0f32; 3])?]).is_err());
    let inputs = Function::new(&executor, |g, _| Ok(vec![g.input("x", DType::F32, &[])?]));
    assert!(inputs.call(&[]).unwrap_err().to_string().contains("inputs"));

    // A chain is one launch, from several threads too.
    let chain = Function::new(&executor, |g, v| {
        let mut y = v[0];
        for _ in 0..8 {
            y = g.add(y, v[0])?;
        }
        Ok(vec![y])
    });
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|k| {
                let (executor, chain) = (&executor, &chain);
                scope.spawn(move || -> Result<()> {
                    for i in 0..200 {
                        let x = Tensor::from_slice(executor, &[16], &[(k * 1000 + i) as f32; 16])?;
                        assert_eq!(chain.call(&[&x])?[0].to_vec::<f32>()?, [9.0 * (k * 1000 + i) as f32; 16]);
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|t| t.join().expect("no panic"))
    })?;
    let x = Tensor::zeros(&executor, DType::F32, &[16])?;
    assert_eq!((chain.compiled(), chain.launches(&[&x])), (1, 1));
    Ok(())
}

#[test]
fn results_are_written_where_the_caller_wants_them() -> Result<()> {
    let executor = Executor::open("cpu", Some(1))?;
    // A value, a part of it, the value again, and an argument: each must end in its own memory.
    let function = Function::new(&executor, |g, v| {
        let y = g.add(v[0], v[0])?;
        let part = g.slice(y, 0, 16, 20)?;
        Ok(vec![y, part, y, v[0]])
    });
    let x = Tensor::from_slice(&executor, &[20], &(0..20).map(|i| i as f32).collect::<Vec<_>>())?;
    let sizes = [20usize, 4, 20, 20];
    let places = sizes.map(|n| Tensor::zeros(&executor, DType::F32, &[n]));
    let places = places.into_iter().collect::<Result<Vec<_>>>()?;
    let results: Vec<&Tensor> = places.iter().collect();
    for _ in 0..2 {
        function.call_into(&[&x], &results)?.wait()?;
    }
    let doubled: Vec<f32> = (0..20).map(|i| 2.0 * i as f32).collect();
    assert_eq!(places[0].to_vec::<f32>()?, doubled);
    assert_eq!(places[1].to_vec::<f32>()?, doubled[16..]);
    assert_eq!(places[2].to_vec::<f32>()?, doubled);
    assert_eq!(places[3].to_vec::<f32>()?[19], 19.0);
    let error = function.call_into(&[&x], &results[..3]).unwrap_err();
    assert!(error.to_string().contains("4 results"), "{error}");
    let error = function.call_into(&[&x], &[&places[1], &places[1], &places[2], &places[3]]).unwrap_err();
    assert!(error.to_string().contains("its memory must be"), "{error}");
    Ok(())
}
