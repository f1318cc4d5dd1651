//! Programs on the CPU device: random ones against the reference interpreter, bit for bit, on each level of vector
//! instructions; the examples; faults.

use hologram_backends::compare::{random_program, run};
use hologram_backends::cpu::{CpuBackend, CpuOptions, InstructionSet};
use hologram_backends::{
    Backend, BackendError, BackendType, Binding, Launch, LaunchConfig, available_backends, open, open_noting,
};
use hologram_isa::{Access, Builder, Type};

mod common;
use common::*;

/// The levels that this processor has.
fn devices() -> Vec<(String, CpuBackend)> {
    let detected = CpuBackend::new(Some(1)).unwrap().info().features.clone();
    let mut levels = vec![("plain", Some(InstructionSet::Plain))];
    if detected.contains(&"avx2") {
        levels.push(("avx2", Some(InstructionSet::Avx2)));
    }
    if detected.contains(&"avx512") {
        levels.push(("avx512", None));
    }
    let open = |(i, (name, max_isa)): (usize, (&str, Option<InstructionSet>))| {
        let threads = Some(1 + i % 2);
        let options = CpuOptions { threads, max_isa, ..CpuOptions::default() };
        (format!("{name} on {} threads", 1 + i % 2), CpuBackend::with_options(options).unwrap())
    };
    levels.into_iter().enumerate().map(open).collect()
}

/// Checks every device, each on a thread of its own.
fn each(check: impl Fn(&str, &CpuBackend) + Sync) {
    let devices = devices();
    std::thread::scope(|scope| {
        for (name, device) in &devices {
            scope.spawn(|| check(name, device));
        }
    });
}

#[test]
fn random_programs_give_the_interpreters_bits() {
    let (start, count) = (number("HOLOGRAM_RANDOM_SEED", 0), number("HOLOGRAM_RANDOM_PROGRAMS", 300));
    each(|name, device| {
        for seed in start..start + count {
            let difference = random_program(device, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert!(difference.is_none(), "{name}, {}", difference.unwrap_or_default());
        }
    });
}

#[test]
fn faults_are_the_interpreters() {
    each(|name, device| check_faults(name, device, true));
}

#[test]
fn examples_agree_with_f64() {
    each(|name, device| check_examples(name, device));
}

#[test]
fn instructions_mean_what_the_table_says() {
    let devices = devices();
    let devices: Vec<(&str, &dyn Backend)> =
        devices.iter().map(|(name, device)| (name.as_str(), device as _)).collect();
    check_instructions(&devices);
}

#[test]
fn atomic_operations_are_atomic() {
    devices().iter().for_each(|(name, device)| check_atomics(name, device));
}

#[test]
fn products_of_tiles_are_the_interpreters() {
    devices().iter().for_each(|(name, device)| check_tiles(name, device, false));
    check_tiles("reference", &*open("reference", None).unwrap(), false);
}

#[test]
fn neighbours_move_from_and_to_any_address() {
    devices().iter().for_each(|(name, device)| check_fours(name, device));
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
    let metrics = device.measure().metrics();
    assert_eq!((metrics.pipelines_compiled, metrics.pipeline_hits, metrics.launches), (2, 1, 3));
    let mut broken = build(2.0);
    broken.workgroup = [0, 1, 1];
    assert!(matches!(device.compile(&broken), Err(BackendError::Program(_))));
}

#[test]
fn devices_open_by_name_and_keep_to_their_own() {
    let best = available_backends()[0];
    for (name, kind) in [("auto", best), ("CPU", BackendType::Cpu), ("reference", BackendType::Reference)] {
        let device = open(name, Some(1)).unwrap();
        assert_eq!(device.info().backend, kind);
        assert!(available_backends().contains(&kind) && device.is_available());
    }
    let names: Vec<_> = available_backends().iter().map(|kind| kind.name()).collect();
    let there_are = format!("use one of: auto, {}", names.join(", "));
    let missing = [
        ("metal", "only on Apple platforms"),
        ("gpu", "no device has this name"),
        ("", "no device has this name"),
        ("cudax", "a GPU is named cuda or cuda:N"),
        ("cuda:", "a GPU is named cuda or cuda:N"),
        ("cuda:x", "a GPU is named cuda or cuda:N"),
        ("cuda:9999", if best == BackendType::Cuda { "there are" } else { "driver" }),
        ("cuda", "driver"),
    ];
    let there =
        |name: &str| name == "cuda" && best == BackendType::Cuda || name == "metal" && best == BackendType::Metal;
    for (name, why) in missing.into_iter().filter(|(name, _)| !there(name)) {
        let error = open(name, None).err().unwrap();
        assert!(matches!(error, BackendError::Unavailable { .. }));
        let text = error.to_string();
        let shown = if name.is_empty() { "\"\"" } else { name };
        assert!(
            text.contains(&there_are) && text.contains(why) && text.contains(&format!("device {shown} ")),
            "{error}"
        );
    }
    // Where `auto` chooses the CPU although there is a card, it says why.
    let (_, note) = open_noting("auto", Some(1)).unwrap();
    assert!(note.is_none() || best == BackendType::Cpu, "{note:?}");
    // Buffers, pipelines and lists of one device are rejected by another.
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
