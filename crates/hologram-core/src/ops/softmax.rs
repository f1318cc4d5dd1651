//! Softmax of rows: `y = exp(x − m) / Σ exp(x − m)` with m the row's greatest element.

use hologram_backends::{Format, KernelSpec};
use hologram_isa::{Opcode, SUBGROUP_SIZE, Type};

use super::reduce::{THREADS, workgroup_reduce};
use super::{Kernel, Launchable, Op};
use crate::conformance::{Case, CaseInput, Fill, HostTensor, Reference};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::tensor::{Dim, TensorType};

/// The operation; `x` is `f32 [.., d]`.
#[derive(Debug)]
struct Softmax;

impl Graph {
    /// The softmax of the rows of `x` (`f32 [.., d]`). An element of −∞ has probability 0; a row with a NaN, with +∞, or of nothing but
    /// −∞ gives NaN.
    ///
    /// # Errors
    /// When the operand does not fit.
    pub fn softmax(&mut self, x: NodeId) -> Result<NodeId> {
        self.apply(Softmax, &[x])
    }
}

impl Op for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, String> {
        match inputs {
            [x] if x.format == Format::F32 && x.row_len().is_some_and(|d| d > 0) => Ok((*x).clone()),
            _ => Err("takes f32 with rows of a fixed length above 0".into()),
        }
    }

    /// One workgroup for each row.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let d = spec.output.row_len() as u32;
        let mut k = Kernel::new(spec, THREADS);
        let greatest = k.b.shared("greatest", Type::F32, THREADS / SUBGROUP_SIZE);
        let sums = k.b.shared("sums", Type::F32, THREADS / SUBGROUP_SIZE);
        let rows = k.rows(&spec.output);
        let (x, y) = (k.inputs[0].clone(), k.output.clone());
        let b = &mut k.b;
        let row = b.builtin(Opcode::GroupX);
        let inside = b.lt(row, rows);
        b.if_(inside, |b| {
            let start = b.mul(row, d);
            let thread = b.builtin(Opcode::ThreadX);
            let m = b.var(f32::NEG_INFINITY);
            b.for_(thread, d, THREADS, |b, i| {
                let at = b.add(start, i);
                let v = x.load(b, at);
                b.assign_op(m, Opcode::Max, &[m, v]);
            });
            let m = workgroup_reduce(b, greatest, Opcode::Max, m);
            let sum = b.var(0.0f32);
            b.for_(thread, d, THREADS, |b, i| {
                let at = b.add(start, i);
                let v = x.load(b, at);
                let v = b.sub(v, m);
                let v = b.exp(v);
                b.assign_op(sum, Opcode::Add, &[sum, v]);
            });
            let sum = workgroup_reduce(b, sums, Opcode::Add, sum);
            b.for_(thread, d, THREADS, |b, i| {
                let at = b.add(start, i);
                let v = x.load(b, at);
                let v = b.sub(v, m);
                let v = b.exp(v);
                let v = b.div(v, sum);
                y.store(b, at, v);
            });
        });
        k.finish(spec.output.max_rows())
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x] = inputs else { return Reference::default() };
        let d = x.row_len();
        let mut out = Reference::default();
        for row in x.values.chunks(d) {
            let m = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|v| (v - m).exp()).sum();
            for v in row {
                let y = (v - m).exp() / sum;
                // Half an ulp of x − m is an absolute error of the exponent; exp has 2 ulp, above and in the sum below; the sum's
                // roundings walk at random. What is below the normal numbers may be flushed.
                let exponent = if v.is_finite() { (v - m).abs() } else { 0.0 };
                let relative = exponent / 2.0 + (d as f64).sqrt() / 8.0 + 8.0;
                out.push(y, y * relative * f64::from(f32::EPSILON) + f64::from(f32::MIN_POSITIVE));
            }
        }
        out
    }
}

pub(super) fn cases() -> Vec<Case> {
    let case = |rows: usize, max: usize, d: usize, size: f32| {
        let mut input = CaseInput::normal(Format::F32, &[Dim::Extent(0), Dim::Fixed(d)]);
        input.fill = Fill::Normal(size);
        Case::new(Softmax, &[(max, rows)]).input(input)
    };
    let row = |values: &[f32]| {
        let mut input = CaseInput::normal(Format::F32, &[Dim::Fixed(values.len())]);
        input.fill = Fill::Values(values.to_vec());
        Case::new(Softmax, &[]).input(input)
    };
    let none = f32::NEG_INFINITY;
    vec![
        case(0, 2, 8, 1.0),
        case(1, 1, 1, 1.0),
        case(5, 8, 33, 10.0),
        case(3, 3, 257, 40.0),
        case(2, 3, 8192, 1.0),
        case(2, 2, 20_003, 3.0),
        row(&[none, 3.0, none, 3.0]),
        row(&[none, none]),
        row(&[1.0, f32::NAN, 2.0]),
        row(&[1.0, f32::INFINITY, 2.0]),
        row(&[3e38, -3e38, 0.0]),
    ]
}
