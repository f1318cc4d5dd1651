//! The additional operations of `bench ops --full`: those along dimensions, rearranging copies, products of any
//! strides, and 16-bit floats.

use anyhow::Result;
use hologram_backends::{CeilingKind, DType};
use hologram_core::ops::{Conv2dOptions, LossReduction, MatmulOptions, Reduction};
use hologram_core::{Dim, Graph, NodeId, Tensor};
use hologram_isa::Type;

use super::cases::{Case, Cases, Visit};

/// The additional names that `--only` accepts.
pub(super) const NAMES: &[&str] = &[
    "narrow",
    "log_softmax",
    "layer_norm",
    "reduce",
    "arg_max",
    "cumsum",
    "sort",
    "top_k",
    "permute",
    "concat",
    "pad",
    "take",
    "scatter_add",
    "batch_matmul",
    "conv2d",
    "loss",
    "random",
];

/// Work of an operation: bytes read and written once each, floating-point operations, and the limiting resource.
type Work = (f64, f64, CeilingKind);

/// Appends an operation on some operands to a graph.
type Build<'b> = &'b dyn Fn(&mut Graph, &[NodeId]) -> hologram_core::Result<NodeId>;

impl Cases<'_> {
    /// Visits the selected cases of this file.
    pub(super) fn full(&self, visit: &mut Visit<'_>) -> Result<()> {
        let wants = |names: &[&str]| names.iter().any(|name| self.wants(name));
        if wants(&["narrow", "log_softmax", "layer_norm", "reduce", "arg_max", "cumsum", "loss"]) {
            for format in [DType::F32, DType::F16, DType::BF16] {
                self.along(format, visit)?;
            }
        }
        if wants(&["sort", "top_k"]) {
            self.sorting(visit)?;
        }
        if wants(&["permute", "concat", "pad", "take", "scatter_add"]) {
            self.moving(visit)?;
        }
        if wants(&["batch_matmul", "conv2d"]) {
            self.products(visit)?;
        }
        if self.wants("random") {
            self.numbers(visit)?;
        }
        Ok(())
    }

    /// One case.
    fn one(
        &self,
        visit: &mut Visit<'_>,
        op: &'static str,
        (dtype, shape): (&str, &str),
        operands: &[&Tensor],
        (bytes, flop, bound): Work,
        build: Build<'_>,
    ) -> Result<()> {
        let mut graph = Graph::new();
        let nodes = operands.iter().map(|t| graph.constant(t)).collect::<hologram_core::Result<Vec<_>>>()?;
        let result = build(&mut graph, &nodes)?;
        graph.output("result", result)?;
        let (dtype, shape) = (dtype.to_string(), shape.to_string());
        visit(Case { op, dtype, shape, bytes, flop, bound, graph, count: 1, fast: false })
    }

    /// Operations on rows and columns of a square of 256 MiB, or 128 MiB of 16-bit floats.
    fn along(&self, format: DType, visit: &mut Visit<'_>) -> Result<()> {
        const N: usize = 8192;
        let (name, elements) = (format.name(), (N * N) as f64);
        let bytes = elements * format.block_bytes() as f64;
        let name = name.as_str();
        let shape = format!("{N} × {N}");
        let x = self.random(format, &[N, N], 31)?;
        let w = self.random(format, &[N], 32)?;
        let (once, twice) = ((bytes, elements, CeilingKind::Read), (2.0 * bytes, elements, CeilingKind::Copy));
        let reduce =
            |reduction: Reduction, dim: usize| move |g: &mut Graph, v: &[NodeId]| g.reduce(v[0], reduction, dim);
        let narrow = format != DType::F32;
        let rows = format!("{shape}, rows");
        let columns = format!("{shape}, columns");
        let (rows, columns) = (rows.as_str(), columns.as_str());
        let mut case = |group: &str, op, shape: &str, operands: &[&Tensor], work, build: Build<'_>| {
            if self.wants(group) || narrow && self.wants("narrow") {
                self.one(visit, op, (name, shape), operands, work, build)?;
            }
            Ok::<(), anyhow::Error>(())
        };
        if narrow {
            let y = self.random(format, &[N, N], 33)?;
            let triad = (3.0 * bytes, elements, CeilingKind::Triad);
            case("narrow", "relu", &shape, &[&x], twice, &|g, v| g.relu(v[0]))?;
            case("narrow", "add", &shape, &[&x, &y], triad, &|g, v| g.add(v[0], v[1]))?;
            case("narrow", "softmax", rows, &[&x], twice, &|g, v| g.softmax_rows(v[0]))?;
            case("narrow", "rms_norm", rows, &[&x, &w], twice, &|g, v| g.rms_norm(v[0], v[1], 1e-5))?;
            case("narrow", "sum", rows, &[&x], once, &reduce(Reduction::Sum, 1))?;
        }
        case("log_softmax", "softmax", columns, &[&x], twice, &|g, v| g.softmax(v[0], 0))?;
        case("log_softmax", "log_softmax", rows, &[&x], twice, &|g, v| g.log_softmax(v[0], 1))?;
        case("layer_norm", "layer_norm", rows, &[&x, &w], twice, &|g, v| g.layer_norm(v[0], v[1], v[1], 1e-5))?;
        case("reduce", "sum", columns, &[&x], once, &reduce(Reduction::Sum, 0))?;
        case("reduce", "max", rows, &[&x], once, &reduce(Reduction::Max, 1))?;
        case("reduce", "max", columns, &[&x], once, &reduce(Reduction::Max, 0))?;
        case("arg_max", "arg_max", rows, &[&x], once, &|g, v| g.arg_max(v[0], 1))?;
        case("arg_max", "arg_max", columns, &[&x], once, &|g, v| g.arg_max(v[0], 0))?;
        case("cumsum", "cumsum", rows, &[&x], twice, &|g, v| g.cumsum(v[0], 1))?;
        case("cumsum", "cumsum", columns, &[&x], twice, &|g, v| g.cumsum(v[0], 0))?;
        let classes: Vec<u32> = (0..N as u32).map(|i| i * 7919 % N as u32).collect();
        let classes = Tensor::from_slice(self.executor, &[N], &classes)?;
        case("loss", "cross_entropy", rows, &[&x, &classes], once, &|g, v| {
            g.cross_entropy(v[0], v[1], LossReduction::Mean)
        })?;
        if !narrow {
            let y = self.random(format, &[N, N], 33)?;
            let both = (2.0 * bytes, elements, CeilingKind::Read);
            case("loss", "mse_loss", &shape, &[&x, &y], both, &|g, v| g.mse_loss(v[0], v[1], LossReduction::Mean))?;
        }
        Ok(())
    }

    /// Sorts one long line, and rows. The ceiling is one pass over memory, which no sort reaches;
    /// `examples/sort_bench.rs` of hologram-core compares with the standard library.
    fn sorting(&self, visit: &mut Visit<'_>) -> Result<()> {
        for (rows, d) in [(1usize, 1usize << 20), (1 << 10, 1 << 12)] {
            let n = (rows * d) as f64;
            let x = self.random(DType::F32, &[rows, d], 34)?;
            let shape = format!("{rows} × {d}");
            let work = (8.0 * n, 0.0, CeilingKind::Copy);
            if self.wants("sort") {
                self.one(visit, "sort", ("f32", &shape), &[&x], work, &|g, v| g.sort(v[0], 1, false))?;
                self.one(visit, "arg_sort", ("f32", &shape), &[&x], work, &|g, v| g.arg_sort(v[0], 1, true))?;
            }
            if self.wants("top_k") {
                let read = (4.0 * n, 0.0, CeilingKind::Read);
                self.one(visit, "top_k", ("f32", &format!("{shape}, k 40")), &[&x], read, &|g, v| {
                    Ok(g.top_k(v[0], 40)?.1)
                })?;
            }
        }
        Ok(())
    }

    /// Operations that only move elements.
    fn moving(&self, visit: &mut Visit<'_>) -> Result<()> {
        const N: usize = 8192;
        let x = self.random(DType::F32, &[N, N], 35)?;
        let bytes = 4.0 * (N * N) as f64;
        let copy = (2.0 * bytes, 0.0, CeilingKind::Copy);
        let shape = format!("{N} × {N}");
        if self.wants("permute") {
            self.one(visit, "permute", ("f32", &shape), &[&x], copy, &|g, v| {
                let turned = g.permute(v[0], &[1, 0])?;
                g.copy(turned)
            })?;
            let added = (3.0 * bytes, 0.0, CeilingKind::Copy);
            self.one(visit, "permute", ("f32", &format!("{shape}, plus itself")), &[&x], added, &|g, v| {
                let turned = g.permute(v[0], &[1, 0])?;
                g.add(turned, v[0])
            })?;
            self.one(visit, "permute", ("f32", "64 × 128 × 64 × 128, 0 2 1 3"), &[&x], copy, &|g, v| {
                let sizes = [64, 128, 64, 128].map(Dim::Fixed);
                let heads = g.reshape(v[0], &sizes)?;
                let turned = g.permute(heads, &[0, 2, 1, 3])?;
                g.copy(turned)
            })?;
        }
        if self.wants("concat") {
            let y = self.random(DType::F32, &[N, N / 2], 36)?;
            let work = (3.0 * bytes, 0.0, CeilingKind::Copy);
            self.one(visit, "concat", ("f32", &format!("{shape} and half, rows")), &[&x, &y], work, &|g, v| {
                g.cat(v, 1)
            })?;
        }
        if self.wants("pad") {
            self.one(visit, "pad", ("f32", &format!("{shape}, 1 around")), &[&x], copy, &|g, v| {
                g.pad(v[0], &[(1, 1), (1, 1)], 0.0)
            })?;
        }
        let numbers = |n: usize, below: usize| -> Vec<u32> {
            (0..n as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u32 % below as u32).collect()
        };
        let rows = Tensor::from_slice(self.executor, &[N], &numbers(N, N))?;
        if self.wants("take") {
            self.one(visit, "take", ("f32", &format!("{shape}, whole rows")), &[&x, &rows], copy, &|g, v| {
                g.take_along(v[0], v[1], 0)
            })?;
            let each = Tensor::from_slice(self.executor, &[N, N / 4], &numbers(N * N / 4, N))?;
            let work = (3.0 / 4.0 * bytes, 0.0, CeilingKind::Copy);
            self.one(visit, "take", ("f32", &format!("{shape}, each")), &[&x, &each], work, &|g, v| {
                g.take_along(v[0], v[1], 1)
            })?;
        }
        if self.wants("scatter_add") {
            let updates = self.random(DType::F32, &[N, N], 37)?;
            let work = (3.0 * bytes, 0.0, CeilingKind::Triad);
            self.one(
                visit,
                "scatter_add",
                ("f32", &format!("{shape}, rows")),
                &[&x, &rows, &updates],
                work,
                &|g, v| g.scatter_add(v[0], v[1], v[2], 0),
            )?;
        }
        Ok(())
    }

    /// Products of any strides.
    fn products(&self, visit: &mut Visit<'_>) -> Result<()> {
        if self.wants("batch_matmul") {
            let turned = MatmulOptions { transpose_b: true, ..MatmulOptions::default() };
            let left = MatmulOptions { transpose_a: true, ..MatmulOptions::default() };
            let plain = MatmulOptions::default();
            for (format, batch, n, options, note) in [
                (DType::F32, 1, 2048, &plain, ""),
                (DType::F32, 1, 2048, &turned, ", b turned"),
                (DType::F32, 1, 2048, &left, ", a turned"),
                (DType::F32, 512, 64, &plain, ""),
                (DType::F32, 64, 256, &plain, ""),
                (DType::BF16, 1, 2048, &plain, ""),
                (DType::F16, 1, 2048, &plain, ""),
                (DType::Plain(Type::F64), 1, 1024, &plain, ""),
            ] {
                let shape = [batch, n, n];
                let (a, b) = if format == DType::Plain(Type::F64) {
                    let values: Vec<f64> = (0..n * n).map(|i| (i * 7919 % 10007) as f64 / 5000.0 - 1.0).collect();
                    let a = Tensor::from_slice(self.executor, &shape, &values)?;
                    (a.clone(), a)
                } else {
                    (self.random(format, &shape, 38)?, self.random(format, &shape, 39)?)
                };
                let size = (batch * n * n) as f64;
                let work = (3.0 * size * format.block_bytes() as f64, 2.0 * size * n as f64, CeilingKind::F32);
                let shape = format!("{batch} × {n}³{note}");
                self.one(visit, "batch_matmul", (&format.name(), &shape), &[&a, &b], work, &|g, v| {
                    g.batch_matmul(v[0], v[1], options)
                })?;
            }
        }
        if self.wants("conv2d") {
            for (images, c, o, side, window, groups) in
                [(8, 64, 64, 56, 3, 1), (8, 256, 256, 14, 1, 1), (8, 3, 64, 224, 7, 1), (8, 128, 128, 56, 3, 128)]
            {
                let stride = if window == 7 { 2 } else { 1 };
                let options =
                    Conv2dOptions { stride: [stride; 2], padding: [window / 2; 2], groups, ..Conv2dOptions::default() };
                let x = self.random(DType::F32, &[images, c, side, side], 40)?;
                let kernel = self.random(DType::F32, &[o, c / groups, window, window], 41)?;
                let result = (images * o * (side / stride).pow(2)) as f64;
                let flop = 2.0 * result * (c / groups * window * window) as f64;
                let bytes = 4.0 * (result + (images * c * side * side) as f64);
                let shape = format!("{images} × {c} × {side}², {o} of {window}², {groups} gr.");
                self.one(
                    visit,
                    "conv2d",
                    ("f32", &shape),
                    &[&x, &kernel],
                    (bytes, flop, CeilingKind::F32),
                    &|g, v| g.conv2d(v[0], v[1], &options),
                )?;
            }
        }
        Ok(())
    }

    fn numbers(&self, visit: &mut Visit<'_>) -> Result<()> {
        const N: usize = 64 << 20;
        let key = Tensor::from_slice(self.executor, &[4], &[1u32, 2, 3, 4])?;
        let work = (4.0 * N as f64, 0.0, CeilingKind::Read);
        let shape = N.to_string();
        self.one(visit, "uniform", ("f32", &shape), &[&key], work, &|g, v| {
            g.random_uniform(v[0], Type::F32, &[Dim::Fixed(N)])
        })?;
        self.one(visit, "normal", ("f32", &shape), &[&key], work, &|g, v| {
            g.random_normal(v[0], Type::F32, &[Dim::Fixed(N)])
        })
    }
}
