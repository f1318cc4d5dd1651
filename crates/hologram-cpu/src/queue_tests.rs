//! Memory, recording, workers and the queue of the CPU device, with native kernels of this test.

use std::sync::Arc;

use hologram_device::{
    Backend, BackendError, Binding, Buffer, CommandList, DType, Event, Extent, ForeignMemory, KernelSpec, Launch,
    LaunchConfig, Operation, Pipeline, TensorSpec,
};

use super::backend::native_pipeline;
use super::kernel::{Args, NativeKernel, Worker};
use super::{CpuBackend, CpuOptions};

/// A buffer with these words.
fn upload(device: &dyn Backend, values: &[u32]) -> Buffer {
    let buffer = device.allocate_buffer(values.len() * 4).unwrap();
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    device.copy_to_buffer(&buffer, 0, &bytes).unwrap();
    buffer
}

/// A buffer's words, after the device's work.
fn download(device: &dyn Backend, buffer: &Buffer) -> Result<Vec<u32>, BackendError> {
    let mut bytes = vec![0; buffer.bytes()];
    device.copy_from_buffer(buffer, 0, &mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect())
}

/// Phase 0 stores the sum of each row in the shared scratch; phase 1 adds all sums to each element. The result is right
/// only if the workers meet between the phases and divide each phase completely.
struct AddTotal;

impl NativeKernel for AddTotal {
    fn phases(&self) -> usize {
        2
    }

    fn shared_scratch(&self) -> usize {
        ROWS * 4
    }

    fn worker_scratch(&self) -> usize {
        COLUMNS * 4
    }

    fn run(&self, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let shared = worker.shared_scratch();
        assert!(shared.bytes >= ROWS * 4 && worker.scratch.len() >= COLUMNS * 4);
        let x: &[u32] = args.read(0);
        while let Some(row) = worker.next(ROWS) {
            let range = row * COLUMNS..(row + 1) * COLUMNS;
            match phase {
                0 => {
                    worker.scratch[..COLUMNS * 4].fill(row as u8);
                    let sum = x[range].iter().sum::<u32>();
                    if sum == u32::MAX {
                        return Err(format!("row {row} is forbidden"));
                    }
                    assert!(x[row * COLUMNS] != 77, "row {row} is unlucky");
                    assert!(worker.scratch[..COLUMNS * 4].iter().all(|b| *b == row as u8));
                    // SAFETY: row < ROWS.
                    let place = unsafe { shared.data.cast::<u32>().add(row) };
                    // SAFETY: this worker claimed the row.
                    unsafe { place.write(sum) };
                }
                _ => {
                    // SAFETY: all rows were written in phase 0.
                    let sums = unsafe { std::slice::from_raw_parts(shared.data.cast::<u32>(), ROWS) };
                    let total: u32 = sums.iter().sum();
                    // SAFETY: each row is claimed by one worker in each phase.
                    let y = unsafe { args.output::<u32>(1).part(range.clone()) };
                    y.iter_mut().zip(&x[range]).for_each(|(y, x)| *y = x + total);
                }
            }
        }
        Ok(())
    }
}

/// The repetitions of a test: few in Miri, which is some thousand times slower.
fn rounds(count: usize) -> usize {
    if cfg!(miri) { 2 } else { count }
}

const ROWS: usize = 37;
const COLUMNS: usize = 8;
const BYTES: usize = ROWS * COLUMNS * 4;

fn add_total() -> Pipeline {
    let tensor = TensorSpec { format: DType::U32, shape: vec![Extent::Fixed(ROWS), Extent::Fixed(COLUMNS)] };
    let spec =
        KernelSpec { op: Operation::Probe("add_total"), inputs: vec![tensor.clone()], output: tensor, in_place: None };
    native_pipeline(Arc::new(AddTotal), &spec)
}

fn launch(bindings: Vec<Binding>) -> Launch {
    Launch { pipeline: add_total(), bindings, config: LaunchConfig { grid: [1, 1, 1] } }
}

/// A chain of launches x → y → x → …, and its expected result.
fn chain(device: &dyn Backend, first: &[u32], length: usize) -> (CommandList, Buffer, Vec<u32>) {
    let (x, y) = (upload(device, first), device.allocate_buffer(BYTES).unwrap());
    let mut expected = first.to_vec();
    let mut launches = Vec::new();
    for i in 0..length {
        let (from, to) = if i % 2 == 0 { (&x, &y) } else { (&y, &x) };
        launches.push(launch(vec![Binding::whole(from), Binding::whole(to)]));
        let total = expected.iter().fold(0u32, |a, b| a.wrapping_add(*b));
        expected.iter_mut().for_each(|v| *v = v.wrapping_add(total));
    }
    let out = if length.is_multiple_of(2) { x } else { y };
    (device.record(&launches).unwrap(), out, expected)
}

fn numbers() -> Vec<u32> {
    (0..(ROWS * COLUMNS) as u32).map(|i| i % 5).collect()
}

pub(crate) fn workers_divide_phases_and_meet_between_them() {
    for threads in [1, 2, 3] {
        let device = CpuBackend::new(Some(threads)).unwrap();
        assert_eq!(device.info().parallelism, threads);
        let (list, out, expected) = chain(&device, &numbers(), 2);
        device.submit(&list).unwrap();
        assert_eq!(download(&device, &out).unwrap(), expected, "{threads} threads");
        assert_eq!(device.measure().metrics().launches, 2);
    }
}

/// Launches run one by one compute the same as the list, and fail as it does.
pub(crate) fn a_profile_runs_every_launch_once() {
    let device = CpuBackend::new(Some(2)).unwrap();
    let (list, out, expected) = chain(&device, &numbers(), 3);
    let times = device.measure().profile(&list).unwrap();
    assert_eq!(times.iter().map(|t| &*t.0).collect::<Vec<_>>(), ["add_total"; 3]);
    assert!(times.iter().all(|t| t.1 > 0.0 && t.1 < 10.0), "{times:?}");
    assert_eq!(download(&device, &out).unwrap(), expected);
    assert_eq!(device.measure().metrics().launches, 3);
    let mut forbidden = vec![0; ROWS * COLUMNS];
    forbidden[COLUMNS] = u32::MAX;
    let (list, out, _) = chain(&device, &forbidden, 3);
    assert!(device.measure().profile(&list).unwrap_err().to_string().contains("row 1 is forbidden"));
    assert!(download(&device, &out).unwrap_err().to_string().contains("row 1 is forbidden"));
}

pub(crate) fn a_list_keeps_its_buffers_and_runs_again() {
    let device = CpuBackend::new(Some(2)).unwrap();
    let zero = vec![0; ROWS * COLUMNS];
    let (list, out, _) = chain(&device, &zero, 1);
    let live = device.measure().metrics().memory.live;
    for _ in 0..rounds(200) {
        device.submit(&list).unwrap();
    }
    assert_eq!(device.measure().metrics().memory.live, live, "the input is held by the list alone");
    assert_eq!(download(&device, &out).unwrap(), zero);
}

pub(crate) fn threads_may_submit_at_the_same_time() {
    let device = CpuBackend::new(Some(2)).unwrap();
    std::thread::scope(|scope| {
        for start in 0..4 {
            let device = &device;
            scope.spawn(move || {
                for round in 0..rounds(20) as u32 {
                    let first: Vec<u32> = numbers().iter().map(|v| v + start + round).collect();
                    let (list, out, expected) = chain(device, &first, 1);
                    let event = device.submit(&list).unwrap();
                    device.wait(event).unwrap();
                    assert_eq!(download(device, &out).unwrap(), expected);
                }
            });
        }
    });
}

pub(crate) fn a_failed_kernel_stops_its_list_and_what_follows_from_it() {
    for threads in [1, 2, 3] {
        let device = CpuBackend::new(Some(threads)).unwrap();
        let mut forbidden = numbers();
        forbidden[COLUMNS..2 * COLUMNS].fill(0);
        forbidden[COLUMNS] = u32::MAX;
        let mut unlucky = numbers();
        unlucky[5 * COLUMNS] = 77;
        for (bad, text) in [(forbidden, "row 1 is forbidden"), (unlucky, "it panicked: row 5 is unlucky")] {
            let (failing, out, _) = chain(&device, &bad, 3);
            let (good, good_out, expected) = chain(&device, &numbers(), 1);
            let launches = device.measure().metrics().launches;
            let event = device.submit(&failing).unwrap();
            device.submit(&good).unwrap();
            assert_eq!(download(&device, &good_out).unwrap(), expected);
            for error in [device.wait(event).unwrap_err(), download(&device, &out).unwrap_err()] {
                assert!(matches!(error, BackendError::Kernel { .. }), "{error}");
                assert_eq!(error.to_string(), format!("cpu: kernel add_total: {text}"));
            }
            device.synchronize().unwrap();
            // Its input, which the second launch was to write, has failed too, so it does not run again.
            device.submit(&failing).unwrap();
            assert!(download(&device, &out).is_err());
            assert_eq!(device.measure().metrics().launches, launches + 4);
        }
    }
}

pub(crate) fn wrong_arguments_are_refused_when_recorded() {
    let device = CpuBackend::new(Some(1)).unwrap();
    let other = CpuBackend::new(Some(1)).unwrap();
    let x = upload(&device, &numbers());
    let far = upload(&other, &numbers());
    let big = device.allocate_buffer(BYTES + 64).unwrap();
    let owner = Arc::new(numbers());
    // SAFETY: the vector's elements, which nobody writes.
    let foreign = unsafe { ForeignMemory::new(owner.clone(), owner.as_ptr().cast(), BYTES) };
    let foreign = device.wrap(foreign).unwrap();
    let part = |buffer: &Buffer, range| Binding::Buffer { buffer: buffer.clone(), range };
    let whole = Binding::whole;
    let cases = [
        (vec![whole(&x)], "takes 2 arguments (input 0, output), 1 are bound"),
        (vec![whole(&x), part(&big, 65..BYTES + 65)], "bytes 65..+1184 lie outside a buffer of 1248 bytes"),
        (vec![whole(&x), part(&big, 2..BYTES + 2)], "argument 1 (output): bytes 2..1186 are not whole, aligned u32"),
        (vec![whole(&x), part(&big, 0..BYTES - 4)], "1180 bytes are bound, the kernel needs 1184"),
        (vec![whole(&x), part(&big, std::ops::Range { start: 8, end: 4 })], "ends before it starts"),
        (vec![whole(&x), whole(&foreign)], "read-only"),
        (vec![whole(&far), whole(&big)], "argument 0 (input 0): the buffer belongs to another cpu device"),
        (vec![whole(&x), whole(&far)], "argument 1 (output): the buffer belongs to another cpu device"),
        (vec![Binding::Scalar(1), whole(&x)], "it is a buffer, a scalar is bound"),
    ];
    for (bindings, text) in cases {
        let error = device.record(&[launch(bindings)]).err().unwrap();
        assert!(matches!(error, BackendError::InvalidArgument { .. }));
        assert!(error.to_string().contains(text), "{error}");
        assert!(error.to_string().contains("recording kernel add_total"), "{error}");
    }
    // Foreign memory is read in place, and kept alive.
    let out = device.allocate_buffer(BYTES).unwrap();
    let list = device.record(&[launch(vec![whole(&foreign), whole(&out)])]).unwrap();
    drop(foreign);
    assert_eq!(Arc::strong_count(&owner), 2);
    device.submit(&list).unwrap();
    let total: u32 = numbers().iter().sum();
    let expected: Vec<u32> = numbers().iter().map(|v| v + total).collect();
    assert_eq!(download(&device, &out).unwrap(), expected);
    drop(list);
    assert_eq!(Arc::strong_count(&owner), 1);
}

/// A kernel holds slices of its arguments, so a written one must not overlap any other.
pub(crate) fn arguments_that_are_written_overlap_no_other() {
    let device = CpuBackend::new(Some(1)).unwrap();
    let x = device.allocate_buffer(2 * BYTES).unwrap();
    let part = |range| Binding::Buffer { buffer: x.clone(), range };
    for (from, to) in [(0..BYTES, 0..BYTES), (0..BYTES, BYTES - 4..2 * BYTES - 4), (8..BYTES + 8, 0..BYTES)] {
        let error = device.record(&[launch(vec![part(from), part(to)])]).err().unwrap().to_string();
        let text = "argument 1 (output) overlaps argument 0 (input 0), and the kernel writes this one";
        assert!(error.contains("recording kernel add_total") && error.contains(text), "{error}");
    }
    // Neighbouring ranges do not overlap. A range that is only read may be bound twice.
    assert!(device.record(&[launch(vec![part(0..BYTES), part(BYTES..2 * BYTES)])]).is_ok());
    let tensor = TensorSpec { format: DType::U32, shape: vec![Extent::Fixed(ROWS), Extent::Fixed(COLUMNS)] };
    let spec = |inputs: usize, in_place| KernelSpec {
        op: Operation::Probe("add_total"),
        inputs: vec![tensor.clone(); inputs],
        output: tensor.clone(),
        in_place,
    };
    let record = |spec: &KernelSpec, bindings| {
        let pipeline = native_pipeline(Arc::new(AddTotal), spec);
        device.record(&[Launch { pipeline, bindings, config: LaunchConfig { grid: [1, 1, 1] } }])
    };
    let (low, high) = (|| part(0..BYTES), || part(BYTES..2 * BYTES));
    assert!(record(&spec(2, None), vec![low(), low(), high()]).is_ok());
    assert!(record(&spec(2, Some(0)), vec![low(), high()]).is_ok());
    let error = record(&spec(2, Some(0)), vec![low(), low()]).err().unwrap().to_string();
    let text = "argument 1 (input 1) overlaps argument 0 (input 0), and the kernel writes that one";
    assert!(error.contains(text), "{error}");
}

/// A device's queue orders the accesses to its buffers, so no other device may use them.
pub(crate) fn devices_do_not_share_buffers_or_lists() {
    fn refused<T>(result: Result<T, BackendError>, text: &str) {
        let error = result.err().unwrap();
        assert!(matches!(error, BackendError::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    let cpu = || -> Box<dyn Backend> { Box::new(CpuBackend::new(Some(1)).unwrap()) };
    let reference = || -> Box<dyn Backend> { Box::new(hologram_device::ReferenceBackend::new()) };
    for (device, other, name) in [(cpu(), cpu(), "cpu"), (reference(), reference(), "reference")] {
        let (own, far) = (upload(&*device, &[1, 2]), upload(&*other, &[3, 4]));
        let text = format!("the buffer belongs to another {name} device; copy its bytes");
        let mut bytes = [0; 8];
        refused(device.copy_to_buffer(&far, 0, &bytes), &text);
        refused(device.copy_from_buffer(&far, 0, &mut bytes), &text);
        refused(device.copy_buffer(&own, 0, &far, 0, 8), &text);
        refused(device.copy_buffer(&far, 0, &own, 0, 8), &text);
        refused(device.clear_error(&far, 0, 8), &text);
        assert!(device.owns(&own) && !device.owns(&far));
        let list = other.record(&[]).unwrap();
        refused(device.submit(&list), "the list was recorded by another device");
        refused(device.measure().profile(&list), "the list was recorded by another device");
        other.wait(other.submit(&list).unwrap()).unwrap();
        assert_eq!(download(&*other, &far).unwrap(), [3, 4]);
        // Bytes that are foreign to both are only read.
        let bytes = Arc::new(vec![5, 0, 0, 0]);
        for device in [&device, &other] {
            let wrapped = device.wrap(ForeignMemory::from_owner(bytes.clone())).unwrap();
            assert_eq!(download(&**device, &wrapped).unwrap(), [5]);
        }
        assert_eq!(Arc::strong_count(&bytes), 1);
    }
}

pub(crate) fn copies_are_checked_and_counted() {
    let device = CpuBackend::new(Some(1)).unwrap();
    let a = upload(&device, &[1, 2, 3, 4]);
    let b = upload(&device, &[0; 4]);
    device.copy_buffer(&a, 4, &b, 8, 8).unwrap();
    device.copy_buffer(&b, 8, &b, 0, 8).unwrap();
    assert_eq!(download(&device, &b).unwrap(), [2, 3, 2, 3]);
    for result in [
        device.copy_buffer(&a, 0, &a, 4, 8),
        device.copy_buffer(&a, 12, &b, 0, 8),
        device.copy_to_buffer(&a, usize::MAX, &[1]),
        device.copy_from_buffer(&a, 15, &mut [0; 2]),
        device.wait(Event(99)),
    ] {
        assert!(matches!(result, Err(BackendError::InvalidArgument { .. })), "{result:?}");
    }
    let metrics = device.measure().metrics();
    assert_eq!((metrics.bytes_to_device, metrics.bytes_from_device), (32, 16));
    let pool = device.allocate_pool(100).unwrap();
    device.copy_to_pool(&pool, 96, &[5; 4]).unwrap();
    let mut back = [0; 2];
    device.copy_from_pool(&pool, 98, &mut back).unwrap();
    assert_eq!(back, [5; 2]);
    device.free_pool(pool);
}

pub(crate) fn absurd_options_are_refused() {
    for threads in [0, 1025] {
        assert!(matches!(CpuBackend::new(Some(threads)), Err(BackendError::Unavailable { .. })));
    }
    let options = CpuOptions { threads: Some(1), memory_cap: Some(1 << 20), ..CpuOptions::default() };
    let device = CpuBackend::with_options(options).unwrap();
    let error = device.allocate_buffer(2 << 20).unwrap_err().to_string();
    assert!(error.contains("cannot allocate 2097152 bytes") && error.contains("the cap is 1048576"), "{error}");
    assert!(device.allocate_buffer(1 << 19).is_ok());
    assert!(matches!(device.allocate_buffer(isize::MAX as usize), Err(BackendError::OutOfMemory { .. })));
}
