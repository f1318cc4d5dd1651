//! Every operation's cases on the Metal backend, as program and as native kernel; the kernels run on the CPU.

use hologram_backends::take_notes;
use hologram_core::{Executor, conformance};

/// One case in three of native kernels, and of each operation and type one case; of each operation one as program too,
/// because `programs` has every instruction.
#[test]
fn every_operation_computes_what_its_reference_does() {
    check(false);
}

/// Every case, as program and natively, which are thousands of texts for the compiler.
#[test]
#[ignore = "minutes: the nightly workflow"]
fn nightly_every_case_computes_what_its_reference_does() {
    check(true);
}

/// A static device, such as that of `conformance_suite!`, would be alive at the end of the process.
fn check(all: bool) {
    let executor = Executor::open("metal", None).unwrap();
    // More than processors: what several ask the compiler for at once takes it half the time.
    let results = conformance::run_on_threads(&executor, 48, all);
    assert!(results.iter().any(|result| result.native), "no kernel ran");
    for op in conformance::op_names() {
        assert!(results.iter().any(|result| result.op == op), "{op} has no cases");
    }
    let failures: Vec<String> = results.iter().filter(|r| r.failure.is_some()).map(|r| r.to_string()).collect();
    assert!(failures.is_empty(), "{} of {} cases fail:\n{}", failures.len(), results.len(), failures.join("\n"));
    // Kernels that failed their self-test did not serve.
    assert_eq!(take_notes(), [""; 0]);
    drop(executor);
    assert_eq!(metal_double::live_objects(), 0);
}
