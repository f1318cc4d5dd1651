//! Tests of memory, copies, recording, the queue and its errors, with programs as kernels: [`devices`] makes them for a
//! device.

#[path = "memory.rs"]
mod memory;

use std::sync::Arc;

use hologram_backends::{
    Backend, BackendError, Binding, Buffer, CommandList, Event, ForeignMemory, Launch, LaunchConfig, open,
};
use hologram_isa::parse;
use memory::{download, upload};

/// Adds `by` to every element; an index beyond `x` is a fault.
const ADD: &str = "kernel add_all(x: buffer<u32, readwrite>, by: u32) workgroup(64) {
  %i = global.x
  %v = load.u32 x[%i]
  %w = add.u32 %v, by
  store.u32 x[%i], %w
}";

fn add(device: &dyn Backend, buffer: &Buffer, range: std::ops::Range<usize>, by: u32, groups: u32) -> Launch {
    let pipeline = device.compile(&parse(ADD).unwrap()).unwrap();
    let bindings = vec![Binding::Buffer { buffer: buffer.clone(), range }, Binding::Scalar(by.into())];
    Launch { pipeline, bindings, config: LaunchConfig { grid: [groups, 1, 1] } }
}

fn numbers(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i ^ seed).wrapping_mul(2_654_435_761)).collect()
}

/// Lists of one launch and of several run in order and repeatedly.
pub fn lists_run_in_order_and_again(device: &dyn Backend) {
    let first = numbers(1024, 1);
    let x = upload(device, &first);
    let one = device.record(&[add(device, &x, 0..4096, 1, 16)]).unwrap();
    let many: Vec<Launch> = (0..10).map(|i| add(device, &x, i * 256..4096, 1 << i, 16 - i as u32)).collect();
    let many = device.record(&many).unwrap();
    let mut expected = first;
    for round in 0..20 {
        let list: &CommandList = if round % 3 == 0 { &one } else { &many };
        device.submit(list).unwrap();
        for (i, v) in expected.iter_mut().enumerate() {
            let by = if round % 3 == 0 { 1 } else { (0..10).filter(|l| i >= l * 64).map(|l| 1u32 << l).sum() };
            *v = v.wrapping_add(by);
        }
    }
    assert!(download(device, &x).unwrap() == expected);
    let launches = device.measure().metrics().launches;
    device.submit(&many).unwrap();
    device.synchronize().unwrap();
    assert_eq!(device.measure().metrics().launches, launches + 10);
    // A launch of no workgroups runs none, alone and among others.
    let before = download(device, &x).unwrap();
    let nothing = || add(device, &x, 0..4096, 1, 0);
    device.submit(&device.record(&[nothing()]).unwrap()).unwrap();
    device.submit(&device.record(&[nothing(), add(device, &x, 0..256, 3, 1), nothing()]).unwrap()).unwrap();
    device.submit(&device.record(&[]).unwrap()).unwrap();
    let after = download(device, &x).unwrap();
    assert!(after[64..] == before[64..] && after[..64].iter().zip(&before).all(|(a, b)| *a == b.wrapping_add(3)));
}

/// A recording keeps its memory alive. The memory is free once the recording is dropped and the queue has passed it.
pub fn a_list_keeps_its_buffers(device: &dyn Backend) {
    // The device may allocate memory of its own at the first run.
    let small = upload(device, &numbers(256, 2));
    device.submit(&device.record(&[add(device, &small, 0..1024, 1, 4)]).unwrap()).unwrap();
    device.synchronize().unwrap();
    let before = device.measure().metrics().memory.live;
    let x = upload(device, &numbers(1 << 20, 2));
    let list = device.record(&[add(device, &x, 0..1024, 1, 4), add(device, &x, 0..1024, 1, 4)]).unwrap();
    drop(x);
    for _ in 0..100 {
        device.submit(&list).unwrap();
    }
    assert!(device.measure().metrics().memory.live >= before + (4 << 20));
    drop(list);
    device.synchronize().unwrap();
    assert_eq!(device.measure().metrics().memory.live, before);
}

/// Copies of every size, at every offset, in the order of the calls among kernels.
pub fn copies_keep_their_order(device: &dyn Backend) {
    // Sizes around those at which a device may change its method: a slot of a ring, a chunk, two chunks and a bit.
    for n in [1usize, 3, 32 << 10, (32 << 10) + 1, 4 << 20, (4 << 20) + 5, (9 << 20) + 7] {
        let (a, b) = (numbers(n, 3), numbers(n, 4));
        let x = upload(device, &a);
        let list = device.record(&[add(device, &x, 0..n * 4, 5, n.div_ceil(64).min(1) as u32)]);
        // The last threads of a workgroup would be out of range: only sizes of whole workgroups can be added to.
        let list = list.ok().filter(|_| n >= 64);
        let y = device.allocate_buffer(n * 4).unwrap();
        for _ in 0..3 {
            let bytes: Vec<u8> = b.iter().flat_map(|v| v.to_le_bytes()).collect();
            device.copy_to_buffer(&x, 0, &bytes).unwrap();
            if let Some(list) = &list {
                device.submit(list).unwrap();
            }
            device.copy_buffer(&x, 0, &y, 0, n * 4).unwrap();
            let bytes: Vec<u8> = a.iter().flat_map(|v| v.to_le_bytes()).collect();
            device.copy_to_buffer(&x, 0, &bytes).unwrap();
        }
        let mut expected = b;
        if list.is_some() {
            expected[..64].iter_mut().for_each(|v| *v = v.wrapping_add(5));
        }
        assert!(download(device, &y).unwrap() == expected, "{n} elements");
        assert!(download(device, &x).unwrap() == a, "{n} elements");
    }
    let a = upload(device, &[1, 2, 3, 4]);
    let b = upload(device, &[0; 4]);
    device.copy_buffer(&a, 4, &b, 8, 8).unwrap();
    device.copy_buffer(&b, 8, &b, 0, 8).unwrap();
    assert_eq!(download(device, &b).unwrap(), [2, 3, 2, 3]);
    device.copy_to_buffer(&b, 5, &[7]).unwrap();
    let mut byte = [0];
    device.copy_from_buffer(&b, 5, &mut byte).unwrap();
    assert_eq!(byte, [7]);
    device.copy_to_buffer(&b, 16, &[]).unwrap();
    device.copy_from_buffer(&b, 16, &mut []).unwrap();
    device.copy_buffer(&b, 16, &a, 16, 0).unwrap();
    for result in [
        device.copy_buffer(&a, 0, &a, 4, 8),
        device.copy_buffer(&a, 12, &b, 0, 8),
        device.copy_to_buffer(&a, usize::MAX, &[1]),
        device.copy_from_buffer(&a, 15, &mut [0; 2]),
        device.wait(Event(u64::MAX)),
    ] {
        assert!(matches!(result, Err(BackendError::InvalidArgument { .. })), "{result:?}");
    }
    let metrics = device.measure().metrics();
    let pool = device.allocate_pool(100).unwrap();
    device.copy_to_pool(&pool, 96, &[5; 4]).unwrap();
    let mut back = [0; 2];
    device.copy_from_pool(&pool, 98, &mut back).unwrap();
    assert_eq!(back, [5; 2]);
    device.free_pool(pool);
    let after = device.measure().metrics();
    assert_eq!(after.bytes_to_device - metrics.bytes_to_device, 4);
    assert_eq!(after.bytes_from_device - metrics.bytes_from_device, 2);
}

/// A pool in parts: one part is written while kernels use the others.
pub fn a_pool_streams(device: &dyn Backend) {
    const PART: usize = 2 << 20;
    let pool = device.allocate_pool(3 * PART).unwrap();
    let lists: Vec<CommandList> = (0..3)
        .map(|p| device.record(&[add(device, &pool.0, p * PART..(p + 1) * PART, 9, (PART / 256) as u32)]).unwrap())
        .collect();
    let total = device.allocate_buffer(12 * PART).unwrap();
    for i in 0..12 {
        let bytes: Vec<u8> = numbers(PART / 4, i as u32).iter().flat_map(|v| v.to_le_bytes()).collect();
        device.copy_to_pool(&pool, i % 3 * PART, &bytes).unwrap();
        device.submit(&lists[i % 3]).unwrap();
        device.copy_buffer(&pool.0, i % 3 * PART, &total, i * PART, PART).unwrap();
    }
    let got = download(device, &total).unwrap();
    for (i, part) in got.chunks(PART / 4).enumerate() {
        let expected = numbers(PART / 4, i as u32).into_iter().map(|v| v.wrapping_add(9));
        assert!(part.iter().copied().eq(expected), "part {i}");
    }
}

/// Every device reports a fault with the same sentence. The error sticks to the bytes that were to be written and to
/// everything computed from them; other memory is unaffected.
pub fn errors_stick_to_what_failed(device: &dyn Backend) {
    let [x, y, z, w] = [1000, 64, 64, 64].map(|n| upload(device, &numbers(n, 5)));
    let text = "program add_all, line 3, workgroup [15, 0, 0], thread 40: element 1000 of buffer x is outside: it has 1000 elements";
    // Any thread out of range may be the reported one.
    let (head, tail) = (text.split("thread").next().unwrap(), "of buffer x is outside: it has 1000 elements");
    let is = |result: Result<(), BackendError>| {
        let error = result.unwrap_err();
        assert!(matches!(error, BackendError::Program(_)), "{error}");
        assert!(error.to_string().starts_with(head) && error.to_string().ends_with(tail), "{error}");
    };
    let read = |buffer: &Buffer| download(device, buffer).map(drop);
    let list = |launches: &[Launch]| device.record(launches).unwrap();
    let bad = || add(device, &x, 0..4000, 1, 16);
    let good = |buffer: &Buffer| add(device, buffer, 0..256, 1, 1);
    let rewrite = |buffer: &Buffer| device.copy_to_buffer(buffer, 0, &vec![0; buffer.bytes()]).unwrap();
    // Alone, and among launches: the results of earlier launches are good, those of later ones have failed.
    for (launches, after) in [(vec![bad()], false), (vec![good(&y), bad(), good(&w)], true)] {
        let failing = list(&launches);
        for _ in 0..2 {
            let (before, unrelated) = (download(device, &y).unwrap(), list(&[good(&z)]));
            let z_before = download(device, &z).unwrap();
            let event = device.submit(&failing).unwrap();
            let other = device.submit(&unrelated).unwrap();
            device.wait(other).unwrap();
            assert_eq!(download(device, &z).unwrap()[7], z_before[7].wrapping_add(1));
            for _ in 0..2 {
                is(device.wait(event));
                is(read(&x));
                assert_eq!(download(device, &y).unwrap()[3], before[3].wrapping_add(after.into()));
                assert_eq!(read(&w).is_err(), after);
            }
            // By kernels, also in part, and by copies.
            let derived = device.submit(&list(&[good(&x)])).unwrap();
            is(device.wait(derived));
            device.copy_buffer(&x, 64, &z, 128, 64).unwrap();
            is(read(&z));
            device.copy_from_buffer(&z, 0, &mut [0; 128]).unwrap();
            device.copy_buffer(&y, 0, &z, 128, 64).unwrap();
            read(&z).unwrap();
            device.synchronize().unwrap();
            // Bytes that are written anew are good, and so are bytes that `clear_error` declares good.
            device.copy_to_buffer(&x, 0, &[0; 2000]).unwrap();
            device.copy_from_buffer(&x, 0, &mut [0; 2000]).unwrap();
            is(read(&x));
            device.clear_error(&x, 2000, 2000).unwrap();
            read(&x).unwrap();
            rewrite(&w);
            let again = device.submit(&list(&[good(&x), good(&w)])).unwrap();
            device.wait(again).unwrap();
            assert_eq!(download(device, &w).unwrap(), [1; 64]);
        }
    }
    // `synchronize` reports the error once; freed memory does not keep it.
    let gone = upload(device, &numbers(1000, 5));
    device.submit(&list(&[add(device, &gone, 0..4000, 1, 16)])).unwrap();
    is(device.synchronize());
    device.synchronize().unwrap();
    is(read(&gone));
    drop(gone);
    device.synchronize().unwrap();
    let next = device.allocate_buffer(4000).unwrap();
    read(&next).unwrap();
    // A write between a failing run and the next one, before any wait.
    device.submit(&list(&[bad()])).unwrap();
    rewrite(&x);
    device.submit(&list(&[good(&x)])).unwrap();
    assert_eq!(download(device, &x).unwrap()[..65], [[1; 64].as_slice(), &[0]].concat());
    is(device.synchronize());
    // Work on failed bytes, submitted before any wait.
    device.submit(&list(&[bad()])).unwrap();
    let derived = device.submit(&list(&[good(&x)])).unwrap();
    device.copy_buffer(&x, 0, &z, 0, 256).unwrap();
    is(read(&z));
    is(device.wait(derived));
    rewrite(&x);
    rewrite(&z);
    device.synchronize().unwrap();
}

pub fn wrong_arguments_are_refused_when_recorded(device: &dyn Backend) {
    let x = upload(device, &numbers(64, 6));
    let other = open("reference", None).unwrap();
    let other = if device.info().backend == other.info().backend { open("cpu", Some(1)).unwrap() } else { other };
    let far = other.allocate_buffer(256).unwrap();
    let owner = Arc::new(numbers(64, 7));
    // SAFETY: the vector's elements, which nobody writes.
    let foreign = unsafe { ForeignMemory::new(owner.clone(), owner.as_ptr().cast(), 256) };
    let foreign = device.wrap(foreign).unwrap();
    let with = |bindings: Vec<Binding>| Launch { bindings, ..add(device, &x, 0..256, 1, 1) };
    let part = |buffer: &Buffer, range| Binding::Buffer { buffer: buffer.clone(), range };
    let one = || Binding::Scalar(1);
    let cases = [
        (with(vec![part(&x, 0..256)]), "takes 2 arguments (x, by), 1 are bound"),
        (with(vec![part(&x, 4..260), one()]), "bytes 4..+256 lie outside a buffer of 256 bytes"),
        (with(vec![part(&x, 2..254), one()]), "bytes 2..254 are not whole, aligned u32"),
        (with(vec![part(&x, std::ops::Range { start: 8, end: 4 }), one()]), "ends before it starts"),
        (with(vec![part(&foreign, 0..256), one()]), "read-only"),
        (with(vec![part(&far, 0..256), one()]), "the buffer belongs to"),
        (with(vec![one(), one()]), "it is a buffer, a scalar is bound"),
        (Launch { pipeline: other.compile(&parse(ADD).unwrap()).unwrap(), ..with(vec![]) }, "made by another device"),
    ];
    for (launch, text) in cases {
        let error = device.record(&[launch]).err().unwrap();
        assert!(matches!(error, BackendError::InvalidArgument { .. }));
        assert!(error.to_string().contains(text) && error.to_string().contains("kernel add_all"), "{error}");
    }
    let list = other.record(&[add(&*other, &far, 0..256, 1, 1)]).unwrap();
    assert!(device.submit(&list).unwrap_err().to_string().contains("recorded by another device"));
    assert!(device.copy_to_buffer(&foreign, 0, &[1]).unwrap_err().to_string().contains("read-only"));
    assert!(download(device, &foreign).unwrap() == *owner);
}

/// Allocations beyond the device's memory fail with figures and leave the device unchanged.
pub fn memory_that_is_not_there_is_an_error(device: &dyn Backend) {
    let x = upload(device, &[1, 2, 3]);
    for bytes in [isize::MAX as usize, usize::MAX] {
        let error = device.allocate_buffer(bytes).unwrap_err();
        assert!(matches!(error, BackendError::OutOfMemory { .. }), "{error}");
        assert!(error.to_string().contains(&format!("cannot allocate {bytes} bytes")), "{error}");
    }
    assert_eq!(download(device, &x).unwrap(), [1, 2, 3]);
    assert_eq!(device.allocate_buffer(0).unwrap().bytes(), 0);
    // A freed block serves the next buffer of its size.
    let hits = device.measure().metrics().memory.hits;
    drop(device.allocate_buffer(1 << 20).unwrap());
    drop(device.allocate_buffer(1 << 20).unwrap());
    assert!(device.measure().metrics().memory.hits > hits);
}

pub fn threads_may_use_it_at_the_same_time(device: &dyn Backend) {
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                for round in 0..10 {
                    let first = numbers(64 * 100, seed + round);
                    let x = upload(device, &first);
                    let list = device.record(&[add(device, &x, 0..25600, seed, 100)]).unwrap();
                    let event = device.submit(&list).unwrap();
                    device.wait(event).unwrap();
                    let expected = first.iter().map(|v| v.wrapping_add(seed));
                    assert!(download(device, &x).unwrap().into_iter().eq(expected));
                }
            });
        }
    });
}

/// The tests of devices: module, name, attribute.
macro_rules! devices {
    ($($module:ident, $name:literal, $(#[$attribute:meta])?;)*) => {$(
        mod $module {
            devices!(@tests $name, [$(#[$attribute])?],
                lists_run_in_order_and_again a_list_keeps_its_buffers copies_keep_their_order a_pool_streams
                errors_stick_to_what_failed wrong_arguments_are_refused_when_recorded
                memory_that_is_not_there_is_an_error threads_may_use_it_at_the_same_time
            );
        }
    )*};
    (@tests $name:literal, $attributes:tt, $($test:ident)*) => {$(devices!(@test $name, $attributes, $test);)*};
    (@test $name:literal, [$(#[$attribute:meta])?], $test:ident) => {
        #[test]
        $(#[$attribute])?
        fn $test() {
            crate::common::$test(&*hologram_backends::open($name, Some(2)).unwrap());
        }
    };
}
