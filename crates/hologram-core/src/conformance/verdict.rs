//! The short self-test of native kernels: some cases of an operation, with the kernels that [`crate::selftest`] lets through.

use hologram_backends::BackendError;

use super::groups;
use super::run::{Outcome, all_cases, attempt, work};
use crate::error::{CoreError, Result};
use crate::executor::Executor;

/// The most multiplications of a case, and the most cases.
const MAX_WORK: usize = 1 << 16;
const MAX_CASES: usize = 6;
/// Cases of the same formats.
const MAX_ALIKE: usize = 2;

/// What became of the cases that a kernel serves; `Ok(Err(…))` says of the first that failed how.
///
/// # Errors
/// When the device fails in a way that says nothing of the kernel.
pub(crate) fn self_test(executor: &Executor, op: &str) -> Result<std::result::Result<usize, String>> {
    let mut tested: Vec<String> = Vec::new();
    let mut run = |dtype: String, name: String, case: &dyn Fn() -> Result<Outcome>| {
        let alike = tested.iter().filter(|t| **t == dtype).count();
        if tested.len() == MAX_CASES || alike == MAX_ALIKE {
            return Ok(None);
        }
        match case() {
            Ok(Outcome::NoKernel) | Err(CoreError::Backend(BackendError::Unsupported { .. })) => return Ok(None),
            Ok(Outcome::Right) => {}
            Ok(Outcome::Wrong(reason)) => return Ok(Some(format!("{name}: {reason}"))),
            // It cannot be compiled, or does not end well.
            Err(CoreError::Backend(e @ BackendError::Kernel { .. })) => return Ok(Some(format!("{name}: {e}"))),
            Err(e) => return Err(e),
        }
        tested.push(dtype);
        Ok(None)
    };
    if op == groups::NAME {
        let cases = groups::cases(|format| executor.backend().policy().weight_layout(format));
        for (index, case) in cases.iter().enumerate().filter(|(_, case)| case.work() <= MAX_WORK) {
            let once = || case.attempt(executor, index, true).map(|(_, outcome)| outcome);
            if let Some(failure) = run(case.dtype(), case.name(), &once)? {
                return Ok(Err(failure));
            }
        }
        return Ok(Ok(tested.len()));
    }
    // A kernel that copies a view is one of copies.
    let op = op.strip_suffix("_view").unwrap_or(op);
    let cases = all_cases().iter().filter(|case| case.op.name() == op);
    for (index, case) in cases.enumerate().filter(|(_, case)| work(case) <= MAX_WORK) {
        if let Some(failure) = run(case.dtype(), case.to_string(), &|| attempt(executor, index, case, true))? {
            return Ok(Err(failure));
        }
    }
    Ok(Ok(tested.len()))
}
