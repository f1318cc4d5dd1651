//! Command buffers that end with an error: who is told, of what, and what still works.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hologram_backends::{Backend, Binding, Buffer, CommandList, Launch, LaunchConfig, open};
use hologram_isa::parse;
use metal_double::{Failure, fail, hold};

const CLASSES: [Failure; 5] = [
    Failure::OutOfMemory,
    Failure::PageFault,
    Failure::Timeout,
    Failure::InnocentVictim,
    Failure::ImpactingInteractivity,
];

/// What is to fail is told to the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn launch(device: &dyn Backend, name: &str, text: &str, buffers: &[&Buffer]) -> Launch {
    let program = parse(&format!("kernel {name}({text}")).unwrap();
    let bindings = buffers.iter().map(|b| Binding::Buffer { buffer: (*b).clone(), range: 0..4 }).collect();
    Launch { pipeline: device.compile(&program).unwrap(), bindings, config: LaunchConfig { grid: [1, 1, 1] } }
}

/// Writes 7.
fn seven(device: &dyn Backend, out: &Buffer) -> Launch {
    launch(device, "seven", "out: buffer<u32, write>) workgroup(1) {\n  store.u32 out[0], 7\n}\n", &[out])
}

/// Adds 1.
fn more(device: &dyn Backend, from: &Buffer, to: &Buffer) -> Launch {
    let text = "x: buffer<u32, read>, out: buffer<u32, write>) workgroup(1) {\n  %v = load.u32 x[0]\n  %w = add.u32 %v, 1\n  store.u32 out[0], %w\n}\n";
    launch(device, "more", text, &[from, to])
}

fn read(device: &dyn Backend, buffer: &Buffer) -> Result<u32, String> {
    let mut bytes = [0; 4];
    device.copy_from_buffer(buffer, 0, &mut bytes).map_err(|e| e.to_string())?;
    Ok(u32::from_le_bytes(bytes))
}

fn run(device: &dyn Backend, list: &CommandList) -> Result<(), String> {
    device.wait(device.submit(list).unwrap()).map_err(|e| e.to_string())
}

#[test]
fn each_class_comes_with_the_kernel_sticks_and_goes() {
    let _alone = alone();
    let device: Arc<dyn Backend> = open("metal", None).unwrap();
    let device = &*device;
    let [a, b, c, apart] = [(); 4].map(|()| device.allocate_buffer(64).unwrap());
    for buffer in [&a, &b, &c, &apart] {
        device.copy_to_buffer(buffer, 0, &[0; 64]).unwrap();
    }
    let first = device.record(&[seven(device, &a)]).unwrap();
    let second = device.record(&[more(device, &a, &b), more(device, &b, &c)]).unwrap();
    let other = device.record(&[seven(device, &apart)]).unwrap();
    for class in CLASSES {
        let words = class.text().to_str().unwrap();
        fail(0, 1, class);
        let event = device.submit(&first).unwrap();
        for _ in 0..2 {
            let error = device.wait(event).unwrap_err().to_string();
            assert!(error.contains("kernel seven: ") && error.contains(words), "{class:?}: {error}");
        }
        let error = device.wait(event).unwrap_err().to_string();
        assert_eq!(error.contains("HOLOGRAM_COMMAND_MS"), matches!(class, Failure::ImpactingInteractivity), "{error}");
        // It sticks to what was to be written and to what would be computed from it; others are not concerned.
        for result in [read(device, &a), run(device, &second).map(|()| 0), read(device, &c)] {
            let error = result.unwrap_err();
            assert!(error.contains("kernel seven: ") && error.contains(words), "{class:?}: {error}");
        }
        run(device, &other).unwrap();
        assert_eq!(read(device, &apart), Ok(7));
        device.synchronize().unwrap();
        // What is written anew is good, and the same device goes on.
        run(device, &first).unwrap();
        run(device, &second).unwrap();
        assert_eq!([read(device, &a), read(device, &b), read(device, &c)], [Ok(7), Ok(8), Ok(9)]);
    }
}

#[test]
fn a_list_that_fails_behind_others_is_told_of_at_the_next_wait() {
    let _alone = alone();
    let device: Arc<dyn Backend> = open("metal", None).unwrap();
    let device = &*device;
    let [a, b] = [(); 2].map(|()| device.allocate_buffer(64).unwrap());
    let good = device.record(&[seven(device, &a)]).unwrap();
    let bad = device.record(&[seven(device, &b), more(device, &a, &b)]).unwrap();
    // Of five runs, none of which is waited for, the fourth.
    fail(3, 1, Failure::PageFault);
    let events = [&good, &good, &good, &bad, &good].map(|list| device.submit(list).unwrap());
    let error = device.synchronize().unwrap_err().to_string();
    assert!(error.contains("one of the 2 from seven to more (HOLOGRAM_ONE_BY_ONE=1 tells which)"), "{error}");
    assert!(error.contains("PageFault"), "{error}");
    device.synchronize().unwrap();
    for (i, event) in events.into_iter().enumerate() {
        assert_eq!(device.wait(event).is_err(), i == 3, "{i}");
    }
    assert_eq!(read(device, &a), Ok(7));
    assert!(read(device, &b).unwrap_err().contains("from seven to more"));
    run(device, &bad).unwrap();
    assert_eq!(read(device, &b), Ok(8));
}

#[test]
fn a_copy_that_fails_is_an_error_of_its_bytes() {
    let _alone = alone();
    let device: Arc<dyn Backend> = open("metal", None).unwrap();
    let device = &*device;
    let [a, b] = [(); 2].map(|()| device.allocate_buffer(64).unwrap());
    let list = device.record(&[seven(device, &a)]).unwrap();
    run(device, &list).unwrap();
    device.copy_to_buffer(&b, 0, &[1; 64]).unwrap();
    fail(0, 1, Failure::InnocentVictim);
    device.copy_buffer(&a, 0, &b, 0, 4).unwrap();
    let error = read(device, &b).unwrap_err();
    assert!(error.contains("copying: ") && error.contains("InnocentVictim"), "{error}");
    let mut rest = [0; 60];
    device.copy_from_buffer(&b, 4, &mut rest).unwrap();
    assert_eq!((rest, read(device, &a)), ([1; 60], Ok(7)));
    device.copy_buffer(&a, 0, &b, 0, 4).unwrap();
    assert_eq!(read(device, &b), Ok(7));
    // The device writes what the host gives it while it still uses the memory: the second of two command buffers.
    hold(true);
    fail(1, 1, Failure::OutOfMemory);
    let event = device.submit(&list).unwrap();
    device.copy_to_buffer(&a, 0, &[9, 0, 0, 0]).unwrap();
    hold(false);
    device.wait(event).unwrap();
    let error = read(device, &a).unwrap_err();
    assert!(error.contains("copying: ") && error.contains("OutOfMemory"), "{error}");
    device.copy_to_buffer(&a, 0, &[5, 0, 0, 0]).unwrap();
    assert_eq!(read(device, &a), Ok(5));
}
