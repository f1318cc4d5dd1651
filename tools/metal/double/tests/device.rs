//! Memory, copies and the queue of the Metal backend.

use std::sync::Arc;

use hologram_backends::{Backend, Binding, ForeignMemory, Launch, LaunchConfig, open};
use hologram_isa::parse;
use metal_double as _;

fn metal() -> Arc<dyn Backend> {
    open("metal", None).unwrap()
}

#[test]
fn memory_is_copied_in_order() {
    let device = metal();
    let (a, b) = (device.allocate_buffer(1 << 20).unwrap(), device.allocate_buffer(1 << 20).unwrap());
    let data: Vec<u8> = (0..1 << 20).map(|i| (i * 7 + i / 251) as u8).collect();
    device.copy_to_buffer(&a, 0, &data).unwrap();
    device.copy_buffer(&a, 16, &b, 48, 1000).unwrap();
    // Written while the device copies: the copy has the old bytes, a later one the new.
    device.copy_to_buffer(&a, 16, &[9; 1000]).unwrap();
    device.copy_buffer(&a, 16, &b, 4096, 1000).unwrap();
    let mut got = vec![0; 8192];
    device.copy_from_buffer(&b, 0, &mut got).unwrap();
    assert_eq!(got[48..1048], data[16..1016]);
    assert_eq!(got[4096..5096], [9; 1000]);
}

#[test]
fn foreign_memory_is_used_where_it_lies() {
    let device = metal();
    assert!(device.policy().shares_host_memory);
    let owner: Arc<Vec<u8>> = Arc::new((0..100_000).map(|i| i as u8).collect());
    let before = device.measure().metrics();
    // SAFETY: bytes of the owner, which nobody writes.
    let foreign = unsafe { ForeignMemory::new(owner.clone(), owner[3..].as_ptr(), 99_000) };
    let wrapped = device.wrap(foreign).unwrap();
    assert_eq!(device.measure().metrics(), before, "nothing is copied");
    let mut got = vec![0; 1000];
    device.copy_from_buffer(&wrapped, 98_000, &mut got).unwrap();
    assert_eq!(got, owner[98_003..99_003]);
    assert!(device.copy_to_buffer(&wrapped, 0, &[0]).unwrap_err().to_string().contains("read-only"));
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(wrapped);
    assert_eq!(Arc::strong_count(&owner), 1);
}

/// What `--profile` shows of the device: each launch by its kernel's name, with the time that the GPU took.
#[test]
fn a_profile_has_names_and_the_gpus_times() {
    let device = metal();
    let out = device.allocate_buffer(64).unwrap();
    let launch = |name: &str, groups: u32| {
        let text = format!(
            "kernel {name}(out: buffer<u32, write>) workgroup(1) {{\n  %i = global.x\n  store.u32 out[%i], 7\n}}\n"
        );
        let bindings = vec![Binding::Buffer { buffer: out.clone(), range: 0..64 }];
        let pipeline = device.compile(&parse(&text).unwrap()).unwrap();
        Launch { pipeline, bindings, config: LaunchConfig { grid: [groups, 1, 1] } }
    };
    let list = device.record(&[launch("one", 1), launch("nothing", 0), launch("many", 16)]).unwrap();
    let started = std::time::Instant::now();
    let times = device.measure().profile(&list).unwrap();
    let wall = started.elapsed().as_secs_f64();
    assert_eq!(times.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), ["one", "nothing", "many"]);
    let seconds: Vec<f64> = times.iter().map(|(_, seconds)| *seconds).collect();
    assert!(seconds[0] > 0.0 && seconds[1] == 0.0 && seconds[2] > 0.0, "{seconds:?}");
    assert!(seconds.iter().sum::<f64>() < wall, "{seconds:?} in {wall} s");
    let mut got = [0; 64];
    device.copy_from_buffer(&out, 0, &mut got).unwrap();
    assert_eq!(got.as_chunks::<4>().0, [[7, 0, 0, 0]; 16]);
}
