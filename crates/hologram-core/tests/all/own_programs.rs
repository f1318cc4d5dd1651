//! Atlas programs of one's own on tensors: arguments of every kind, and arguments that do not fit.

use hologram_core::{Argument, DType, Executor, Tensor, f16};

fn cpu() -> Executor {
    Executor::open("cpu", Some(2)).unwrap()
}

/// y[i] = x[i] + v, for a v of the type `ty`, converted.
fn adder(executor: &Executor, ty: &str) -> hologram_core::CompiledProgram {
    let text = format!(
        "kernel add_number(x: buffer<f32>, y: buffer<f32, write>, v: {ty}) workgroup(4) {{
           %i = global.x
           %x = load.f32 x[%i]
           %v = cvt.f32 v
           %sum = add.f32 %x, %v
           store.f32 y[%i], %sum
         }}"
    );
    executor.program(&text).unwrap()
}

#[test]
fn numbers_of_every_type() {
    let executor = cpu();
    let x = Tensor::from_slice(&executor, &[4], &[0.0f32, 1.0, 2.0, 3.0]).unwrap();
    let y = executor.upload(&[0.0f32; 4]).unwrap();
    let numbers: [(&str, Argument, f32); 11] = [
        ("i8", (-5i8).into(), -5.0),
        ("i16", (-300i16).into(), -300.0),
        ("i32", (-70_000i32).into(), -70_000.0),
        ("i64", (-(1i64 << 40)).into(), -((1i64 << 40) as f32)),
        ("u8", 200u8.into(), 200.0),
        ("u16", 60_000u16.into(), 60_000.0),
        ("u32", 7u32.into(), 7.0),
        ("u64", (1u64 << 40).into(), (1u64 << 40) as f32),
        ("f16", f16::from_f32(-1.5).into(), -1.5),
        ("f64", 0.25f64.into(), 0.25),
        ("bool", true.into(), 1.0),
    ];
    for (ty, number, value) in numbers {
        adder(&executor, ty).run([1, 1, 1], &[(&x).into(), (&y).into(), number]).unwrap();
        assert_eq!(y.read().unwrap(), [value, value + 1.0, value + 2.0, value + 3.0], "{ty}");
    }
}

#[test]
fn what_does_not_fit() {
    let executor = cpu();
    let kernel = adder(&executor, "f32");
    let x = Tensor::from_slice(&executor, &[2, 4], &[1.0f32; 8]).unwrap();
    let y = executor.upload(&[0.0f32; 4]).unwrap();
    let half = x.cast(DType::F16).unwrap();
    let (turned, other) = (x.transpose().unwrap(), Tensor::full(&cpu(), DType::F32, &[4], 1.0).unwrap());
    let refused = |args: &[Argument], want: &str| {
        let error = kernel.run([1, 1, 1], args).expect_err(want).to_string();
        assert!(error.contains(want) && error.lines().count() == 1, "{error}, not {want}");
    };
    refused(&[(&x).into(), (&y).into()], "program add_number: it has 3 parameters, but 2 arguments are given");
    refused(&[(&x).into(), (&y).into(), 1u32.into()], "parameter v is a number of f32, not a number of u32");
    refused(&[(&x).into(), (&y).into(), (&y).into()], "parameter v is a number of f32, not a buffer of f32");
    refused(&[1.0f32.into(), (&y).into(), 1.0f32.into()], "parameter x is a buffer of f32, not a number of f32");
    refused(
        &[(&half).into(), (&y).into(), 1.0f32.into()],
        "parameter x is a buffer of f32, not Tensor(f16 [2, 4] on cpu)",
    );
    refused(
        &[(&turned).into(), (&y).into(), 1.0f32.into()],
        "is a view, and x takes elements in order: use contiguous()",
    );
    refused(&[(&other).into(), (&y).into(), 1.0f32.into()], "given for x, is of another executor");
    let good: [Argument; 3] = [(&x).into(), (&y).into(), 1.0f32.into()];
    kernel.run([0, 1, 1], &good).unwrap();
    assert_eq!(y.read().unwrap(), [0.0; 4], "no workgroups, no work");
    // An error stays with the kernel's outputs and with nothing else.
    let error = kernel.submit([2, 1, 1], &good).and_then(|e| e.wait()).unwrap_err().to_string();
    assert!(error.contains("add_number") && error.contains("outside"), "{error}");
    assert!(y.read().is_err() && x.to_vec::<f32>().unwrap() == [1.0; 8]);
    kernel.run([1, 1, 1], &good).unwrap();
    assert_eq!(y.read().unwrap(), [2.0; 4]);
    let error = executor.program("kernel a() workgroup(1) {\n  %x = lod.f32 a[0]\n}").unwrap_err().to_string();
    assert!(error.contains("line 2"), "{error}");
}
