//! `hologram bench ops --sweep`: the time of an operation by size, and the size from which one device is faster than
//! another.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use hologram_backends::{BackendType, DType};
use hologram_core::{CompileOptions, Executor};
use serde_json::json;

use super::cases::{Case, Cases, Sizes};
use super::sorted_median;
use crate::args::BenchOpsArgs;

/// Bytes of the first operand.
const SIZES: [usize; 10] =
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20];
/// Maximum size of matrices.
const MATRIX: usize = 16 << 20;
/// Number of samples, whose median counts, and their minimum duration.
const SAMPLES: usize = 5;
const SAMPLE: Duration = Duration::from_millis(4);
/// Maximum calls per sample.
const CALLS: usize = 1000;

/// A measured point.
struct Point {
    op: &'static str,
    bytes: usize,
    /// Nanoseconds per call, including the wait for its result.
    ns: f64,
}

/// Runs the command on these devices.
///
/// # Errors
/// When a device fails.
pub(super) fn run(args: &BenchOpsArgs, executors: &[Executor]) -> Result<()> {
    let mut curves = Vec::new();
    for executor in executors {
        let device = executor.info().backend;
        let mut points = Vec::new();
        points_of(args, executor, &mut |point| {
            if args.json {
                let line = json!({"op": point.op, "device": device.name(), "bytes": point.bytes, "ns": point.ns});
                writeln!(std::io::stdout(), "{line}")?;
            }
            points.push(point);
            Ok(())
        })?;
        curves.push((device, points));
    }
    if args.json {
        return Ok(());
    }
    print(&curves)
}

/// Measures every operation at every size on a device.
fn points_of(args: &BenchOpsArgs, executor: &Executor, done: &mut dyn FnMut(Point) -> Result<()>) -> Result<()> {
    let cases = Cases { executor, sizes: Sizes::of(BackendType::Cpu), only: &args.only };
    for bytes in SIZES {
        let (n, d) = (bytes / 4, (bytes / 4).min(1024));
        let mut visit = |case: Case| if case.fast { Ok(()) } else { done(point(executor, &case, bytes)?) };
        cases.elementwise(n, &mut visit)?;
        cases.rows(n / d, d, &mut visit)?;
        if cases.wants("matmul") && bytes <= MATRIX {
            let side = n.isqrt();
            cases.matmul(DType::F32, [side; 3], &mut visit)?;
        }
    }
    Ok(())
}

/// Measures calls including the wait for their result.
fn point(executor: &Executor, case: &Case, bytes: usize) -> Result<Point> {
    let mut plan = case.graph.compile_with(executor, &[], CompileOptions::default())?;
    let mut time = |calls: usize| -> Result<f64> {
        let start = Instant::now();
        for _ in 0..calls {
            plan.run()?;
            executor.backend().synchronize()?;
        }
        Ok(start.elapsed().as_secs_f64())
    };
    time(1)?;
    let once = time(1)?;
    let calls = (SAMPLE.as_secs_f64() / once).ceil().clamp(1.0, CALLS as f64) as usize;
    let mut samples = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        samples.push(time(calls)? * 1e9 / calls as f64);
    }
    Ok(Point { op: case.op, bytes, ns: sorted_median(&mut samples) })
}

fn print(curves: &[(BackendType, Vec<Point>)]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    write!(out, "{:<10} {:>8}", "operation", "size")?;
    for (device, _) in curves {
        write!(out, " {:>12} {:>9}", format!("{device} ns"), "GB/s of x")?;
    }
    writeln!(out)?;
    let mut ops: Vec<&str> = Vec::new();
    for point in curves.iter().flat_map(|(_, points)| points) {
        if !ops.contains(&point.op) {
            ops.push(point.op);
        }
    }
    for op in ops {
        let of_op = |points: &[Point]| -> Vec<(usize, f64)> {
            points.iter().filter(|p| p.op == op).map(|p| (p.bytes, p.ns)).collect()
        };
        let columns: Vec<_> = curves.iter().map(|(device, points)| (*device, of_op(points))).collect();
        for (i, (bytes, _)) in columns[0].1.iter().enumerate() {
            write!(out, "{op:<10} {:>8}", size(*bytes))?;
            for (bytes, ns) in columns.iter().filter_map(|(_, points)| points.get(i)) {
                write!(out, " {ns:>12.0} {:>9.2}", *bytes as f64 / ns)?;
            }
            writeln!(out)?;
        }
        for (a, fast) in &columns {
            for (b, slow) in columns.iter().filter(|(b, _)| b != a) {
                if let Some(bytes) = overtakes(fast, slow) {
                    writeln!(out, "{op}: {a} is faster than {b} from {} on", size(bytes))?;
                }
            }
        }
    }
    if let [(device, _)] = curves {
        writeln!(out, "{device} is the only device that was measured (--device all: every one that this machine has)")?;
    }
    Ok(())
}

/// The size from which the first curve stays below the second.
fn overtakes(fast: &[(usize, f64)], slow: &[(usize, f64)]) -> Option<usize> {
    let pairs = fast.iter().zip(slow).rev().take_while(|(a, b)| a.1 < b.1);
    pairs.last().map(|(a, _)| a.0)
}

/// A power of two in the largest unit.
fn size(bytes: usize) -> String {
    match bytes {
        0x10_0000.. => format!("{} MiB", bytes >> 20),
        _ => format!("{} KiB", bytes >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_overtakes_where_it_stays_below() {
        let curve = |ns: [f64; 4]| -> Vec<_> { SIZES.into_iter().zip(ns).collect() };
        let cases = [
            ([9.0, 9.0, 9.0, 9.0], [1.0, 2.0, 10.0, 20.0], Some(SIZES[2])),
            ([9.0, 1.0, 9.0, 9.0], [8.0, 8.0, 8.0, 10.0], Some(SIZES[3])),
            ([1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0], Some(SIZES[0])),
            ([1.0, 1.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0], None),
        ];
        for (fast, slow, from) in cases {
            assert_eq!(overtakes(&curve(fast), &curve(slow)), from, "{fast:?} {slow:?}");
        }
    }

    #[test]
    fn sizes_are_named_by_their_unit() {
        assert_eq!(SIZES.map(size)[..6], ["1 KiB", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB"]);
    }
}
