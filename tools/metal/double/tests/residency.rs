//! Memory that stays wired between command buffers, and what the system says of the GPU. In a process of its own: the
//! double counts for all of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hologram_backends::{Backend, Binding, Buffer, Launch, LaunchConfig, open};
use hologram_isa::parse;
use metal_double::{counts, live_objects};

fn set(variable: &str, value: &str) {
    // SAFETY: the test is the only one of its process, and no device is open.
    unsafe { std::env::set_var(variable, value) };
}

/// A kernel writes a buffer of 4 MiB, which comes back with the device.
fn used() -> (Arc<dyn Backend>, Buffer) {
    let device = open("metal", None).unwrap();
    let out = device.allocate_buffer(4 << 20).unwrap();
    let text = "kernel seven(out: buffer<u32, write>) workgroup(1) {\n  store.u32 out[0], 7\n}\n";
    let pipeline = device.compile(&parse(text).unwrap()).unwrap();
    let bindings = vec![Binding::Buffer { buffer: out.clone(), range: 0..4 << 20 }];
    let list = device.record(&[Launch { pipeline, bindings, config: LaunchConfig { grid: [1, 1, 1] } }]).unwrap();
    device.wait(device.submit(&list).unwrap()).unwrap();
    let mut got = [0; 4];
    device.copy_from_buffer(&out, 0, &mut got).unwrap();
    assert_eq!(got, [7, 0, 0, 0]);
    (device, out)
}

/// The double ends the process where a kernel uses large memory that is not in the set.
#[test]
fn memory_stays_wired_while_a_device_is_open() {
    set("METAL_DOUBLE_CORES", "10");
    let (device, out) = used();
    assert_eq!(device.info().parallelism, 10);
    assert!(counts().residents >= 1);
    let start = Instant::now();
    while counts().residency_requests < 3 {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing keeps the memory wired");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop((device, out));
    // With the device its memory leaves the set, and its thread has ended.
    assert_eq!((counts().residents, live_objects()), (0, 0));
    let requests = counts().residency_requests;
    // More than two intervals between requests.
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(counts().residency_requests, requests);

    // A number of cores that is none, and a system without residency sets.
    set("METAL_DOUBLE_CORES", "");
    set("METAL_DOUBLE_SYSTEM", "14");
    let (device, out) = used();
    assert_eq!(device.info().parallelism, 1);
    drop((device, out));
    assert_eq!(counts().residency_requests, requests);
}
