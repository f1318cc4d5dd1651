//! What is wired of a mapped file. In a process of its own: memory is counted for all of it.

use std::sync::Arc;

use hologram_backends::{Binding, ForeignMemory, Launch, LaunchConfig, open};
use hologram_isa::parse;
use metal_double as _;

/// Metal wires all of a buffer that a command buffer uses: only what a kernel gets of a file may be in one, and once.
#[test]
fn foreign_memory_is_wired_by_what_kernels_use_of_it() {
    const MIB: usize = 1 << 20;
    let device = open("metal", None).unwrap();
    // Pages at both ends, the result and the record of faults.
    let slack = (2 * MIB) as u64;
    let free = device.available_memory().unwrap();
    let owner: Arc<Vec<u8>> = Arc::new((0..64 * MIB).map(|i| (i / 5) as u8).collect());
    // SAFETY: bytes of the owner, which nobody writes.
    let foreign = unsafe { ForeignMemory::new(owner.clone(), owner.as_ptr(), owner.len()) };
    let file = device.wrap(foreign).unwrap();
    let out = device.allocate_buffer(64).unwrap();
    let text = "kernel first(x: buffer<u32, read>, out: buffer<u32, write>) workgroup(1) {\n  %v = load.u32 x[0]\n  store.u32 out[0], %v\n}\n";
    let pipeline = device.compile(&parse(text).unwrap()).unwrap();
    // A small range, a large one, and a view in the large one: none other is wired.
    for (start, bytes, wired) in [(12 * MIB + 4, 1000, 0), (20 * MIB + 8, 8 * MIB, 8 * MIB), (21 * MIB, MIB, 8 * MIB)] {
        let bindings = vec![
            Binding::Buffer { buffer: file.clone(), range: start..start + bytes },
            Binding::Buffer { buffer: out.clone(), range: 0..4 },
        ];
        let launch = Launch { pipeline: pipeline.clone(), bindings, config: LaunchConfig { grid: [1, 1, 1] } };
        let list = device.record(&[launch]).unwrap();
        device.wait(device.submit(&list).unwrap()).unwrap();
        let mut got = [0; 4];
        device.copy_from_buffer(&out, 0, &mut got).unwrap();
        assert_eq!(got, owner[start..start + 4], "{start}");
        let used = free - device.available_memory().unwrap();
        assert!((wired as u64..wired as u64 + slack).contains(&used), "{used} bytes, {wired} needed");
    }
}
