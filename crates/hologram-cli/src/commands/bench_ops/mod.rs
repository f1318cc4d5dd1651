//! `hologram bench ops`: the speed of single operations, each measured in turn with its ceiling.

mod cases;
mod full;
mod sweep;

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hologram_backends::{BackendType, Binding, CeilingKind, CommandList, Launch, LaunchConfig, Precision};
use hologram_core::{CompileOptions, Executor, Graph, Plan, Tensor};
use hologram_isa::{Access, Builder, Type};
use serde_json::json;

use self::cases::{Case, Cases, NAMES, SWEPT, Sizes};
use super::bench_tests::median;
use super::devices::workers;
use crate::args::{BenchOpsArgs, usage};
use crate::text::shown;

/// Minimum duration of a sample.
const SAMPLE: Duration = Duration::from_millis(25);
/// Number of samples, whose median counts, and the maximum time spent on more of them.
const SAMPLES: usize = 11;
const SAMPLES_TIME: Duration = Duration::from_secs(6);
/// Maximum runs per sample.
const RUNS: usize = 1000;

/// One line of output.
#[derive(Clone)]
struct Line {
    op: &'static str,
    /// None without operands.
    dtype: Option<String>,
    shape: String,
    device: BackendType,
    /// Median time of one operation; for `launch` only the host's time.
    ns: f64,
    gb_per_s: Option<f64>,
    gflop_per_s: Option<f64>,
    /// Share of the ceiling, and its name.
    share: Option<f64>,
    ceiling: Option<&'static str>,
}

impl Line {
    /// The type as a table shows it.
    fn dtype(&self) -> &str {
        self.dtype.as_deref().unwrap_or("-")
    }
}

/// Runs the command.
///
/// # Errors
/// When the device cannot be opened or fails.
pub fn run(args: &BenchOpsArgs) -> Result<()> {
    let names = [NAMES, full::NAMES].concat();
    if let Some(name) = args.only.iter().find(|name| !names.contains(&name.as_str())) {
        return usage(format!("--only names {}, but must name some of {}", shown(name), names.join(", ")));
    }
    let fixed: Vec<&str> = args.only.iter().map(String::as_str).filter(|name| !SWEPT.contains(name)).collect();
    if args.sweep && !fixed.is_empty() {
        return usage(format!("--sweep does not measure {}; it measures {}", fixed.join(", "), SWEPT.join(", ")));
    }
    let executors = open(args)?;
    if args.sweep {
        return sweep::run(args, &executors);
    }
    let [executor] = executors.as_slice() else { return side_by_side(args, &executors) };
    let info = executor.info();
    if !args.json {
        let mut out = std::io::stdout().lock();
        let workers = workers(info).map(|w| format!(", {w}")).unwrap_or_default();
        writeln!(out, "{} ({}){workers}", info.backend, info.name)?;
        writeln!(
            out,
            "{:<12} {:<18} {:<32} {:>12} {:>9} {:>10} {:>7} of",
            "operation", "type", "shape", "ns", "GB/s", "GFLOP/s", "share"
        )?;
    }
    measure_all(args, executor, Sizes::of(info.backend), &mut |line| print(&line, args.json))
}

/// The devices to measure.
fn open(args: &BenchOpsArgs) -> Result<Vec<Executor>> {
    if args.device.device.eq_ignore_ascii_case("all") {
        if args.device.precision != Precision::Exact {
            return usage("--precision is for one device, not for all");
        }
        let kinds = hologram_backends::available_backends();
        let threads = args.device.threads().map(|n| n as usize);
        let measured = kinds.into_iter().filter(|kind| *kind != BackendType::Reference);
        return measured.map(|kind| Ok(Executor::open(kind.name(), threads)?)).collect();
    }
    let executor = args.device.open()?;
    if executor.info().backend == BackendType::Reference {
        bail!("the reference interpreter is too slow to benchmark; choose another device");
    }
    Ok(vec![executor])
}

/// Measures all selected operations on one device.
fn measure_all(
    args: &BenchOpsArgs,
    executor: &Executor,
    sizes: Sizes,
    done: &mut dyn FnMut(Line) -> Result<()>,
) -> Result<()> {
    let cases = Cases { executor, sizes, only: &args.only };
    let mut bench = Bench { executor, ceiling: None, copy_bandwidth: None };
    cases.all(&mut |case| done(bench.measure(&case)?))?;
    if args.full || !args.only.is_empty() {
        cases.full(&mut |case| done(bench.measure(&case)?))?;
    }
    if cases.wants("launch") {
        done(bench.empty_launch()?)?;
        done(bench.small_add()?)?;
    }
    Ok(())
}

/// Measures several devices side by side, with the sizes for a CPU.
fn side_by_side(args: &BenchOpsArgs, executors: &[Executor]) -> Result<()> {
    let mut columns: Vec<Vec<Line>> = Vec::new();
    for executor in executors {
        let mut lines = Vec::new();
        measure_all(args, executor, Sizes::of(BackendType::Cpu), &mut |line| {
            if args.json {
                print(&line, true)?;
            }
            lines.push(line);
            Ok(())
        })?;
        columns.push(lines);
    }
    if args.json {
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    write!(out, "{:<12} {:<18} {:<32}", "operation", "type", "shape")?;
    for executor in executors {
        write!(out, " {:>12} {:>7}", format!("{} ns", executor.info().backend), "share")?;
    }
    writeln!(out)?;
    for (i, first) in columns[0].iter().enumerate() {
        write!(out, "{:<12} {:<18} {:<32}", first.op, first.dtype(), first.shape)?;
        for line in columns.iter().filter_map(|lines| lines.get(i)) {
            write!(out, " {:>12.0} {:>7}", line.ns, percent(line.share))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Measurements on one device.
struct Bench<'a> {
    executor: &'a Executor,
    /// The last operation's ceiling, with the work of one run.
    ceiling: Option<(CeilingKind, CommandList, f64)>,
    /// For devices without launches of that kind.
    copy_bandwidth: Option<f64>,
}

impl Bench<'_> {
    /// Prepares a ceiling; returns whether the device supports it.
    fn prepare(&mut self, kind: CeilingKind) -> Result<bool> {
        let backend = self.executor.backend();
        if !self.ceiling.as_ref().is_some_and(|(k, _, _)| *k == kind) {
            self.ceiling = None;
            if let Some(ceiling) = backend.measure().ceiling(kind)? {
                let list = backend.record(&[ceiling.launch])?;
                backend.submit(&list)?;
                backend.synchronize()?;
                self.ceiling = Some((kind, list, ceiling.amount));
            }
        }
        Ok(self.ceiling.is_some())
    }

    /// Work per nanosecond of the prepared ceiling, measured once.
    fn ceiling_rate(&self) -> Result<f64> {
        let Some((_, list, amount)) = &self.ceiling else { return Ok(0.0) };
        let backend = self.executor.backend();
        let start = Instant::now();
        backend.submit(list)?;
        backend.synchronize()?;
        Ok(amount / (start.elapsed().as_secs_f64() * 1e9))
    }

    /// Measures a case in turn with its ceiling.
    fn measure(&mut self, case: &Case) -> Result<Line> {
        let options = CompileOptions { fast: case.fast, ..CompileOptions::default() };
        let mut plan = case.graph.compile_with(self.executor, &[], options)?;
        let beside = self.prepare(case.bound)?;
        self.time(&mut plan, 1)?;
        let once = self.time(&mut plan, 1)?;
        let times = (SAMPLE.as_secs_f64() / once).ceil().clamp(1.0, RUNS as f64) as usize;
        let (mut samples, mut rates) = (Vec::new(), Vec::new());
        let start = Instant::now();
        while samples.is_empty() || samples.len() < SAMPLES && start.elapsed() < SAMPLES_TIME {
            if beside {
                rates.push(self.ceiling_rate()?);
            }
            samples.push(self.time(&mut plan, times)? * 1e9 / (times * case.count) as f64);
        }
        let memory = matches!(case.bound, CeilingKind::Read | CeilingKind::Copy | CeilingKind::Triad);
        if !beside && memory {
            let bandwidth = match self.copy_bandwidth {
                Some(bandwidth) => bandwidth,
                None => *self.copy_bandwidth.insert(self.executor.backend().measure().copy_bandwidth()?),
            };
            rates.push(bandwidth / 1e9);
        }
        // The share is the median over pairs, because a shared machine may change its speed between them.
        let amount = if memory { case.bytes } else { case.flop };
        let mut shares: Vec<f64> =
            samples.iter().zip(rates.iter().cycle()).map(|(ns, rate)| amount / ns / rate).collect();
        let share = (!shares.is_empty()).then(|| sorted_median(&mut shares));
        let ns = sorted_median(&mut samples);
        // Bytes per nanosecond are GB/s.
        let per_ns = |amount: f64| (amount > 0.0).then(|| amount / ns);
        let ceiling = match (share, beside) {
            (None, _) => None,
            (_, false) => Some("copy"),
            _ => Some(name(case.bound)),
        };
        let (gb_per_s, gflop_per_s) = (per_ns(case.bytes), per_ns(case.flop));
        let (dtype, shape) = (Some(case.dtype.clone()), case.shape.clone());
        Ok(Line { gb_per_s, gflop_per_s, share, ceiling, ..self.line(case.op, dtype, shape, ns) })
    }

    /// Seconds for some runs of a plan.
    fn time(&self, plan: &mut Plan, times: usize) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..times {
            plan.run()?;
        }
        self.executor.backend().synchronize()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// The host's time to submit a recorded program that does nothing.
    fn empty_launch(&self) -> Result<Line> {
        let backend = self.executor.backend();
        let mut b = Builder::new("empty", [1, 1, 1]);
        b.buffer("out", Type::F32, Access::Write);
        let pipeline = backend.compile(&b.finish()?)?;
        let buffer = backend.allocate_buffer(64)?;
        let config = LaunchConfig { grid: [1, 1, 1] };
        let list = backend.record(&[Launch { pipeline, bindings: vec![Binding::whole(&buffer)], config }])?;
        let ns = self.bursts(|| Ok(backend.submit(&list).map(|_| ())?))?;
        Ok(self.line("launch", None, "empty".into(), ns))
    }

    /// One call of a compiled addition of small vectors, to show the cost of the step block's copy and of the launch.
    fn small_add(&self) -> Result<Line> {
        const N: usize = 16384;
        let vector = |seed: f32| Tensor::from_slice(self.executor, &[N], &[seed; N]);
        let mut g = Graph::new();
        let (x, y) = (g.constant(&vector(1.0)?)?, g.constant(&vector(2.0)?)?);
        let sum = g.add(x, y)?;
        g.output("sum", sum)?;
        let mut plan = g.compile(self.executor, &[])?;
        let ns = self.bursts(|| Ok(plan.run()?))?;
        Ok(self.line("launch", Some("f32".into()), format!("add of {N}"), ns))
    }

    /// The median time per submission, over many bursts.
    fn bursts(&self, mut submit: impl FnMut() -> Result<()>) -> Result<f64> {
        const BURST: usize = 100;
        let mut samples = Vec::new();
        for _ in 0..50 {
            let start = Instant::now();
            for _ in 0..BURST {
                submit()?;
            }
            samples.push(start.elapsed().as_secs_f64() * 1e9 / BURST as f64);
            self.executor.backend().synchronize()?;
        }
        Ok(sorted_median(&mut samples))
    }

    fn line(&self, op: &'static str, dtype: Option<String>, shape: String, ns: f64) -> Line {
        let device = self.executor.info().backend;
        Line { op, dtype, shape, device, ns, gb_per_s: None, gflop_per_s: None, share: None, ceiling: None }
    }
}

/// The name of a ceiling in the table.
fn name(kind: CeilingKind) -> &'static str {
    match kind {
        CeilingKind::Read => "read",
        CeilingKind::Copy => "copy",
        CeilingKind::Triad => "triad",
        CeilingKind::F32 => "f32 rate",
        CeilingKind::Bf16 => "bf16 dots",
        CeilingKind::I8 => "i8 dots",
    }
}

fn sorted_median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    median(samples)
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |s| format!("{:.1}%", 100.0 * s))
}

fn print(line: &Line, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        let json = json!({
            "op": line.op,
            "dtype": line.dtype,
            "shape": line.shape,
            "device": line.device.name(),
            "ns": line.ns,
            "gb_per_s": line.gb_per_s,
            "gflop_per_s": line.gflop_per_s,
            "share": line.share,
            "ceiling": line.ceiling,
        });
        writeln!(out, "{json}")?;
    } else {
        let number = |v: Option<f64>| v.map_or_else(|| "-".into(), |v| format!("{v:.1}"));
        let (gb, gflop, share) = (number(line.gb_per_s), number(line.gflop_per_s), percent(line.share));
        let row = format!(
            "{:<12} {:<18} {:<32} {:>12.0} {gb:>9} {gflop:>10} {share:>7} {}",
            line.op,
            line.dtype(),
            line.shape,
            line.ns,
            line.ceiling.unwrap_or_default()
        );
        writeln!(out, "{}", row.trim_end())?;
    }
    Ok(out.flush()?)
}
