//! Programs on the CPU device: random ones against the reference interpreter, bit for bit, on each level of vector instructions; the
//! examples; faults.

use hologram_backends::compare::{random_program, run};
use hologram_backends::cpu::features::Features;
use hologram_backends::cpu::{CpuBackend, CpuOptions};
use hologram_backends::{
    Backend, BackendError, BackendType, Binding, Launch, LaunchConfig, ReferenceBackend, available_backends, open,
};
use hologram_isa::random::Random;
use hologram_isa::{Access, Builder, Opcode, Type, parse, print};

/// The levels that this processor has.
fn devices() -> Vec<(String, CpuBackend)> {
    let detected = Features::detect();
    let mut levels = vec![("plain", Features::PLAIN)];
    if detected.avx2 {
        levels.push(("avx2", Features { avx2: true, ..Features::PLAIN }));
    }
    if detected.avx512 {
        levels.push(("avx512", detected));
    }
    let open = |(i, (name, features)): (usize, (&str, Features))| {
        let threads = Some(1 + i % 2);
        let options = CpuOptions { threads, features: Some(features), ..CpuOptions::default() };
        (format!("{name} on {} threads", 1 + i % 2), CpuBackend::with_options(options).unwrap())
    };
    levels.into_iter().enumerate().map(open).collect()
}

#[test]
fn random_programs_give_the_interpreters_bits() {
    let devices = devices();
    let number = |name, default| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (start, count) = (number("HOLOGRAM_RANDOM_SEED", 0), number("HOLOGRAM_RANDOM_PROGRAMS", 300));
    for seed in start..start + count {
        for (name, device) in &devices {
            let difference = random_program(device, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert!(difference.is_none(), "{name}, {}", difference.unwrap_or_default());
        }
    }
}

#[test]
fn faults_are_the_interpreters() {
    let fault = |name: &str, build: &dyn Fn(&mut Builder)| {
        let mut b = Builder::new(name, [48, 1, 1]);
        build(&mut b);
        b.finish().unwrap()
    };
    let programs = [
        fault("load", &|b| {
            let x = b.buffer("x", Type::F32, Access::ReadWrite);
            let i = b.global_x();
            let v = b.load(x, i);
            b.store(x, 0u32, v);
        }),
        fault("masked", &|b| {
            let x = b.buffer("x", Type::F32, Access::ReadWrite);
            let i = b.global_x();
            let late = b.gt(i, 70u32);
            b.if_(late, |b| {
                let far = b.mul(i, 2u32);
                b.store(x, far, 1.0f32);
            });
        }),
        fault("uniform", &|b| {
            let x = b.buffer("x", Type::F32, Access::Read);
            let y = b.buffer("y", Type::F32, Access::ReadWrite);
            let i = b.global_x();
            let late = b.ge(i, 5u32);
            b.if_(late, |b| {
                let v = b.load(x, 4000u32);
                b.store(y, i, v);
            });
        }),
        fault("divide", &|b| {
            let x = b.buffer("x", Type::U32, Access::ReadWrite);
            let i = b.global_x();
            let d = b.xor(i, 33u32);
            let v = b.div(i, d);
            b.store(x, i, v);
        }),
        fault("remainder", &|b| {
            let x = b.buffer("x", Type::U32, Access::ReadWrite);
            let g = b.builtin(Opcode::GroupX);
            let v = b.rem(7u32, g);
            b.store(x, g, v);
        }),
        fault("step", &|b| {
            let x = b.buffer("x", Type::U32, Access::ReadWrite);
            let i = b.global_x();
            let step = b.xor(i, 9u32);
            b.for_(0u32, 3u32, step, |b, k| b.store(x, i, k));
        }),
        fault("shared", &|b| {
            let x = b.buffer("x", Type::F32, Access::ReadWrite);
            let s = b.shared("tile", Type::F32, 40);
            let t = b.builtin(Opcode::ThreadX);
            b.store(s, t, 1.0f32);
            b.store(x, t, 1.0f32);
        }),
    ];
    let reference = ReferenceBackend::new();
    for program in &programs {
        let buffers = vec![vec![0; 90 * 4]; program.params.len()];
        let expected = run(&reference, program, &buffers, &[], [2, 1, 1]).unwrap_err();
        assert!(matches!(expected, BackendError::Program(_)), "{expected}");
        for (name, device) in devices() {
            let error = run(&device, program, &buffers, &[], [2, 1, 1]).unwrap_err();
            assert_eq!(error.to_string(), expected.to_string(), "{name}\n{}", print(program));
            device.synchronize().unwrap();
        }
    }
}

/// The bytes of floats.
fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[test]
fn examples_agree_with_f64() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/");
    let read = |name| parse(&std::fs::read_to_string(format!("{directory}{name}.atlas")).unwrap()).unwrap();
    let (rows, columns) = (3usize, 777usize);
    let mut random = Random(7);
    let x: Vec<f32> = (0..rows * columns).map(|_| random.below(2000) as f32 / 250.0 - 4.0).collect();
    let y: Vec<f32> = x.iter().map(|v| v * 0.5 + 1.0).collect();
    let n = x.len();
    for (name, device) in devices() {
        let buffers = [floats(&x), floats(&y), vec![0; n * 4]];
        let sum = run(&device, &read("vector_add"), &buffers, &[n as u32], [n.div_ceil(256) as u32, 1, 1]).unwrap();
        let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
        assert!(sum[2] == floats(&expected), "{name}");

        let buffers = [floats(&x), vec![0; n * 4]];
        let got = run(&device, &read("softmax"), &buffers, &[columns as u32], [rows as u32, 1, 1]).unwrap();
        for (got, x) in got[1].chunks_exact(columns * 4).zip(x.chunks_exact(columns)) {
            let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f64 = x.iter().map(|v| f64::from(v - max).exp()).sum();
            for (got, x) in got.chunks_exact(4).zip(x) {
                let got = f64::from(f32::from_le_bytes(got.try_into().unwrap()));
                let expected = f64::from(x - max).exp() / total;
                assert!((got - expected).abs() <= 2e-6 * expected, "{name}: {got} {expected}");
            }
        }
    }
}

#[test]
fn compiled_programs_are_kept_by_their_text() {
    let build = |factor: f32| {
        let mut b = Builder::new("same_name", [32, 1, 1]);
        let x = b.buffer("x", Type::F32, Access::ReadWrite);
        let i = b.global_x();
        let v = b.load(x, i);
        let v = b.mul(v, factor);
        b.store(x, i, v);
        b.finish().unwrap()
    };
    let (_, device) = devices().remove(0);
    let ones = floats(&[1.0; 32]);
    for factor in [2.0, 3.0, 2.0] {
        let got = run(&device, &build(factor), std::slice::from_ref(&ones), &[], [1, 1, 1]).unwrap();
        assert_eq!(got[0], floats(&[factor; 32]));
    }
    let metrics = device.metrics();
    assert_eq!((metrics.pipelines_compiled, metrics.pipeline_hits, metrics.launches), (2, 1, 3));
    let mut broken = build(2.0);
    broken.workgroup = [0, 1, 1];
    assert!(matches!(device.compile(&broken), Err(BackendError::Program(_))));
}

#[test]
fn devices_open_by_name_and_keep_to_their_own() {
    for (name, kind) in [("auto", BackendType::Cpu), ("CPU", BackendType::Cpu), ("reference", BackendType::Reference)] {
        let device = open(name, Some(1)).unwrap();
        assert_eq!(device.info().backend, kind);
        assert!(available_backends().contains(&kind) && device.is_available());
    }
    for name in ["cuda", "metal", "gpu", ""] {
        let error = open(name, None).err().unwrap();
        assert!(matches!(error, BackendError::Unavailable { .. }));
        assert!(error.to_string().contains("use one of: auto, cpu, reference"), "{error}");
    }
    // A buffer, a pipeline or a list of one device is no use to another.
    let (cpu, reference) = (open("cpu", Some(1)).unwrap(), open("reference", None).unwrap());
    let mut b = Builder::new("copy", [1, 1, 1]);
    let x = b.buffer("x", Type::U32, Access::ReadWrite);
    b.store(x, 0u32, 5u32);
    let program = b.finish().unwrap();
    let buffer = cpu.allocate_buffer(4).unwrap();
    let launch = |device: &dyn Backend| Launch {
        pipeline: device.compile(&program).unwrap(),
        bindings: vec![Binding::whole(&buffer)],
        config: LaunchConfig { grid: [1, 1, 1] },
    };
    let text = |error: BackendError| error.to_string();
    assert!(text(reference.record(&[launch(&*reference)]).err().unwrap()).contains("the buffer belongs to cpu"));
    assert!(text(cpu.record(&[launch(&*reference)]).err().unwrap()).contains("made by another device"));
    let list = cpu.record(&[launch(&*cpu)]).unwrap();
    assert!(text(reference.submit(&list).unwrap_err()).contains("recorded by another device"));
    // A launch of no workgroups runs none.
    let nothing = Launch { config: LaunchConfig { grid: [1, 0, 1] }, ..launch(&*cpu) };
    cpu.submit(&cpu.record(&[nothing]).unwrap()).unwrap();
    let mut bytes = [1; 4];
    cpu.copy_from_buffer(&buffer, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
}
