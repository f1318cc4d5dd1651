//! Products of batches of matrices, each optionally transposed, with bias, activation and residual in the same launch.

use hologram_backends::{Activation, DType, Extent, KernelSpec, Operation, TensorSpec};
use hologram_isa::{Builder, Opcode, Type, Value};

use super::lines::{epsilon, is_float, number, plain, stored};
use super::matmul::sum_bound;
use super::tiles::{self, Side, THREADS, add_product, summed};
use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// Options of [`Graph::batch_matmul`]: transposed operands, and operations on the products.
#[derive(Clone, Copy, Debug, Default)]
pub struct MatmulOptions {
    /// Whether the left matrices are stored as `[k, n]`.
    pub transpose_a: bool,
    /// Whether the right matrices are stored as `[m, k]`.
    pub transpose_b: bool,
    /// Added to every row: `[m]`.
    pub bias: Option<NodeId>,
    /// Applied after the bias.
    pub activation: Option<Activation>,
    /// Added last; has the result's shape.
    pub residual: Option<NodeId>,
}

/// The operation; its inputs are both matrices, then the bias and the residual if present.
#[derive(Clone, Copy, Debug, Default)]
struct BatchMatmul {
    transpose: [bool; 2],
    bias: bool,
    activation: Option<Activation>,
    residual: bool,
}

impl Graph {
    /// `activation(a·b + bias) + residual` for each matrix of `a` (`[.., n, k]`) and its partner in `b`
    /// (`[.., k, m]`): `[.., n, m]`.
    ///
    /// - The dimensions before the last two are aligned at their ends. One that is 1 or missing in either
    ///   operand is broadcast.
    /// - `f32`, `f16` and `bf16` are multiplied and summed in `f32`, and the result is rounded once to their type.
    ///   `f64`, `i32` and `i64` are computed in their type, where sums of integers wrap. `i8` gives `i32`.
    /// - Integers have no activation but ReLU. Bias and residual have the result's type.
    /// - A transposed view of row-major matrices is read where it lies, without a copy.
    ///
    /// The product of a model's activations with its weights is [`Graph::linear`]. Attention scores are the product of
    /// queries and keys with `transpose_b`; the weighted sum is the product of their [`Graph::softmax`] and the values.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn batch_matmul(&mut self, a: NodeId, b: NodeId, options: &MatmulOptions) -> Result<NodeId> {
        let (mut operands, mut transpose) = ([a, b], [options.transpose_a, options.transpose_b]);
        for (operand, transposed) in operands.iter_mut().zip(&mut transpose) {
            if let Some(stored) = self.untransposed(*operand)? {
                (*operand, *transposed) = (stored, !*transposed);
            }
        }
        let op = BatchMatmul {
            transpose,
            bias: options.bias.is_some(),
            activation: options.activation,
            residual: options.residual.is_some(),
        };
        let operands: Vec<NodeId> = operands.into_iter().chain(options.bias).chain(options.residual).collect();
        self.apply(op, &operands)
    }

    /// The product a·b of matrices, with the other dimensions broadcast: [`Graph::batch_matmul`] without options.
    ///
    /// # Errors
    /// As [`Graph::batch_matmul`].
    pub fn matmul(&mut self, a: NodeId, b: NodeId) -> Result<NodeId> {
        self.called("matmul", |g| g.batch_matmul(a, b, &MatmulOptions::default()))
    }
}

/// Emits the activation of a value.
fn activate(activation: Activation, b: &mut Builder, x: Value) -> Value {
    match activation {
        Activation::Relu => {
            let negative = b.le(x, number(x.ty, 0.0));
            b.select(negative, number(x.ty, 0.0), x)
        }
        Activation::Gelu => {
            let scaled = b.mul(x, number(x.ty, std::f64::consts::FRAC_1_SQRT_2));
            let erf = b.erf(scaled);
            let twice = b.add(erf, number(x.ty, 1.0));
            let half = b.mul(x, number(x.ty, 0.5));
            b.mul(half, twice)
        }
        Activation::Silu => {
            let minus = b.neg(x);
            let e = b.exp(minus);
            let divisor = b.add(e, number(x.ty, 1.0));
            b.div(x, divisor)
        }
    }
}

/// The value in `f64` and its bound, for an operand that is off by at most `bound`, computed with roundings of `eps`.
fn activated(activation: Activation, x: f64, bound: f64, eps: f64) -> (f64, f64) {
    let y = match activation {
        Activation::Relu => return (if x <= 0.0 { 0.0 } else { x }, bound),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::Silu => x / (1.0 + (-x).exp()),
    };
    // No slope is above 1.13; 1 + erf cancels for negative x.
    (y, 1.13 * bound + 3.0 * x.abs() * eps)
}

/// The error function by its series, or by its continued fraction where that converges faster (Abramowitz and Stegun
/// 7.1.6, 7.1.14).
fn erf(x: f64) -> f64 {
    let z = x.abs();
    if z < 3.0 {
        let (mut term, mut sum) = (z, z);
        for n in 1..100 {
            term *= 2.0 * z * z / (2 * n + 1) as f64;
            sum += term;
        }
        return (2.0 / std::f64::consts::PI.sqrt() * (-z * z).exp() * sum).copysign(x);
    }
    let fraction = (1..60).rev().fold(z, |f, n| z + n as f64 / 2.0 / f);
    (1.0 - (-z * z).exp() / std::f64::consts::PI.sqrt() / fraction).copysign(x)
}

/// The batch dimensions of a product (all but the last two), from those of its operands.
fn batches(a: &[Dim], b: &[Dim]) -> Option<Vec<Dim>> {
    let rank = a.len().max(b.len());
    let dim = |s: &[Dim], i: usize| (i + s.len()).checked_sub(rank).map_or(Dim::Fixed(1), |i| s[i]);
    let both = |i: usize| match (dim(a, i), dim(b, i)) {
        (x, y) if x == y => Some(x),
        (Dim::Fixed(1), other) | (other, Dim::Fixed(1)) => Some(other),
        _ => None,
    };
    (0..rank).map(both).collect()
}

/// The strides with which an operand's matrices are found: one per batch dimension of the result, slowest first.
fn strides(operand: &[usize], batches: &[usize]) -> Vec<usize> {
    let (shape, matrix) = operand.split_at(operand.len().saturating_sub(2));
    let mut stride: usize = matrix.iter().product();
    let mut strides = vec![0; batches.len()];
    for (i, size) in shape.iter().enumerate().rev() {
        let place = i + batches.len() - shape.len();
        strides[place] = if *size == 1 { 0 } else { stride };
        stride *= size;
    }
    strides
}

impl BatchMatmul {
    fn result(&self, inputs: &[&TensorType]) -> Option<TensorType> {
        let [a, b, ..] = inputs else { return None };
        let format = match plain(a.format)? {
            Type::I8 => DType::I32,
            Type::F32 | Type::F16 | Type::BF16 | Type::F64 | Type::I32 | Type::I64 => a.format,
            _ => return None,
        };
        let split = |t: &TensorType, transposed: bool| {
            let (batches, matrix) = t.shape.split_at_checked(t.shape.len().checked_sub(2)?)?;
            let [x, y] = matrix else { return None };
            Some(if transposed { (batches.to_vec(), *y, *x) } else { (batches.to_vec(), *x, *y) })
        };
        let ((of_a, n, k), (of_b, l, m)) = (split(a, self.transpose[0])?, split(b, self.transpose[1])?);
        let shape = [batches(&of_a, &of_b)?, vec![n, m]].concat();
        (a.format == b.format && k == l).then(|| TensorType::new(format, shape))
    }
}

impl Op for BatchMatmul {
    fn operation(&self) -> Operation {
        let BatchMatmul { transpose, bias, activation, residual } = *self;
        Operation::BatchMatmul { transpose, bias, activation, residual }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let Some(result) = self.result(inputs) else {
            return Err(
                "takes a [.., n, k] and b [.., k, m], each perhaps transposed, of floats, i8, i32 or i64".into()
            );
        };
        let mut rest = inputs.iter().skip(2);
        let mut fits = |present: bool, shape: &[Dim]| {
            !present || rest.next().is_some_and(|t| t.format == result.format && t.shape == shape)
        };
        if !fits(self.bias, result.shape.last().map(std::slice::from_ref).unwrap_or_default()) {
            return Err("the bias must be [m], of the result's type".into());
        }
        if !fits(self.residual, &result.shape) {
            return Err("the residual must be of the result's type and shape".into());
        }
        if !is_float(result.format) && !matches!(self.activation, None | Some(Activation::Relu)) {
            return Err(format!("{} has no such activation", result.format.name()).into());
        }
        Ok(result)
    }

    /// One workgroup per square of the result, or one thread per element of a narrow result.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let sizes = |t: &TensorSpec| t.shape.iter().map(|e| e.max()).collect::<Vec<_>>();
        let last = |t: &TensorSpec, back: usize| {
            t.shape.len().checked_sub(back).and_then(|i| t.shape.get(i)).copied().unwrap_or(Extent::Fixed(1))
        };
        let (a, b_spec) = (&spec.inputs[0], &spec.inputs[1]);
        let (rows, columns) = (last(&spec.output, 2), last(&spec.output, 1));
        let depth = last(a, if self.transpose[0] { 2 } else { 1 });
        let batches = sizes(&spec.output).split_at(spec.output.shape.len().saturating_sub(2)).0.to_vec();
        let total: usize = batches.iter().product();
        let ty = summed(spec.output.format);
        let mut k = Kernel::new(spec, THREADS);
        let count = super::lines::outer(&mut k, &spec.output, batches.len());
        let [n, m, depth] = [rows, columns, depth].map(|e| k.extent(e));
        let (inputs, out) = (k.inputs.clone(), k.output.clone());
        // Lengths of rows in memory.
        let of_a = if self.transpose[0] { n } else { depth };
        let of_b = if self.transpose[1] { depth } else { m };
        let b = &mut k.b;
        let place = |b: &mut Builder, start: Value, row: Value, length: Value, at: Value| {
            let from = b.mul(row, length);
            let from = b.add(from, at);
            b.add(start, from)
        };
        let left = |b: &mut Builder, start: Value, row: Value, d: Value| {
            let at = if self.transpose[0] { place(b, start, d, of_a, row) } else { place(b, start, row, of_a, d) };
            inputs[0].load_as(b, ty, at)
        };
        let right = |b: &mut Builder, start: Value, column: Value, d: Value| {
            let at =
                if self.transpose[1] { place(b, start, column, of_b, d) } else { place(b, start, d, of_b, column) };
            inputs[1].load_as(b, ty, at)
        };
        let starts = |b: &mut Builder, batch: Value| {
            [a, b_spec].map(|operand| start(b, batch, &batches, &strides(&sizes(operand), &batches)))
        };
        let finish = |b: &mut Builder, batch: Value, row: Value, column: Value, sum: Value| {
            let row = {
                let first = b.mul(batch, n);
                b.add(first, row)
            };
            let at = b.mul(row, m);
            let at = b.add(at, column);
            let mut rest = inputs[2..].iter();
            let mut y = sum;
            if let Some(bias) = rest.next().filter(|_| self.bias) {
                let v = bias.load_as(b, ty, column);
                y = b.add(y, v);
            }
            if let Some(activation) = self.activation {
                y = activate(activation, b, y);
            }
            if let Some(residual) = inputs.last().filter(|_| self.residual) {
                let v = residual.load_as(b, ty, at);
                y = b.add(y, v);
            }
            out.store(b, at, y);
        };
        if tiles::pay(rows.max(), columns.max()) {
            let [down, across] = tiles::squares(rows.max(), columns.max());
            let group = b.builtin(Opcode::GroupX);
            let (line, column) = (b.div(group, across as u32), b.rem(group, across as u32));
            let (batch, row) = (b.div(line, down as u32), b.rem(line, down as u32));
            let active = b.lt(batch, count);
            b.if_(active, |b| {
                let [a, c] = starts(b, batch);
                let rows: &dyn Fn(&mut Builder, Value, Value) -> Value = &|b, row, d| left(b, a, row, d);
                let columns: &dyn Fn(&mut Builder, Value, Value) -> Value = &|b, column, d| right(b, c, column, d);
                let sides = [
                    Side { lines: n, load: rows, along_depth: !self.transpose[0] },
                    Side { lines: m, load: columns, along_depth: self.transpose[1] },
                ];
                tiles::square(b, ty, depth, sides, [row, column], |b, row, column, sum| {
                    finish(b, batch, row, column, sum);
                });
            });
            return k.finish(total * down * across);
        }
        let i = b.global_x();
        let matrix = b.mul(n, m);
        let elements = b.mul(count, matrix);
        let inside = b.lt(i, elements);
        b.if_(inside, |b| {
            let (line, column) = (b.div(i, m), b.rem(i, m));
            let (batch, row) = (b.div(line, n), b.rem(line, n));
            let [from_a, from_b] = starts(b, batch);
            let sum = b.var(number(ty, 0.0));
            b.for_(0u32, depth, 1u32, |b, d| {
                let (x, y) = (left(b, from_a, row, d), right(b, from_b, column, d));
                add_product(b, sum, x, y);
            });
            finish(b, batch, row, column, sum);
        });
        k.finish((total * rows.max() * columns.max()).div_ceil(THREADS as usize))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let [mut a, b] = [call.inputs[0], call.inputs[1]];
        let (of_a, of_b) = (g.shape_of(a).to_vec(), g.shape_of(b).to_vec());
        let bias = self.bias.then(|| call.inputs[2]);
        let residual = self.residual.then_some(call.grad);
        let mut grad = call.grad;
        if let Some(activation) = self.activation {
            let op = BatchMatmul { activation: None, residual: false, ..*self };
            let sums = g.apply(op, &call.inputs[..2 + usize::from(self.bias)])?;
            let applied = match activation {
                Activation::Relu => g.relu(sums)?,
                Activation::Gelu => g.gelu(sums)?,
                Activation::Silu => g.silu(sums)?,
            };
            grad = g.vjp_of(applied, grad)?;
        }
        let by_bias = match bias {
            Some(bias) if call.wanted[2] => {
                let wide = g.widened(grad)?;
                let row = g.shape_of(bias).to_vec();
                let sum = g.sum_to(wide, &row)?;
                Some(g.cast_like(sum, bias)?)
            }
            _ => None,
        };
        // Matrices that share the right side are rows of one product.
        let [ta, tb] = self.transpose;
        if let (false, [first, .., k], [_, _], [.., m]) = (ta, of_a.as_slice(), of_b.as_slice(), g.shape_of(grad))
            && of_a.len() > 2
        {
            let rows = of_a[1..of_a.len() - 1].iter().try_fold(1, |n, d| match d {
                Dim::Fixed(d) => Some(n * d),
                Dim::Extent(_) => None,
            });
            let m = *m;
            if let (Dim::Fixed(n), Some(rows)) = (*first, rows) {
                let rows = Dim::Fixed(n * rows);
                (a, grad) = (g.reshape(a, &[rows, *k])?, g.reshape(grad, &[rows, m])?);
            }
        }
        let product = |g: &mut Graph, a, b, transpose_a, transpose_b| {
            g.batch_matmul(a, b, &MatmulOptions { transpose_a, transpose_b, ..MatmulOptions::default() })
        };
        let by_a = match (call.wanted[0], ta) {
            (false, _) => None,
            (true, false) => Some(product(g, grad, b, false, !tb)?),
            (true, true) => Some(product(g, b, grad, tb, true)?),
        };
        let by_b = match (call.wanted[1], tb) {
            (false, _) => None,
            (true, false) => Some(product(g, a, grad, !ta, false)?),
            (true, true) => Some(product(g, grad, a, true, ta)?),
        };
        let by_a = match by_a {
            Some(by_a) if g.shape_of(by_a).len() < of_a.len() => Some(g.reshape(by_a, &of_a)?),
            Some(by_a) => Some(g.sum_to(by_a, &of_a)?),
            None => None,
        };
        let by_b = by_b.map(|by_b| g.sum_to(by_b, &of_b)).transpose()?;
        let more = [self.bias.then_some(by_bias), self.residual.then_some(residual)];
        Ok([by_a, by_b].into_iter().chain(more.into_iter().flatten()).collect())
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [a, b, rest @ ..] = inputs else { return Reference::default() };
        let matrix = |t: &HostTensor, transposed: bool| {
            let [x, y] = t.shape[t.shape.len() - 2..] else { return [0, 0] };
            if transposed { [y, x] } else { [x, y] }
        };
        let ([n, k], [_, m]) = (matrix(a, self.transpose[0]), matrix(b, self.transpose[1]));
        let dims = |t: &HostTensor| t.shape[..t.shape.len() - 2].iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
        let sizes: Vec<usize> = batches(&dims(a), &dims(b))
            .unwrap_or_default()
            .iter()
            .map(|d| if let Dim::Fixed(n) = d { *n } else { 0 })
            .collect();
        let [of_a, of_b] = [a, b].map(|t| strides(&t.shape, &sizes));
        let format = if a.format == DType::Plain(Type::I8) { DType::I32 } else { a.format };
        let float = plain(format).is_some_and(Type::is_float);
        let mut out = Reference::default();
        for batch in 0..sizes.iter().product::<usize>() {
            let (mut left, mut from_a, mut from_b) = (batch, 0, 0);
            for (i, size) in sizes.iter().enumerate().rev() {
                from_a += left % size * of_a[i];
                from_b += left % size * of_b[i];
                left /= size;
            }
            for row in 0..n {
                for column in 0..m {
                    let terms = (0..k).map(|d| {
                        let x = if self.transpose[0] { d * n + row } else { row * k + d };
                        let y = if self.transpose[1] { column * k + d } else { d * m + column };
                        a.values[from_a + x] * b.values[from_b + y]
                    });
                    let (mut y, squares) = terms.fold((0.0, 0.0), |(s, q), t| (s + t, q + t * t));
                    let mut bound = sum_bound(a.format, k as f64, y, squares);
                    let mut rest = rest.iter();
                    let eps = epsilon(format);
                    if let Some(bias) = rest.next().filter(|_| self.bias) {
                        y += bias.values[column];
                        bound += y.abs() * eps;
                    }
                    if let Some(activation) = self.activation {
                        (y, bound) = activated(activation, y, bound, epsilon(a.format));
                    }
                    if let Some(residual) = inputs.last().filter(|_| self.residual) {
                        y += residual.values[out.values.len()];
                        bound += y.abs() * eps;
                    }
                    out.push(y, if float { stored(format, y, bound) } else { 0.0 });
                }
            }
        }
        out
    }
}

/// Where the operand's matrix of a batch begins.
fn start(b: &mut Builder, batch: Value, batches: &[usize], strides: &[usize]) -> Value {
    let (mut left, mut start) = (batch, Value::from(0u32));
    for (i, (size, stride)) in batches.iter().zip(strides).enumerate().rev() {
        // The slowest dimension takes the rest.
        let index = if i == 0 { left } else { b.rem(left, *size as u32) };
        if *stride > 0 {
            let offset = b.mul(index, *stride as u32);
            start = b.add(start, offset);
        }
        if i > 0 {
            left = b.div(left, *size as u32);
        }
    }
    start
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let dims = |shape: &[usize]| shape.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
    let numbers = |ty: Type, shape: &[Dim]| CaseInput {
        format: DType::Plain(ty),
        shape: shape.to_vec(),
        fill: Fill::Normal(if ty.is_float() { 1.0 } else { 30.0 }),
    };
    let case = |op: BatchMatmul, ty: Type, a: &[usize], b: &[usize]| {
        let (a, b) = (numbers(ty, &dims(a)), numbers(ty, &dims(b)));
        let result = op.result(&[&TensorType::new(a.format, &*a.shape), &TensorType::new(b.format, &*b.shape)]);
        let mut case = Case::new(op, &[]).input(a).input(b);
        if let Some(TensorType { format: DType::Plain(ty), shape }) = result {
            let bias = op.bias.then(|| numbers(ty, &shape[shape.len() - 1..]));
            let residual = op.residual.then(|| numbers(ty, &shape));
            case = bias.into_iter().chain(residual).fold(case, Case::input);
        }
        case
    };
    let transposed = |a: bool, b: bool| BatchMatmul { transpose: [a, b], ..BatchMatmul::default() };
    let plain = transposed(false, false);
    let mut cases = vec![
        case(plain, Type::F32, &[1, 1], &[1, 1]),
        case(plain, Type::F32, &[3, 0], &[0, 5]),
        case(plain, Type::F32, &[9, 0], &[0, 9]),
        case(plain, Type::F32, &[1, 100], &[100, 300]),
        case(plain, Type::F32, &[300, 33], &[33, 1]),
        case(plain, Type::F32, &[2, 3, 9, 20], &[3, 20, 70]),
        case(plain, Type::F32, &[5, 1, 4, 7], &[6, 7, 3]),
        case(plain, Type::F32, &[10, 20], &[3, 20, 10]),
        case(plain, Type::F32, &[0, 10, 20], &[20, 10]),
    ];
    for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
        let left = |n: usize, k: usize| if a { [2, k, n] } else { [2, n, k] };
        let right = |k: usize, m: usize| if b { [m, k] } else { [k, m] };
        for (ty, n, m, k) in [
            (Type::F32, 70, 65, 40),
            (Type::F32, 4, 90, 65),
            (Type::BF16, 65, 70, 33),
            (Type::I8, 20, 9, 65),
            (Type::F64, 9, 20, 33),
            // More than a tile of a device, in sizes that are whole vectors and in odd ones.
            (Type::F32, 136, 140, 72),
            (Type::BF16, 136, 264, 136),
            (Type::F16, 129, 77, 201),
            (Type::I8, 144, 136, 160),
            (Type::F64, 130, 66, 50),
            (Type::I32, 66, 70, 19),
            (Type::I64, 66, 70, 19),
        ] {
            cases.push(case(transposed(a, b), ty, &left(n, k), &right(k, m)));
        }
    }
    // Few results of many products, batches that lie differently in both sides, and a single column or row.
    for ty in [Type::BF16, Type::F16, Type::F32, Type::I8] {
        cases.push(case(plain, ty, &[24, 4096], &[4096, 40]));
        cases.push(case(transposed(true, false), ty, &[2104, 9], &[2104, 17]));
        cases.push(case(plain, ty, &[3, 1, 2, 20, 16], &[2, 1, 16, 24]));
        cases.push(case(transposed(false, true), ty, &[3, 1, 130, 64], &[1, 2, 136, 64]));
        cases.push(case(plain, ty, &[70, 48], &[48, 1]));
        cases.push(case(plain, ty, &[1, 48], &[48, 70]));
    }
    let full = BatchMatmul { bias: true, activation: Some(Activation::Relu), residual: true, ..plain };
    for (ty, m) in [(Type::BF16, 40), (Type::F16, 37), (Type::F32, 40), (Type::I8, 37)] {
        cases.extend([case(full, ty, &[20, 4096], &[4096, m]), case(full, ty, &[2, 140, 64], &[2, 64, m])]);
    }
    for activation in [Activation::Gelu, Activation::Silu] {
        let op = BatchMatmul { activation: Some(activation), bias: true, ..plain };
        cases.push(case(op, Type::BF16, &[140, 64], &[64, 72]));
    }
    for (bias, activation, residual, ty) in [
        (true, None, false, Type::F32),
        (false, None, true, Type::F16),
        (true, Some(Activation::Gelu), true, Type::F32),
        (false, Some(Activation::Silu), true, Type::F32),
        (true, Some(Activation::Relu), false, Type::BF16),
        (true, Some(Activation::Relu), true, Type::I8),
        (false, Some(Activation::Relu), false, Type::I32),
        (true, None, true, Type::I64),
        (true, Some(Activation::Gelu), false, Type::F64),
        (false, Some(Activation::Silu), true, Type::F64),
    ] {
        let op = BatchMatmul { bias, activation, residual, ..plain };
        cases.extend([case(op, ty, &[2, 9, 20], &[20, 33]), case(op, ty, &[3, 20], &[20, 33])]);
    }
    // Sizes that are run-time extents: rows, batches, and the depth.
    let (extent, fixed) = (Dim::Extent(0), Dim::Fixed);
    for format in [DType::F32, DType::BF16, DType::F16, DType::F64] {
        let input = |shape: &[Dim]| CaseInput::normal(format, shape);
        for (rows, max) in [(0, 9), (7, 9), (70, 130)] {
            let mut both = Vec::new();
            both.push((transposed(false, true), input(&[extent, fixed(17)]), input(&[fixed(12), fixed(17)])));
            both.push((plain, input(&[extent, fixed(3), fixed(5)]), input(&[extent, fixed(5), fixed(4)])));
            both.push((transposed(true, false), input(&[extent, fixed(9)]), input(&[extent, fixed(10)])));
            both.push((plain, input(&[extent, fixed(3), fixed(16)]), input(&[fixed(16), fixed(8)])));
            both.push((transposed(true, false), input(&[extent, fixed(16)]), input(&[extent, fixed(24)])));
            for (op, a, b) in both {
                cases.push(Case::new(op, &[(max, rows)]).input(a).input(b));
            }
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::erf;

    #[test]
    fn the_reference_of_gelu_has_the_error_function() {
        for (x, want) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (-1.0, -0.842_700_792_949_714_9),
            (2.9, 0.999_958_902_121_900_5),
            (3.1, 0.999_988_351_342_632_8),
            (-6.0, -0.999_999_999_999_999_9),
        ] {
            assert!((erf(x) - want).abs() < 1e-15, "erf({x}) = {} ≠ {want}", erf(x));
        }
    }
}
