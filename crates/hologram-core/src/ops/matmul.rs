//! Matrix product with a transposed right side, y = x·wᵀ: every projection of a model.

use hologram_backends::{BlockType, DType, KernelSpec, Operation};
use hologram_isa::{Builder, Opcode, Type, Value};

use std::borrow::Cow;

use super::kernel::{TensorArg, without_grids};
use super::lines::epsilon;
use super::tiles::{self, Side, THREADS};
use super::{Kernel, Launchable, MatmulOptions, Mismatch, Op, is_weight, rounded};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput};
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp, no_derivative};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// The operation; `x` is `[n, k]`, `w` is `[m, k]`.
#[derive(Debug)]
struct Matmul;

impl Graph {
    /// A linear layer without bias: the product x·wᵀ of `x` (`[n, k]`) and `w` (`[m, k]`) as `f32 [n, m]`.
    ///
    /// - `x` in `f32`, `w` in any weight format: weights are dequantized; products and sums are in `f32`.
    /// - `x` in `bf16`, `w` in `bf16`, `f16` or a block format that is not ternary: quantized weights are dequantized
    ///   to `f32`; weights are rounded to `bf16`, to nearest even; products and sums are in `f32`.
    /// - `x` in [`DType::I8Groups`] (from [`Graph::quantize`]) and `w` in a block format: codes are multiplied as
    ///   integers and summed exactly within each group and each run of weights that share a scale (in native kernels at
    ///   least four products at a time). Per run, the activations' scale · (weights' scale · sum of products −
    ///   minimum · sum of the activations' codes) is added in `f32`; the second term exists only if the format has
    ///   minimums. Groups are of 32 for blocks of 32, and of 32 or 256 for blocks of 256; for ternary weights, a
    ///   multiple of 256, or a multiple of 32 that divides 256.
    ///
    /// - `x` in [`DType::F8Groups`] (from [`Graph::quantize_f8`], in groups of multiples of 128) and `w` in `F8_E4M3`:
    ///   products of codes are exact. Their sums over a block of 128 are multiplied by the block's and the group's
    ///   scale and added in `f32`. A device may sum the 128 with 13 bits of the greatest partial sum, as tensor cores
    ///   of NVIDIA GPUs do.
    ///
    /// Quantized weights may lie in planes ([`DType::Q8Planes`] and similar), which does not change the computation.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn linear(&mut self, x: NodeId, w: NodeId) -> Result<NodeId> {
        self.apply(Matmul, &[x, w])
    }
}

impl Graph {
    /// A matrix of weights in any format as `f32`.
    pub(crate) fn dequantized(&mut self, w: NodeId) -> Result<NodeId> {
        let rows = self.shape_of(w).first().copied().unwrap_or(Dim::Fixed(0));
        let ids = self.arange(DType::U32, 0.0, 1.0, rows)?;
        self.gather(w, ids)
    }
}

/// Whether there is a product of these formats.
pub(super) fn fits(x: DType, w: DType) -> bool {
    match (x, w) {
        (DType::Plain(Type::F32), w) => is_weight(w),
        (DType::Plain(Type::BF16), DType::Plain(Type::BF16 | Type::F16)) => true,
        (DType::Plain(Type::BF16), w) => w.is_quantized_weight() && !w.is_ternary(),
        (DType::I8Groups { group }, w) if w.is_ternary() => {
            group > 0 && (group.is_multiple_of(256) || (group.is_multiple_of(32) && 256 % group == 0))
        }
        (DType::F8Groups { group }, DType::Block(BlockType::F8_E4M3) | DType::Planes(BlockType::F8_E4M3)) => {
            group > 0 && group.is_multiple_of(128)
        }
        (DType::I8Groups { .. }, w) if w.has_float_codes() => false,
        (DType::I8Groups { group }, w) if w.is_quantized_weight() => group == 32 || group as usize == w.block_len(),
        _ => false,
    }
}

/// Whether weights are rounded to `bf16`, the activations' format.
fn rounds(x: DType, w: DType) -> bool {
    x == DType::BF16 && w != DType::BF16
}

/// The number of products that are summed before a scale is applied.
fn unit(x: DType, w: DType, k: usize) -> usize {
    match (x, w) {
        (DType::I8Groups { group } | DType::F8Groups { group }, w) => w.scale_len().min(group as usize),
        (_, DType::Plain(_)) => k,
        (_, w) => w.scale_len(),
    }
}

impl Op for Matmul {
    fn operation(&self) -> Operation {
        Operation::Matmul
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [x, w] = inputs else { return Err("takes x and w".into()) };
        if !fits(x.format, w.format) {
            return Err(format!("there is no product of {} and {}", x.format.name(), w.format.name()).into());
        }
        match (x.shape.as_slice(), w.shape.as_slice()) {
            ([n, Dim::Fixed(k)], [Dim::Fixed(m), Dim::Fixed(l)]) if k == l && *k > 0 => {
                Ok(TensorType::new(DType::F32, [*n, Dim::Fixed(*m)]))
            }
            _ => Err("takes x [n, k] and w [m, k]".into()),
        }
    }

    /// One workgroup per square of the output where elements are multiplied one by one. For other formats and for few
    /// rows, one thread per element.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        without_grids(spec)?;
        let (m, row_len) = (spec.output.row_len() as u32, spec.inputs[0].row_len() as u32);
        let mut k = Kernel::new(spec, THREADS);
        let total = k.elements(&spec.output);
        let rows = k.rows(&spec.output);
        let (x, w, out) = (k.inputs[0].clone(), k.inputs[1].clone(), k.output.clone());
        let b = &mut k.b;
        let load_weight = |b: &mut Builder, at: Value| weight(b, &x, &w, at);
        let single = matches!((x.spec.format, w.spec.format), (DType::BF16, _) | (DType::F32, DType::Plain(_)));
        if single && tiles::pay(spec.output.max_rows(), m as usize) {
            let [down, across] = tiles::squares(spec.output.max_rows(), m as usize);
            let element = |b: &mut Builder, row: Value, e: Value| {
                let start = b.mul(row, row_len);
                b.add(start, e)
            };
            let group = b.builtin(Opcode::GroupX);
            let place = [b.div(group, across as u32), b.rem(group, across as u32)];
            let left: &dyn Fn(&mut Builder, Value, Value) -> Value = &|b, row, e| {
                let at = element(b, row, e);
                x.load(b, at)
            };
            let right: &dyn Fn(&mut Builder, Value, Value) -> Value = &|b, column, e| {
                let at = element(b, column, e);
                load_weight(b, at)
            };
            let sides = [
                Side { lines: rows, load: left, along_depth: true },
                Side { lines: m.into(), load: right, along_depth: true },
            ];
            tiles::square(b, Type::F32, row_len.into(), sides, place, |b, row, column, sum| {
                let at = b.mul(row, m);
                let at = b.add(at, column);
                out.store(b, at, sum);
            });
            return k.finish(down * across);
        }
        let i = b.global_x();
        let inside = b.lt(i, total);
        b.if_(inside, |b| {
            let row = b.div(i, m);
            let column = b.rem(i, m);
            let x_start = b.mul(row, row_len);
            let w_start = b.mul(column, row_len);
            let sum = b.var(0.0f32);
            add_products(b, [&x, &w], [x_start, w_start], row_len, sum);
            out.store(b, i, sum);
        });
        let max = spec.output.max_rows() * m as usize;
        k.finish(max.div_ceil(THREADS as usize))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let [x, w] = [call.inputs[0], call.inputs[1]];
        if g.float_of(x).is_none() {
            return Err(no_derivative("a product of quantized activations"));
        }
        // Products of narrow operands have narrow gradients, from narrow gradients by the result.
        let grad = g.cast_like(call.grad, x)?;
        let by_x = match call.wanted[0] {
            true => {
                let rows = if g.float_of(w).is_some() { w } else { g.dequantized(w)? };
                let rows = g.cast_like(rows, x)?;
                Some(g.matmul(grad, rows)?)
            }
            false => None,
        };
        let by_w = match call.wanted[1] {
            true => {
                let options = MatmulOptions { transpose_a: true, ..MatmulOptions::default() };
                let by_w = g.batch_matmul(grad, x, &options)?;
                Some(g.cast_like(by_w, w)?)
            }
            false => None,
        };
        Ok(vec![by_x, by_w])
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x, w] = inputs else { return Reference::default() };
        let mut out = Reference::default();
        let weights = reference_weights(x.format, w);
        for row in x.values.chunks(x.row_len()) {
            reference_products([x.format, w.format], row, weights.chunks(x.row_len()), &mut out);
        }
        out
    }
}

/// A weight's element as products take it.
fn weight(b: &mut Builder, x: &TensorArg, w: &TensorArg, at: Value) -> Value {
    let v = w.load(b, at);
    if rounds(x.spec.format, w.spec.format) {
        let rounded = b.cvt(Type::BF16, v);
        b.cvt(Type::F32, rounded)
    } else {
        v
    }
}

/// Adds the products of a row of `x` and a row of `w`, each from its start, to `sum`.
pub(super) fn add_products(
    b: &mut Builder,
    [x, w]: [&TensorArg; 2],
    [x_start, w_start]: [Value; 2],
    row_len: u32,
    sum: Value,
) {
    let unit = unit(x.spec.format, w.spec.format, row_len as usize) as u32;
    match (x.spec.format, w.spec.format) {
        (DType::I8Groups { .. }, _) => b.for_(0u32, row_len, unit, |b, block| {
            let x_block = b.add(x_start, block);
            let w_block = b.add(w_start, block);
            let (dot, codes) = (b.var(0i32), b.var(0i32));
            b.for_(0u32, unit, 1u32, |b, e| {
                let (xi, wi) = (b.add(x_block, e), b.add(w_block, e));
                let (xc, wc) = (x.load_code(b, xi), w.load_code(b, wi));
                let product = b.mul(xc, wc);
                b.assign_op(dot, Opcode::Add, &[dot, product]);
                if w.spec.format.has_minimum() {
                    b.assign_op(codes, Opcode::Add, &[codes, xc]);
                }
            });
            let (xs, ws) = (x.load_scale(b, x_block), w.load_scale(b, w_block));
            let dot = b.cvt(Type::F32, dot);
            let mut scaled = b.mul(dot, ws);
            if let Some(minimum) = w.load_minimum(b, w_block) {
                let codes = b.cvt(Type::F32, codes);
                let below = b.mul(codes, minimum);
                scaled = b.sub(scaled, below);
            }
            b.assign_op(sum, Opcode::Fma, &[scaled, xs, sum]);
        }),
        (DType::F8Groups { .. }, _) => b.for_(0u32, row_len, unit, |b, block| {
            let x_block = b.add(x_start, block);
            let w_block = b.add(w_start, block);
            let dot = b.var(0.0f32);
            b.for_(0u32, unit, 1u32, |b, e| {
                let (xi, wi) = (b.add(x_block, e), b.add(w_block, e));
                let (xc, wc) = (x.load_number(b, xi), w.load_number(b, wi));
                b.assign_op(dot, Opcode::Fma, &[xc, wc, dot]);
            });
            let (xs, ws) = (x.load_scale(b, x_block), w.load_scale(b, w_block));
            let scaled = b.mul(dot, ws);
            b.assign_op(sum, Opcode::Fma, &[scaled, xs, sum]);
        }),
        (DType::BF16, _) | (_, DType::Plain(_)) => b.for_(0u32, row_len, 1u32, |b, e| {
            let (xi, wi) = (b.add(x_start, e), b.add(w_start, e));
            let (xv, wv) = (x.load(b, xi), weight(b, x, w, wi));
            b.assign_op(sum, Opcode::Fma, &[xv, wv, sum]);
        }),
        _ => b.for_(0u32, row_len, unit, |b, block| {
            let x_block = b.add(x_start, block);
            let w_block = b.add(w_start, block);
            if let Some(minimum) = w.load_minimum(b, w_block) {
                let scale = w.load_scale(b, w_block);
                b.for_(0u32, unit, 1u32, |b, e| {
                    let (xi, wi) = (b.add(x_block, e), b.add(w_block, e));
                    let (xv, code) = (x.load(b, xi), w.load_number(b, wi));
                    let value = b.mul(scale, code);
                    let value = b.sub(value, minimum);
                    b.assign_op(sum, Opcode::Fma, &[xv, value, sum]);
                });
                return;
            }
            let dot = b.var(0.0f32);
            b.for_(0u32, unit, 1u32, |b, e| {
                let (xi, wi) = (b.add(x_block, e), b.add(w_block, e));
                let (xv, code) = (x.load(b, xi), w.load_number(b, wi));
                b.assign_op(dot, Opcode::Fma, &[xv, code, dot]);
            });
            let scale = w.load_scale(b, w_block);
            b.assign_op(sum, Opcode::Fma, &[dot, scale, sum]);
        }),
    }
}

/// The weights of a product with activations of this type, as its reference takes them.
pub(super) fn reference_weights(x: DType, w: &HostTensor) -> Cow<'_, [f64]> {
    match rounds(x, w.format) {
        true => w.values.iter().map(|v| rounded(*v, DType::BF16)).collect(),
        false => Cow::Borrowed(&w.values),
    }
}

/// The products of a row of activations with rows of [`reference_weights`], added to a reference.
pub(super) fn reference_products<'a>(
    [x, w]: [DType; 2],
    row: &[f64],
    weights: impl Iterator<Item = &'a [f64]>,
    out: &mut Reference,
) {
    // Products of codes are summed exactly four at a time, as 8-bit dot product instructions do.
    let exact = if matches!(x, DType::I8Groups { .. }) { 4 } else { 1 };
    // If a minimum is subtracted from the sum of products, the terms that round are as large as a run's maximum
    // values.
    let run = w.scale_len();
    let minimums = exact > 1 && w.has_minimum();
    for weights in weights {
        let greatest: Vec<f64> = match minimums {
            true => weights.chunks(run).map(|run| run.iter().fold(0.0, |most: f64, v| most.max(v.abs()))).collect(),
            false => Vec::new(),
        };
        let (mut sum, mut squares) = (0.0, 0.0);
        for (i, (xu, wu)) in row.chunks(exact).zip(weights.chunks(exact)).enumerate() {
            let term: f64 = xu.iter().zip(wu).map(|(a, b)| a * b).sum();
            sum += term;
            let size = match minimums {
                true => greatest[i * exact / run] * xu.iter().map(|v| v.abs()).sum::<f64>(),
                false => term,
            };
            squares += size * size;
        }
        // Sums of 128 with 13 bits of the greatest partial sum, each product and sum truncated to them.
        let few_bits = matches!(x, DType::F8Groups { .. });
        let rough = if few_bits { (sum.abs() + squares.sqrt()) * 128f64.sqrt() * 2f64.powi(-13) } else { 0.0 };
        out.push(sum, sum_bound(DType::F32, (row.len() / exact) as f64, sum, squares) + rough);
    }
}

/// The bound of a sum of `n` rounded products of independent sign, in any order, in the type that a format is computed
/// in.
///
/// Partial sums are about as large as the root of the sum of squares, or the result. Their roundings by 2⁻²⁴ each
/// add up like a random walk, here taken four times as far.
pub(super) fn sum_bound(format: DType, n: f64, sum: f64, squares: f64) -> f64 {
    let size = sum.abs() + squares.sqrt();
    (2.0 + 2.0 * n.sqrt()) * size * epsilon(format) + n * f64::from(f32::MIN_POSITIVE)
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let case = |x: DType, w: DType, n: usize, max: usize, m: usize, k: usize| {
        Case::new(Matmul, &[(max, n)])
            .input(CaseInput::normal(x, &[Dim::Extent(0), Dim::Fixed(k)]))
            .input(CaseInput::normal(w, &[Dim::Fixed(m), Dim::Fixed(k)]))
    };
    let mut cases = Vec::new();
    let plain = [DType::F32, DType::F16, DType::BF16]
        .map(|w| (DType::F32, w))
        .into_iter()
        .chain([DType::BF16, DType::F16].map(|w| (DType::BF16, w)));
    for (x, w) in plain {
        cases.push(case(x, w, 1, 1, 1, 1));
        for (n, max, m, k) in [(0, 2, 3, 8), (1, 4, 67, 131), (5, 7, 33, 64), (37, 40, 70, 320), (130, 160, 96, 256)] {
            cases.push(case(x, w, n, max, m, k));
        }
    }
    let i8 = |group: u32| DType::I8Groups { group };
    for (x, w, block) in [
        (DType::F32, DType::Q8_0, 32),
        (DType::F32, DType::Q4_0, 32),
        (DType::F32, DType::TQ2_0, 256),
        (DType::BF16, DType::Q8_0, 32),
        (DType::BF16, DType::Q4_0, 32),
        (i8(32), DType::Q8_0, 32),
        (i8(32), DType::Q4_0, 32),
        (i8(32), DType::TQ2_0, 256),
        (i8(64), DType::TQ2_0, 256),
        (i8(256), DType::TQ2_0, 256),
    ] {
        for (n, max, m, k) in [
            (1, 1, 1, block),
            (0, 2, 3, block),
            (1, 4, 67, 3 * block),
            (1, 1, 9, 4096),
            (5, 7, 33, 2 * block),
            (37, 40, 70, 768),
            (3, 3, 256, 1024),
            (7, 8, 72, 1280),
            (130, 160, 96, 256),
        ] {
            for w in w.layouts() {
                cases.push(case(x, w, n, max, m, k));
            }
        }
    }
    // The other block formats, which have kernels of their own on some devices.
    for w in DType::BLOCKS {
        if matches!(w, DType::Q8_0 | DType::Q4_0 | DType::TQ2_0) {
            continue;
        }
        let groups: &[u32] = match w.block_len() {
            _ if w.has_float_codes() => &[],
            256 => &[32, 256],
            _ => &[32],
        };
        let mut formats = vec![DType::F32];
        formats.extend((!w.is_ternary()).then_some(DType::BF16));
        formats.extend(groups.iter().map(|group| i8(*group)));
        for x in formats {
            for (n, max, m, k) in [(1, 1, 9, 2048), (5, 7, 33, 256), (7, 8, 72, 1280), (37, 40, 70, 256)] {
                for w in w.layouts() {
                    cases.push(case(x, w, n, max, m, k));
                }
            }
        }
    }
    // Floats of a byte on both sides, with a scale per token and per block of it.
    for (n, max, m, k) in
        [(1, 1, 9, 256), (5, 7, 33, 384), (37, 40, 72, 1280), (100, 130, 136, 640), (200, 256, 264, 2048)]
    {
        for w in DType::F8_E4M3.layouts() {
            cases.push(case(DType::F8Groups { group: k as u32 }, w, n, max, m, k));
        }
    }
    for w in DType::F8_E4M3.layouts() {
        cases.push(case(DType::F8Groups { group: 128 }, w, 5, 7, 33, 384));
    }
    // One group for the whole row, as in BitNet.
    for (n, max, m, k) in [(1, 1, 67, 2560), (5, 7, 33, 768)] {
        for w in DType::TQ2_0.layouts() {
            cases.push(case(i8(k as u32), w, n, max, m, k));
        }
    }
    cases
}
