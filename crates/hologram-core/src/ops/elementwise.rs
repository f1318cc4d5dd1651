//! Elementwise operations: each is one line of the table at the end, and chains of them are fused into one kernel.

use hologram_backends::{Format, KernelSpec};
use hologram_isa::{Builder, Type, Value};

use super::{Elementwise, Kernel, Launchable, Op, TensorArg};
use crate::conformance::{Case, CaseInput, Fill, HostTensor, Reference};
use crate::error::{CoreError, Result};
use crate::graph::{Graph, NodeId};
use crate::tensor::{Dim, TensorType};

/// One row of the table of scalar expressions.
struct Scalar {
    name: &'static str,
    operands: usize,
    emit: fn(&mut Builder, &[Value]) -> Value,
    reference: fn(&[f64]) -> f64,
    /// Relative error bound in units of 2⁻²³; a correctly rounded operation has 0.5.
    ulp: f64,
}

/// An elementwise operation on `f32`. Operands have the output's shape, or are a suffix of it that repeats (a row, a scalar).
#[derive(Clone, Copy)]
struct Map {
    scalar: &'static Scalar,
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.scalar.name)
    }
}

impl Elementwise for Map {
    fn emit(&self, b: &mut Builder, args: &[Value]) -> Value {
        (self.scalar.emit)(b, args)
    }
}

impl Op for Map {
    fn name(&self) -> &'static str {
        self.scalar.name
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, String> {
        if inputs.len() != self.scalar.operands {
            return Err(format!("takes {} operands, not {}", self.scalar.operands, inputs.len()));
        }
        if inputs.iter().any(|t| t.format != Format::F32) {
            return Err("takes f32".into());
        }
        let widest = inputs.iter().max_by_key(|t| t.shape.len()).ok_or("takes operands")?;
        for t in inputs {
            if !widest.shape.ends_with(&t.shape) || (t.shape.len() < widest.shape.len() && is_dynamic(t)) {
                return Err("an operand's shape must be the last dimensions of the other's".into());
            }
        }
        Ok((*widest).clone())
    }

    fn elementwise(&self) -> Option<&dyn Elementwise> {
        Some(self)
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        elementwise_program(spec, |b, args| Some(self.emit(b, args)))
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let len = inputs.iter().map(|t| t.values.len()).max().unwrap_or(0);
        let mut out = Reference::default();
        let mut args = vec![0.0; inputs.len()];
        for i in 0..len {
            for (a, t) in args.iter_mut().zip(inputs) {
                *a = t.values[i % t.values.len()];
            }
            let y = (self.scalar.reference)(&args);
            // What underflows on the way may still be multiplied by an operand.
            let underflow = args.iter().product::<f64>().abs().max(1.0) * f64::from(f32::MIN_POSITIVE);
            out.push(y, y.abs() * self.scalar.ulp * f64::from(f32::EPSILON) + underflow);
        }
        out
    }
}

/// Conversion of `f32` to a plain type.
#[derive(Debug)]
struct Cast {
    to: Type,
}

impl Elementwise for Cast {
    fn emit(&self, b: &mut Builder, args: &[Value]) -> Value {
        args.first().map_or_else(|| Value::from(0.0f32), |v| b.cvt(self.to, *v))
    }
}

impl Op for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, String> {
        match inputs {
            [x] if x.format == Format::F32 && self.to.is_float() => {
                Ok(TensorType::new(Format::Plain(self.to), x.shape.clone()))
            }
            _ => Err(format!("takes one f32 operand to a float type, not to {}", self.to)),
        }
    }

    fn elementwise(&self) -> Option<&dyn Elementwise> {
        Some(self)
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        elementwise_program(spec, |b, args| Some(self.emit(b, args)))
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let mut out = Reference::default();
        for v in inputs.iter().flat_map(|t| &t.values) {
            out.push(super::rounded(*v, Format::Plain(self.to)), 0.0);
        }
        out
    }
}

/// Threads of a workgroup.
const THREADS: u32 = 256;

/// The program of an elementwise expression: one thread for each element; operands shorter than the output repeat.
///
/// # Errors
/// When the expression cannot be emitted.
pub(crate) fn elementwise_program(
    spec: &KernelSpec,
    emit: impl FnOnce(&mut Builder, &[Value]) -> Option<Value>,
) -> Result<Launchable> {
    let mut k = Kernel::new(spec, THREADS);
    let total = k.elements(&spec.output);
    let (inputs, output) = (k.inputs.clone(), k.output.clone());
    let i = k.b.global_x();
    let inside = k.b.lt(i, total);
    let mut emitted = true;
    k.b.if_(inside, |b| {
        let args: Vec<Value> = inputs.iter().map(|t| load_repeating(b, t, spec, i)).collect();
        match emit(b, &args) {
            Some(value) => output.store(b, i, value),
            None => emitted = false,
        }
    });
    if !emitted {
        return Err(CoreError::Graph(format!("{}: an operand has no value", spec.op)));
    }
    let max = spec.output.max_rows() * spec.output.row_len();
    k.finish(max.div_ceil(THREADS as usize))
}

fn load_repeating(b: &mut Builder, t: &TensorArg, spec: &KernelSpec, i: Value) -> Value {
    if t.spec.shape.len() == spec.output.shape.len() {
        return t.load(b, i);
    }
    let len = t.spec.max_rows() * t.spec.row_len();
    let at = if len == 1 { Value::from(0u32) } else { b.rem(i, len as u32) };
    t.load(b, at)
}

fn is_dynamic(t: &TensorType) -> bool {
    t.shape.iter().any(|d| matches!(d, Dim::Extent(_)))
}

fn sigmoid(b: &mut Builder, x: Value) -> Value {
    let n = b.neg(x);
    let e = b.exp(n);
    let d = b.add(e, 1.0f32);
    b.div(1.0f32, d)
}

macro_rules! operations {
    ($($name:ident($($arg:ident),*) $ulp:literal $doc:literal, $emit:expr, $reference:expr;)*) => {
        impl Graph {
            $(
                #[doc = $doc]
                ///
                /// # Errors
                /// When the operands are not `f32` or their shapes do not fit: each the other's, or its last dimensions.
                pub fn $name(&mut self, $($arg: NodeId),*) -> Result<NodeId> {
                    self.apply(Map { scalar: find(stringify!($name)) }, &[$($arg),*])
                }
            )*

            /// Converts `f32` to `f16` or `bf16`, rounding to nearest even.
            ///
            /// # Errors
            /// When the operand is not `f32` or `to` is no float type.
            pub fn cast(&mut self, x: NodeId, to: Type) -> Result<NodeId> {
                self.apply(Cast { to }, &[x])
            }
        }

        static TABLE: &[Scalar] = &[$(Scalar {
            name: stringify!($name),
            operands: [$(stringify!($arg)),*].len(),
            emit: $emit,
            reference: $reference,
            ulp: $ulp,
        },)*];
    };
}

operations! {
    add(a, b) 0.5 "Sum.", |b, v| b.add(v[0], v[1]), |v| v[0] + v[1];
    sub(a, b) 0.5 "Difference.", |b, v| b.sub(v[0], v[1]), |v| v[0] - v[1];
    mul(a, b) 0.5 "Product.", |b, v| b.mul(v[0], v[1]), |v| v[0] * v[1];
    div(a, b) 0.5 "Quotient.", |b, v| b.div(v[0], v[1]), |v| v[0] / v[1];
    max(a, b) 0.0 "The greater.", |b, v| b.max(v[0], v[1]), |v| v[0].max(v[1]);
    min(a, b) 0.0 "The lesser.", |b, v| b.min(v[0], v[1]), |v| v[0].min(v[1]);
    neg(x) 0.0 "Negation.", |b, v| b.neg(v[0]), |v| -v[0];
    abs(x) 0.0 "Absolute value.", |b, v| b.abs(v[0]), |v| v[0].abs();
    exp(x) 2.0 "e to the power of x.", |b, v| b.exp(v[0]), |v| v[0].exp();
    tanh(x) 2.0 "Hyperbolic tangent.", |b, v| b.tanh(v[0]), |v| v[0].tanh();
    relu(x) 0.0 "max(x, 0).", |b, v| b.max(v[0], 0.0f32), |v| v[0].max(0.0);
    sigmoid(x) 3.0 "1 / (1 + e⁻ˣ).", |b, v| sigmoid(b, v[0]), |v| 1.0 / (1.0 + (-v[0]).exp());
    silu(x) 3.5 "x · sigmoid(x).", |b, v| { let s = sigmoid(b, v[0]); b.mul(v[0], s) }, |v| v[0] / (1.0 + (-v[0]).exp());
    swiglu(gate, up) 4.0 "silu(gate) · up (Shazeer, 2020, arXiv:2002.05202).",
        |b, v| { let s = sigmoid(b, v[0]); let s = b.mul(v[0], s); b.mul(s, v[1]) },
        |v| v[0] / (1.0 + (-v[0]).exp()) * v[1];
    relu2_mul(gate, up) 1.0 "max(gate, 0)² · up: the squared-ReLU gate of BitNet b1.58.",
        |b, v| { let r = b.max(v[0], 0.0f32); let r = b.mul(r, r); b.mul(r, v[1]) },
        |v| v[0].max(0.0).powi(2) * v[1];
}

/// The table row of an operation; every name comes from the macro that also fills the table.
fn find(name: &str) -> &'static Scalar {
    TABLE.iter().find(|s| s.name == name).unwrap_or(&TABLE[0])
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let dims = |rows: Option<Dim>, d: usize| rows.into_iter().chain([Dim::Fixed(d)]).collect::<Vec<_>>();
    for scalar in TABLE {
        for (rows, max, d) in [(0, 3, 5), (1, 1, 1), (3, 4, 257), (8, 8, 1000)] {
            let mut case = Case::new(Map { scalar }, &[(max, rows)]);
            for _ in 0..scalar.operands {
                case = case.input(CaseInput::normal(Format::F32, &dims(Some(Dim::Extent(0)), d)));
            }
            cases.push(case);
        }
        if scalar.operands == 2 {
            let case = Case::new(Map { scalar }, &[(4, 3)])
                .input(CaseInput::normal(Format::F32, &dims(Some(Dim::Extent(0)), 33)))
                .input(CaseInput::normal(Format::F32, &dims(None, 33)));
            cases.push(case);
        }
    }
    let special = [0.0, -0.0, 1.0, -1.0, 88.0, -88.0, 104.0, -104.0, 1e-30, 20.0, -20.0, 1e15, -1e15, 1e-15];
    for scalar in TABLE {
        // Every value, or every pair of values.
        let n = special.len();
        let columns = match scalar.operands {
            1 => vec![special.to_vec()],
            _ => vec![special.repeat(n), special.iter().flat_map(|v| std::iter::repeat_n(*v, n)).collect()],
        };
        let input = |values: Vec<f32>| CaseInput {
            format: Format::F32,
            shape: dims(None, values.len()),
            fill: Fill::Values(values),
        };
        cases.push(columns.into_iter().fold(Case::new(Map { scalar }, &[]), |case, values| case.input(input(values))));
    }
    for to in [Type::F16, Type::BF16] {
        cases.push(
            Case::new(Cast { to }, &[(5, 4)]).input(CaseInput::normal(Format::F32, &dims(Some(Dim::Extent(0)), 100))),
        );
    }
    cases
}
