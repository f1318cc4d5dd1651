//! `hologram selftest`: every operation's test cases and random programs on the user's device.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::bail;
use hologram_backends::{BackendType, Precision, compare};
use hologram_core::conformance;
use serde_json::json;

use crate::args::{SelftestArgs, usage};
use crate::status::status;

/// Default number of random programs. After [`TIME`] no more than [`LEAST_PROGRAMS`] run, because a GPU's driver
/// takes a tenth of a second to compile one.
const PROGRAMS: u64 = 300;
const LEAST_PROGRAMS: u64 = 50;
const TIME: Duration = Duration::from_secs(14);
/// The environment variable for the number of random programs, also read by the tests of devices.
const PROGRAMS_VARIABLE: &str = "HOLOGRAM_RANDOM_PROGRAMS";
/// The environment variable for the maximum size of test cases, in multiplications.
const WORK_VARIABLE: &str = "HOLOGRAM_SELFTEST_WORK";
/// The same for the reference interpreter, which is slow by design.
const INTERPRETER_WORK: usize = 100_000;

/// One line: the number of test cases and the failures.
struct Line {
    op: String,
    dtype: String,
    cases: usize,
    failures: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// When the device cannot be opened, a test case fails, or standard output fails.
pub fn run(args: &SelftestArgs) -> anyhow::Result<()> {
    let started = Instant::now();
    let (programs, least) = number(PROGRAMS_VARIABLE)?.map_or((PROGRAMS, LEAST_PROGRAMS), |n| (n, n));
    let work = number(WORK_VARIABLE)?.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    if args.device.precision != Precision::Exact {
        return usage("--precision is not for selftest, which compares with exact products");
    }
    let executor = args.device.open()?;
    let info = executor.info();
    let mut out = std::io::stdout().lock();
    if !args.json {
        writeln!(out, "{} ({})", info.backend, info.name)?;
        writeln!(out, "{:<16} {:<20} {:>6} {:>7}", "operation", "type", "cases", "failed")?;
    }
    let (mut cases, mut failed) = (0, 0);
    let mut report = |line: Line| -> anyhow::Result<()> {
        cases += line.cases;
        failed += line.failures.len();
        let Line { op, dtype, cases, failures } = line;
        if args.json {
            writeln!(out, "{}", json!({ "op": op, "dtype": dtype, "cases": cases, "failed": failures.len() }))?;
        } else {
            writeln!(out, "{op:<16} {dtype:<20} {cases:>6} {:>7}", failures.len())?;
        }
        out.flush()?;
        for failure in failures {
            status!("{op}: {failure}\n");
        }
        Ok(())
    };
    let max_work = work.unwrap_or(if info.backend == BackendType::Reference { INTERPRETER_WORK } else { usize::MAX });
    for op in conformance::op_names() {
        let mut lines: Vec<Line> = Vec::new();
        for result in conformance::run_op(&executor, op, max_work) {
            let failure = result.failure.is_some().then(|| result.to_string());
            match lines.iter_mut().find(|l| l.dtype == result.dtype) {
                Some(line) => {
                    line.cases += 1;
                    line.failures.extend(failure);
                }
                None => {
                    let failures = failure.into_iter().collect();
                    lines.push(Line { op: op.into(), dtype: result.dtype, cases: 1, failures });
                }
            }
        }
        lines.into_iter().try_for_each(&mut report)?;
    }
    let (mut failures, mut ran) = (Vec::new(), 0);
    for seed in 0..programs {
        if seed >= least && started.elapsed() > TIME {
            break;
        }
        ran += 1;
        match compare::random_program(executor.backend().as_ref(), seed) {
            Ok(difference) => failures.extend(difference),
            Err(e) => failures.push(format!("seed {seed}: {e}")),
        }
    }
    report(Line { op: "random programs".into(), dtype: "all".into(), cases: ran, failures })?;
    if failed > 0 {
        bail!("{failed} of {cases} cases fail on {} ({})", info.backend, info.name);
    }
    if !args.json {
        writeln!(out, "{cases} cases, all right")?;
    }
    Ok(())
}

/// A number from the environment; `None` if the variable is unset or empty.
fn number(variable: &str) -> anyhow::Result<Option<u64>> {
    match std::env::var(variable) {
        Ok(n) if !n.is_empty() => match n.parse() {
            Ok(n) => Ok(Some(n)),
            Err(_) => bail!("{variable} is {n}, but must be a whole number"),
        },
        _ => Ok(None),
    }
}
