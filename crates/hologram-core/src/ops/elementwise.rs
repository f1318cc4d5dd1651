//! Elementwise operations: each is one line of the table at the end, and chains of them are fused into one kernel.

use std::cell::Cell;

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
        elementwise_program(spec, 1, |b, args| Some(self.emit(b, args)))
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
        elementwise_program(spec, 1, |b, args| Some(self.emit(b, args)))
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let mut out = Reference::default();
        for v in inputs.iter().flat_map(|t| &t.values) {
            out.push(super::rounded(*v, Format::Plain(self.to)), 0.0);
        }
        out
    }
}

/// Threads of a workgroup, where each has one element and where each has four.
const THREADS: u32 = 256;
const THREADS_OF_FOUR: u32 = 128;

/// The program of an elementwise expression; operands shorter than the output repeat. Each thread has `per_thread` neighbouring
/// elements: 1, or 4, which a device can move together.
///
/// # Errors
/// When the expression cannot be emitted.
pub(crate) fn elementwise_program(
    spec: &KernelSpec,
    per_thread: u32,
    emit: impl Fn(&mut Builder, &[Value]) -> Option<Value>,
) -> Result<Launchable> {
    let mut k = Kernel::new(spec, if per_thread == 4 { THREADS_OF_FOUR } else { THREADS });
    let total = k.elements(&spec.output);
    let (inputs, output) = (k.inputs.clone(), k.output.clone());
    let emitted = Cell::new(true);
    let value = |b: &mut Builder, args: &[Value]| {
        emit(b, args).unwrap_or_else(|| {
            emitted.set(false);
            Value::from(0.0f32)
        })
    };
    let one = |b: &mut Builder, i: Value| {
        let args: Vec<Value> = inputs.iter().map(|t| load_repeating(b, t, spec, i)).collect();
        let value = value(b, &args);
        output.store(b, i, value);
    };
    let max = spec.output.max_rows() * spec.output.row_len();
    let t = k.b.global_x();
    let threads = if per_thread == 4 {
        // A thread has elements 4·t to 4·t + 3; the one after the last whole four has the rest.
        let fours = k.b.shr(total, 2u32);
        let (whole, last) = (k.b.lt(t, fours), k.b.eq(t, fours));
        let first = k.b.shl(t, 2u32);
        let four = |b: &mut Builder| {
            let args: Vec<[Value; 4]> = inputs.iter().map(|t| load_four(b, t, spec, first)).collect();
            let values = [0, 1, 2, 3].map(|k| value(b, &args.iter().map(|a| a[k]).collect::<Vec<_>>()));
            for (k, value) in (0u32..).zip(values) {
                let i = b.add(first, k);
                output.store(b, i, value);
            }
        };
        k.b.if_else(whole, four, |b| b.if_(last, |b| b.for_(first, total, 1u32, one)));
        max.div_ceil(4).div_ceil(THREADS_OF_FOUR as usize)
    } else {
        let inside = k.b.lt(t, total);
        k.b.if_(inside, |b| one(b, t));
        max.div_ceil(THREADS as usize)
    };
    if !emitted.get() {
        return Err(CoreError::Graph(format!("{}: an operand has no value", spec.op)));
    }
    k.finish(threads)
}

/// The length after which an operand repeats; `None` where it has the output's shape.
fn period(t: &TensorArg, spec: &KernelSpec) -> Option<u32> {
    (t.spec.shape.len() != spec.output.shape.len()).then(|| (t.spec.max_rows() * t.spec.row_len()) as u32)
}

fn load_repeating(b: &mut Builder, t: &TensorArg, spec: &KernelSpec, i: Value) -> Value {
    let at = match period(t, spec) {
        None => i,
        Some(1) => Value::from(0u32),
        Some(len) => b.rem(i, len),
    };
    t.load(b, at)
}

/// The elements from `first`, a multiple of four, on.
fn load_four(b: &mut Builder, t: &TensorArg, spec: &KernelSpec, first: Value) -> [Value; 4] {
    let first = match period(t, spec) {
        Some(1) => return [t.load(b, 0u32); 4],
        Some(len) if len % 4 != 0 => {
            return [0, 1, 2, 3].map(|k: u32| {
                let i = b.add(first, k);
                load_repeating(b, t, spec, i)
            });
        }
        Some(len) => b.rem(first, len),
        None => first,
    };
    [0, 1, 2, 3].map(|k: u32| {
        let i = b.add(first, k);
        t.load(b, i)
    })
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

#[cfg(test)]
mod tests {
    use hologram_backends::{Extent, TensorSpec};
    use hologram_isa::interp::{Binding, interpret};

    use super::*;

    /// What the program of x · y + x gives, with `per_thread` elements a thread; 64 bytes of the output lie beyond its end.
    fn run(shape: &[Extent], repeated: &[Extent], actual: u32, per_thread: u32) -> Vec<u8> {
        let tensor = |shape: &[Extent]| TensorSpec { format: Format::F32, shape: shape.to_vec() };
        let spec = KernelSpec {
            op: "fused",
            inputs: vec![tensor(shape), tensor(repeated)],
            output: tensor(shape),
            in_place: None,
            attrs: Vec::new(),
        };
        let emit = |b: &mut Builder, v: &[Value]| {
            let product = b.mul(v[0], v[1]);
            Some(b.add(product, v[0]))
        };
        let (program, grid) = elementwise_program(&spec, per_thread, emit).unwrap();
        let bytes = |n: usize| (0..n).flat_map(|i| (i as f32 * 0.37 - 5.0).to_le_bytes()).collect::<Vec<u8>>();
        let (n, m) = (spec.output.max_bytes() / 4, spec.inputs[1].max_bytes() / 4);
        let (mut x, mut y, mut out, mut step) = (bytes(n), bytes(m), vec![0xee; n * 4 + 64], actual.to_le_bytes());
        let len = |memory: usize, len: usize| Binding::Buffer { memory, offset: 0, len };
        let mut bindings = vec![len(0, n * 4), len(1, m * 4), len(2, n * 4)];
        if spec.uses_step() {
            bindings.push(len(3, 4));
        }
        interpret(&program, grid, &mut [&mut x, &mut y, &mut out, &mut step], &bindings).unwrap();
        out
    }

    #[test]
    fn four_elements_a_thread_give_what_one_gives() {
        let (fixed, rows) = (Extent::Fixed, Extent::Step { slot: 0, max: 5 });
        for width in [1, 3, 4, 8, 33, 257] {
            for actual in [0, 1, 3, 5] {
                let shape = [rows, fixed(width)];
                for repeated in [&shape[..], &shape[1..]] {
                    assert!(
                        run(&shape, repeated, actual, 1) == run(&shape, repeated, actual, 4),
                        "{actual} of {shape:?} with {repeated:?}"
                    );
                }
            }
        }
        assert!(run(&[fixed(1030)], &[fixed(1030)], 0, 1) == run(&[fixed(1030)], &[fixed(1030)], 0, 4));
    }
}
