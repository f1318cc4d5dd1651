//! The operations that `bench ops` measures, on operands larger than any cache.

use anyhow::Result;
use hologram_backends::{BackendType, CeilingKind, DType};
use hologram_core::ops::AttentionPrecision;
use hologram_core::{Executor, Graph, NodeId, Tensor, conformance};
use hologram_isa::Type;
use hologram_llm::random_tensor;

/// The names that `--only` accepts.
pub(super) const NAMES: &[&str] =
    &["copy", "relu", "add", "mul", "chain", "sum", "softmax", "rms_norm", "matmul", "attention", "launch"];

/// The names that `--sweep` accepts: operations whose size is one number.
pub(super) const SWEPT: &[&str] = &["copy", "relu", "add", "mul", "chain", "sum", "softmax", "rms_norm", "matmul"];

/// Sizes by kind of device, larger than the caches.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// Elements of elementwise operands: 256 MiB each.
    elements: usize,
    /// Rows of 8192 elements.
    rows: usize,
    /// Side of square matrices.
    square: usize,
    /// Total bytes of the operands through which repeated small operations rotate.
    rotate: usize,
}

impl Sizes {
    /// The sizes for a device; for several devices, those of the CPU.
    pub(super) fn of(device: BackendType) -> Sizes {
        let cpu = Sizes { elements: 64 << 20, rows: 8192, square: 2048, rotate: 128 << 20 };
        match device {
            BackendType::Cpu | BackendType::Reference => cpu,
            _ => Sizes { rows: 16384, square: 4096, rotate: 256 << 20, ..cpu },
        }
    }
}

/// An operation to measure.
pub(super) struct Case {
    pub op: &'static str,
    pub dtype: String,
    pub shape: String,
    /// Bytes read and written once each, and arithmetic operations, of one operation.
    pub bytes: f64,
    pub flop: f64,
    /// The limiting resource.
    pub bound: CeilingKind,
    pub graph: Graph,
    /// Number of times that the graph contains the operation.
    pub count: usize,
    pub fast: bool,
}

/// Handles one case.
pub(super) type Visit<'v> = dyn FnMut(Case) -> Result<()> + 'v;

/// Makes cases one at a time, so that only one uses memory.
pub(super) struct Cases<'a> {
    pub executor: &'a Executor,
    pub sizes: Sizes,
    /// The selected operations; empty selects all.
    pub only: &'a [String],
}

/// Appends an operation on one or two operands to a graph.
type Build<'b> = &'b dyn Fn(&mut Graph, NodeId, NodeId) -> hologram_core::Result<NodeId>;

impl Cases<'_> {
    pub(super) fn wants(&self, op: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|o| o == op)
    }

    /// Visits the cases of all selected operations except launches.
    pub(super) fn all(&self, visit: &mut Visit<'_>) -> Result<()> {
        self.elementwise(self.sizes.elements, visit)?;
        self.rows(self.sizes.rows, 8192, visit)?;
        if self.wants("matmul") {
            self.matmuls(visit)?;
        }
        if self.wants("attention") {
            self.attention(visit)?;
        }
        Ok(())
    }

    pub(super) fn random(&self, format: DType, shape: &[usize], seed: u32) -> Result<Tensor> {
        Ok(random_tensor(self.executor, format, shape, seed)?)
    }

    /// Elementwise operations on vectors of `n` elements.
    pub(super) fn elementwise(&self, n: usize, visit: &mut Visit<'_>) -> Result<()> {
        let names = ["copy", "relu", "add", "mul", "chain"];
        if !names.iter().any(|name| self.wants(name)) {
            return Ok(());
        }
        let (x, y) = (self.random(DType::F32, &[n], 1)?, self.random(DType::F32, &[n], 2)?);
        let quarter = Tensor::from_slice(self.executor, &[], &[0.25f32])?;
        let (bytes, elements) = (4.0 * n as f64, n as f64);
        let chain: Build<'_> = &|g, x, y| {
            let quarter = g.constant(&quarter)?;
            conformance::chain(g, x, y, quarter)
        };
        let unary = (2.0 * bytes, CeilingKind::Copy);
        let binary = (3.0 * bytes, CeilingKind::Triad);
        let cases: [(&'static str, Build<'_>, _, f64, bool); 6] = [
            ("copy", &|g, x, _| g.copy(x), unary, 0.0, false),
            ("relu", &|g, x, _| g.relu(x), unary, 1.0, false),
            ("add", &|g, x, y| g.add(x, y), binary, 1.0, false),
            ("mul", &|g, x, y| g.mul(x, y), binary, 1.0, false),
            ("chain", chain, binary, 11.0, false),
            ("chain", chain, binary, 11.0, true),
        ];
        for (op, build, (bytes, bound), operations, fast) in cases {
            if !self.wants(op) {
                continue;
            }
            let mut graph = Graph::new();
            let (x, y) = (graph.constant(&x)?, graph.constant(&y)?);
            let result = build(&mut graph, x, y)?;
            graph.output("result", result)?;
            let dtype = if fast { "f32 fast" } else { "f32" }.into();
            let (shape, flop) = (n.to_string(), operations * elements);
            visit(Case { op, dtype, shape, bytes, flop, bound, graph, count: 1, fast })?;
        }
        Ok(())
    }

    /// Operations on rows of `d` elements.
    pub(super) fn rows(&self, rows: usize, d: usize, visit: &mut Visit<'_>) -> Result<()> {
        if !["sum", "softmax", "rms_norm"].iter().any(|name| self.wants(name)) {
            return Ok(());
        }
        let x = self.random(DType::F32, &[rows, d], 3)?;
        let w = self.random(DType::F32, &[d], 4)?;
        let (all, elements) = (rows * d, (rows * d) as f64);
        let (both, copy) = (format!("{rows} × {d}"), CeilingKind::Copy);
        let sum: Build<'_> = &|g, x, _| {
            let x = g.reshape(x, &[all.into()])?;
            g.reduce_sum(x)
        };
        let cases: [(&'static str, Build<'_>, String, f64, f64, CeilingKind); 3] = [
            ("sum", sum, all.to_string(), 4.0, 1.0, CeilingKind::Read),
            ("softmax", &|g, x, _| g.softmax_rows(x), both.clone(), 8.0, 4.0, copy),
            ("rms_norm", &|g, x, w| g.rms_norm(x, w, 1e-5), both, 8.0, 4.0, copy),
        ];
        for (op, build, shape, bytes, operations, bound) in cases {
            if !self.wants(op) {
                continue;
            }
            let mut graph = Graph::new();
            let (x, w) = (graph.constant(&x)?, graph.constant(&w)?);
            let result = build(&mut graph, x, w)?;
            graph.output("result", result)?;
            let (bytes, flop) = (bytes * elements, operations * elements);
            visit(Case { op, dtype: "f32".into(), shape, bytes, flop, bound, graph, count: 1, fast: false })?;
        }
        Ok(())
    }

    fn matmuls(&self, visit: &mut Visit<'_>) -> Result<()> {
        let n = self.sizes.square;
        for format in [DType::F32, DType::BF16, DType::Q8_0, DType::TQ2_0] {
            self.matmul(format, [n, n, n], visit)?;
        }
        // The product of a decode step with the feed-forward matrix of an 8B model.
        for format in [DType::BF16, DType::F16, DType::Q8_0, DType::Q4_0, DType::TQ2_0] {
            self.matmul(format, [1, 14336, 4096], visit)?;
        }
        Ok(())
    }

    /// x [m, k] times w [n, k]. For small m, rotates through more matrices than any cache holds.
    pub(super) fn matmul(&self, format: DType, [m, n, k]: [usize; 3], visit: &mut Visit<'_>) -> Result<()> {
        let backend = self.executor.backend();
        let layout = backend.policy().weight_layout(format);
        let choices = match format {
            w if w.is_ternary() => vec![DType::I8Groups { group: k as u32 }],
            w if w.has_float_codes() => vec![DType::F32, DType::BF16, DType::F8Groups { group: k as u32 }],
            w if w.is_quantized_weight() => {
                vec![DType::I8Groups { group: w.block_len() as u32 }, DType::I8Groups { group: 32 }, DType::BF16]
            }
            DType::BF16 => vec![DType::BF16],
            _ => vec![DType::F32],
        };
        let activations = backend.policy().activations(layout, k, m, &choices).unwrap_or(choices[0]);
        let x = self.random(DType::F32, &[m, k], 5)?;
        let first = self.random(layout, &[n, k], 6)?;
        let count = if m > 1 { 1 } else { self.sizes.rotate.div_ceil(first.bytes()) };
        let mut weights = vec![first];
        for i in 1..count {
            weights.push(self.random(layout, &[n, k], 6 + i as u32)?);
        }
        // The activations are converted once.
        let x = self.executor.eval([&x], |g, [x]| match activations {
            DType::I8Groups { group } => g.quantize(x, group, 0.0),
            DType::F8Groups { group } => g.quantize_f8(x, group),
            DType::BF16 => g.cast(x, Type::BF16),
            _ => g.copy(x),
        })?;
        let mut graph = Graph::new();
        let v = graph.constant(&x)?;
        for (i, w) in weights.iter().enumerate() {
            let w = graph.constant(w)?;
            let y = graph.linear(v, w)?;
            graph.output(&i.to_string(), y)?;
        }
        visit(Case {
            op: "matmul",
            dtype: format!("{} × {}", activations.name(), format.name()),
            shape: format!("{m} × {n} × {k}"),
            bytes: (weights[0].bytes() + x.bytes() + 4 * m * n) as f64,
            flop: 2.0 * (m * n * k) as f64,
            bound: match activations {
                _ if m == 1 => CeilingKind::Read,
                // Tensor cores multiply floats of 8 bits as fast as integers.
                DType::I8Groups { .. } | DType::F8Groups { .. } => CeilingKind::I8,
                DType::BF16 => CeilingKind::Bf16,
                _ => CeilingKind::F32,
            },
            graph,
            count,
            fast: false,
        })
    }

    /// One token per sequence against its cache, with the heads of an 8B model.
    fn attention(&self, visit: &mut Visit<'_>) -> Result<()> {
        const BLOCK: usize = 32;
        let (heads, kv_heads, d) = (32, 8, 128);
        for (sequences, length) in [(1, 4096), (8, 8192)] {
            let per_sequence = length / BLOCK;
            let cache = [sequences * per_sequence, kv_heads, BLOCK, d];
            let bytes = 2 * 2 * cache.iter().product::<usize>();
            // A different cache each time, so that the device's caches hold little of it.
            let count = self.sizes.rotate.div_ceil(bytes).max(2);
            let q = self.random(DType::F32, &[sequences, heads, d], 7)?;
            let numbers = |f: &dyn Fn(usize) -> usize, n: usize| -> Vec<u32> { (0..n).map(|i| f(i) as u32).collect() };
            let tensor = |shape: &[usize], data: Vec<u32>| Tensor::from_slice(self.executor, shape, &data);
            let positions = tensor(&[sequences], numbers(&|_| length - 1, sequences))?;
            let indices = tensor(&[sequences], numbers(&|i| i, sequences))?;
            let table = tensor(&[sequences, per_sequence], numbers(&|i| i, sequences * per_sequence))?;
            let mut graph = Graph::new();
            let [q, positions, indices, table] = [&q, &positions, &indices, &table].map(|t| graph.constant(t));
            let (q, positions, indices, table) = (q?, positions?, indices?, table?);
            let scale = 1.0 / (d as f32).sqrt();
            for i in 0..count {
                let (k, v) = (self.random(DType::F16, &cache, 8)?, self.random(DType::F16, &cache, 9)?);
                let (k, v) = (graph.constant(&k)?, graph.constant(&v)?);
                let precision = AttentionPrecision::BF16;
                let y = graph.attention_with(q, k, v, positions, indices, table, scale, precision)?;
                graph.output(&i.to_string(), y)?;
            }
            visit(Case {
                op: "attention",
                dtype: "f16 cache".into(),
                shape: format!("{sequences} × {length}, {heads}/{kv_heads} × {d}"),
                bytes: (bytes + 8 * sequences * heads * d) as f64,
                flop: 4.0 * (sequences * length * heads * d) as f64,
                bound: CeilingKind::Read,
                graph,
                count,
                fast: false,
            })?;
        }
        Ok(())
    }
}
