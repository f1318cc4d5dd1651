//! `hologram bench ops`: the speed of single operations, beside the copy bandwidth measured in the same run.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::bail;
use hologram_backends::{BackendType, Binding, Format, Launch, LaunchConfig};
use hologram_core::ops::AttentionPrecision;
use hologram_core::{CompileOptions, Executor, Graph, NodeId, Tensor, conformance};
use hologram_isa::{Access, Builder, Type};
use hologram_llm::random_tensor;
use serde_json::json;

use super::bench::median;
use crate::args::BenchOpsArgs;

/// How long a sample takes at least.
const SAMPLE: Duration = Duration::from_millis(25);
/// Samples of which the median counts, and for how long more of them are taken at most.
const SAMPLES: usize = 7;
const SAMPLES_TIME: Duration = Duration::from_secs(3);
/// The most runs of a sample.
const RUNS: usize = 1000;

/// Sizes by kind of device: large enough that caches do not serve what should come from memory.
struct Sizes {
    /// Elements of elementwise operands.
    elements: usize,
    /// Rows of 8192 elements.
    rows: usize,
    /// Of square matrices.
    square: usize,
    /// Bytes of the operands through which repeated small operations rotate.
    rotate: usize,
}

const GPU: Sizes = Sizes { elements: 64 << 20, rows: 16384, square: 4096, rotate: 256 << 20 };
const CPU: Sizes = Sizes { elements: 16 << 20, rows: 2048, square: 2048, rotate: 128 << 20 };

/// One line.
struct Line {
    op: &'static str,
    dtype: String,
    shape: String,
    /// Time of one operation; for `launch` the host's alone.
    ns: f64,
    /// Read and written once each.
    bytes: f64,
    flop: f64,
}

struct Bench<'a> {
    executor: &'a Executor,
    sizes: Sizes,
    json: bool,
    copy_bandwidth: f64,
}

/// Runs the command.
///
/// # Errors
/// When the device cannot be opened or fails.
pub fn run(args: &BenchOpsArgs) -> anyhow::Result<()> {
    let executor = args.device.open()?;
    let info = executor.info();
    let sizes = match info.backend {
        BackendType::Reference => bail!("the reference interpreter is not made for speed; measure another device"),
        BackendType::Cpu => CPU,
        BackendType::Cuda | BackendType::Metal => GPU,
    };
    let copy_bandwidth = executor.backend().copy_bandwidth()?;
    if !args.json {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{} ({}); copy bandwidth {:.1} GB/s", info.backend, info.name, copy_bandwidth / 1e9)?;
        writeln!(
            out,
            "{:<12} {:<22} {:<26} {:>12} {:>9} {:>10} {:>7}",
            "operation", "type", "shape", "ns", "GB/s", "GFLOP/s", "share"
        )?;
    }
    let bench = Bench { executor: &executor, sizes, json: args.json, copy_bandwidth };
    bench.elementwise()?;
    bench.rows()?;
    bench.matmuls()?;
    bench.attention()?;
    bench.launch()
}

impl Bench<'_> {
    fn random(&self, format: Format, shape: &[usize], seed: u32) -> anyhow::Result<Tensor> {
        Ok(random_tensor(self.executor, format, shape, seed)?)
    }

    fn elementwise(&self) -> anyhow::Result<()> {
        let n = self.sizes.elements;
        let (x, y) = (self.random(Format::F32, &[n], 1)?, self.random(Format::F32, &[n], 2)?);
        let quarter = Tensor::from_slice(self.executor, &[], &[0.25f32])?;
        let (bytes, elements) = (4.0 * n as f64, n as f64);
        let line =
            |op, dtype: &str, bytes, flop| Line { dtype: dtype.into(), bytes, flop, ..self.line(op, n.to_string()) };
        type Build<'b> = &'b dyn Fn(&mut Graph, NodeId, NodeId) -> hologram_core::Result<NodeId>;
        let chain: Build<'_> = &|g, x, y| {
            let quarter = g.constant(&quarter)?;
            conformance::chain(g, x, y, quarter)
        };
        let cases: [(Line, Build<'_>, bool); 4] = [
            (line("copy", "f32", 2.0 * bytes, 0.0), &|g, x, _| g.copy(x), false),
            (line("add", "f32", 3.0 * bytes, elements), &|g, x, y| g.add(x, y), false),
            (line("chain", "f32", 3.0 * bytes, 11.0 * elements), chain, false),
            (line("chain", "f32 fast", 3.0 * bytes, 11.0 * elements), chain, true),
        ];
        for (line, build, fast) in cases {
            let mut g = Graph::new();
            let (x, y) = (g.constant(&x)?, g.constant(&y)?);
            let result = build(&mut g, x, y)?;
            g.output("result", result)?;
            self.measure(line, &g, 1, fast)?;
        }
        Ok(())
    }

    fn rows(&self) -> anyhow::Result<()> {
        let (rows, d) = (self.sizes.rows, 8192);
        let x = self.random(Format::F32, &[rows, d], 3)?;
        let w = self.random(Format::F32, &[d], 4)?;
        let (elements, shape) = ((rows * d) as f64, format!("{rows} × {d}"));
        let line = |op, shape: &str, bytes, flop| Line { bytes, flop, ..self.line(op, shape.into()) };
        let all = rows * d;
        let mut g = Graph::new();
        let v = g.constant(&x)?;
        let v = g.reshape(v, &[all.into()])?;
        let v = g.reduce_sum(v)?;
        g.output("result", v)?;
        self.measure(line("sum", &all.to_string(), 4.0 * elements, elements), &g, 1, false)?;
        let mut g = Graph::new();
        let v = g.constant(&x)?;
        let v = g.softmax(v)?;
        g.output("result", v)?;
        self.measure(line("softmax", &shape, 8.0 * elements, 4.0 * elements), &g, 1, false)?;
        let mut g = Graph::new();
        let (v, w) = (g.constant(&x)?, g.constant(&w)?);
        let v = g.rms_norm(v, w, 1e-5)?;
        g.output("result", v)?;
        self.measure(line("rms_norm", &shape, 8.0 * elements, 4.0 * elements), &g, 1, false)
    }

    fn matmuls(&self) -> anyhow::Result<()> {
        let n = self.sizes.square;
        self.matmul(Format::BF16, n, n, n)?;
        // A decoding step's product, with the feed-forward matrix of an 8B model.
        for format in [Format::BF16, Format::F16, Format::Q8_0, Format::Q4_0, Format::TQ2_0] {
            self.matmul(format, 1, 14336, 4096)?;
        }
        Ok(())
    }

    /// x [m, k] with w [n, k]: where w is small, with as many matrices in turn as no cache holds.
    fn matmul(&self, format: Format, m: usize, n: usize, k: usize) -> anyhow::Result<()> {
        let backend = self.executor.backend();
        let layout = backend.weight_layout(format);
        let choices = match format {
            Format::Q8_0 | Format::Q4_0 => vec![Format::I8Groups { group: 32 }, Format::BF16],
            Format::TQ2_0 => vec![Format::I8Groups { group: k as u32 }],
            Format::BF16 => vec![Format::BF16],
            _ => vec![Format::F32],
        };
        let activations = backend.activations(layout, m, &choices).unwrap_or(choices[0]);
        let x = self.random(Format::F32, &[m, k], 5)?;
        let first = self.random(layout, &[n, k], 6)?;
        let count = if m > 1 { 1 } else { self.sizes.rotate.div_ceil(first.bytes()) };
        let mut weights = vec![first];
        for i in 1..count {
            weights.push(self.random(layout, &[n, k], 6 + i as u32)?);
        }
        // The activations are converted once for all.
        let x = self.executor.eval([&x], |g, [x]| match activations {
            Format::I8Groups { group } => g.quantize(x, group, 0.0),
            Format::BF16 => g.cast(x, Type::BF16),
            _ => g.copy(x),
        })?;
        let mut g = Graph::new();
        let v = g.constant(&x)?;
        for (i, w) in weights.iter().enumerate() {
            let w = g.constant(w)?;
            let y = g.matmul(v, w)?;
            g.output(&i.to_string(), y)?;
        }
        let line = Line {
            dtype: format!("{} × {}", activations.name(), format.name()),
            bytes: (weights[0].bytes() + x.bytes() + 4 * m * n) as f64,
            flop: 2.0 * (m * n * k) as f64,
            ..self.line("matmul", format!("{m} × {n} × {k}"))
        };
        self.measure(line, &g, count, false)
    }

    /// One token of each sequence against its cache, with the heads of an 8B model.
    fn attention(&self) -> anyhow::Result<()> {
        const BLOCK: usize = 32;
        let (heads, kv_heads, d) = (32, 8, 128);
        for (sequences, length) in [(1, 4096), (8, 8192)] {
            let per_sequence = length / BLOCK;
            let cache = [sequences * per_sequence, kv_heads, BLOCK, d];
            let bytes = 2 * 2 * cache.iter().product::<usize>();
            let count = self.sizes.rotate.div_ceil(bytes);
            let q = self.random(Format::F32, &[sequences, heads, d], 7)?;
            let numbers = |f: &dyn Fn(usize) -> usize, n: usize| -> Vec<u32> { (0..n).map(|i| f(i) as u32).collect() };
            let tensor = |shape: &[usize], data: Vec<u32>| Tensor::from_slice(self.executor, shape, &data);
            let positions = tensor(&[sequences], numbers(&|_| length - 1, sequences))?;
            let indices = tensor(&[sequences], numbers(&|i| i, sequences))?;
            let table = tensor(&[sequences, per_sequence], numbers(&|i| i, sequences * per_sequence))?;
            let mut g = Graph::new();
            let [q, positions, indices, table] = [&q, &positions, &indices, &table].map(|t| g.constant(t));
            let (q, positions, indices, table) = (q?, positions?, indices?, table?);
            let scale = 1.0 / (d as f32).sqrt();
            for i in 0..count {
                let (k, v) = (self.random(Format::F16, &cache, 8)?, self.random(Format::F16, &cache, 9)?);
                let (k, v) = (g.constant(&k)?, g.constant(&v)?);
                let y = g.attention_with(q, k, v, positions, indices, table, scale, AttentionPrecision::BF16)?;
                g.output(&i.to_string(), y)?;
            }
            let line = Line {
                dtype: "f16 cache".into(),
                bytes: (bytes + 8 * sequences * heads * d) as f64,
                flop: 4.0 * (sequences * length * heads * d) as f64,
                ..self.line("attention", format!("{sequences} × {length}, {heads}/{kv_heads} × {d}"))
            };
            self.measure(line, &g, count, false)?;
        }
        Ok(())
    }

    /// The host's time to submit a recorded program that does next to nothing.
    fn launch(&self) -> anyhow::Result<()> {
        const BURST: usize = 100;
        let backend = self.executor.backend();
        let mut b = Builder::new("small", [256, 1, 1]);
        let out = b.buffer("out", Type::F32, Access::Write);
        let i = b.global_x();
        b.store(out, i, 1.0f32);
        let pipeline = backend.compile(&b.finish()?)?;
        let buffer = backend.allocate_buffer(4096)?;
        let config = LaunchConfig { grid: [4, 1, 1] };
        let list = backend.record(&[Launch { pipeline, bindings: vec![Binding::whole(&buffer)], config }])?;
        let mut samples = Vec::new();
        for _ in 0..50 {
            let start = Instant::now();
            for _ in 0..BURST {
                backend.submit(&list)?;
            }
            samples.push(start.elapsed().as_secs_f64() * 1e9 / BURST as f64);
            backend.synchronize()?;
        }
        samples.sort_by(f64::total_cmp);
        self.print(&Line { ns: median(&samples), ..self.line("launch", "1024".into()) })
    }

    fn line(&self, op: &'static str, shape: String) -> Line {
        Line { op, dtype: "f32".into(), shape, ns: 0.0, bytes: 0.0, flop: 0.0 }
    }

    /// Measures a graph that does an operation `count` times, and prints the line.
    fn measure(&self, mut line: Line, graph: &Graph, count: usize, fast: bool) -> anyhow::Result<()> {
        let backend = self.executor.backend();
        let mut plan = graph.compile_with(self.executor, &[], CompileOptions { fast, ..CompileOptions::default() })?;
        let mut run = |times: usize| -> anyhow::Result<f64> {
            let start = Instant::now();
            for _ in 0..times {
                plan.run()?;
            }
            backend.synchronize()?;
            Ok(start.elapsed().as_secs_f64())
        };
        run(1)?;
        let once = run(1)?;
        let times = (SAMPLE.as_secs_f64() / once).ceil().clamp(1.0, RUNS as f64) as usize;
        let mut samples = Vec::new();
        let start = Instant::now();
        while samples.is_empty() || samples.len() < SAMPLES && start.elapsed() < SAMPLES_TIME {
            samples.push(run(times)? * 1e9 / (times * count) as f64);
        }
        samples.sort_by(f64::total_cmp);
        line.ns = median(&samples);
        self.print(&line)
    }

    fn print(&self, line: &Line) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        // Bytes a nanosecond are GB/s.
        let per_ns = |amount: f64| (amount > 0.0).then(|| amount / line.ns);
        let (gb, gflop) = (per_ns(line.bytes), per_ns(line.flop));
        let share = gb.map(|gb| gb * 1e9 / self.copy_bandwidth);
        if self.json {
            let json = json!({
                "op": line.op,
                "dtype": line.dtype,
                "shape": line.shape,
                "device": self.executor.info().backend.name(),
                "ns": line.ns,
                "gb_per_s": gb,
                "gflop_per_s": gflop,
                "share": share,
            });
            writeln!(out, "{json}")?;
        } else {
            let number = |v: Option<f64>| v.map_or_else(|| "-".into(), |v| format!("{v:.1}"));
            let share = share.map_or_else(|| "-".into(), |s| format!("{:.1}%", 100.0 * s));
            writeln!(
                out,
                "{:<12} {:<22} {:<26} {:>12.0} {:>9} {:>10} {share:>7}",
                line.op,
                line.dtype,
                line.shape,
                line.ns,
                number(gb),
                number(gflop)
            )?;
        }
        Ok(out.flush()?)
    }
}
