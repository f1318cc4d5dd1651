//! Every operation's cases on the Metal backend, as program and as native kernel; the kernels run on the CPU.

use std::sync::Mutex;

use hologram_backends::take_notes;
use hologram_core::{Executor, conformance, ops};

/// A static device, such as that of `conformance_suite!`, would be alive at the end of the process.
#[test]
fn every_operation_computes_what_its_reference_does() {
    let mut names: Vec<&str> = ops::cases().iter().map(|case| case.op.name()).collect();
    names.sort_unstable();
    names.dedup();
    names.push("groups");
    let executor = Executor::open("metal", None).unwrap();
    let (queue, failures, count) = (Mutex::new(names), Mutex::new(Vec::new()), Mutex::new(0));
    std::thread::scope(|scope| {
        // More than processors: what several ask the compiler for at once takes it half the time.
        for _ in 0..16 {
            scope.spawn(|| {
                while let Some(op) = { queue.lock().unwrap().pop() } {
                    let results = conformance::run_op(&executor, op, usize::MAX);
                    assert!(!results.is_empty(), "{op} has no cases");
                    *count.lock().unwrap() += results.len();
                    failures
                        .lock()
                        .unwrap()
                        .extend(results.iter().filter(|r| r.failure.is_some()).map(|r| r.to_string()));
                }
            });
        }
    });
    let (failures, count) = (failures.into_inner().unwrap(), count.into_inner().unwrap());
    assert!(failures.is_empty(), "{} of {count} cases fail:\n{}", failures.len(), failures.join("\n"));
    // Kernels that failed their self-test did not serve.
    assert_eq!(take_notes(), [""; 0]);
    drop(executor);
    assert_eq!(metal_double::live_objects(), 0);
}
