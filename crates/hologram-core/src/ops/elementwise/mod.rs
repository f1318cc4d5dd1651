//! Elementwise operations: each is one row of the table in `table.rs`. Chains of them are fused into one kernel.

#[cfg(feature = "conformance")]
mod cases;
mod cast;
mod constant;
mod derivative;
mod divide;
mod functions;
mod inverse;
mod pow;
mod program;
mod table;

use hologram_backends::{DType, Extent, KernelSpec, Operation};
use hologram_isa::{Builder, Type, TypeSet, Value};

#[cfg(feature = "conformance")]
pub(super) use cases::cases;
#[cfg(feature = "conformance")]
pub(crate) use cases::gradient_rows;
pub(crate) use constant::Fill;
pub(crate) use program::{copy_program, elementwise_program};

use super::lines::not_for;
use super::{Elementwise, Launchable, Mismatch, Op};
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp, no_derivative};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// One row of the table of scalar expressions.
struct Scalar {
    op: hologram_backends::Elementwise,
    operands: usize,
    /// The operands' element types; all operands have one.
    types: TypeSet,
    kind: Kind,
    /// Computes in the register type of the operands' type: see [`register_type`].
    emit: fn(&mut Builder, &[Value]) -> Value,
    reference: fn(&[f64]) -> f64,
    /// The reference for integers, if it differs from the truncated `reference`. A result that does not fit the type
    /// wraps.
    whole: Option<fn(&[i64]) -> i64>,
    /// Error bound in units of 2⁻²³ (`f64`: 2⁻⁵²), relative to the result or to [`Scalar::scale`], whichever
    /// is greater. A correctly rounded operation has 0.5. For `f16` and `bf16` the rounding of the result is added.
    ulp: f64,
    /// The magnitude that the error is relative to if it exceeds the result, such as an operand whose parts cancel.
    scale: fn(&[f64]) -> f64,
    /// The gradients by the operands. `None` for operations of which no result is a float.
    gradients: Option<derivative::Gradients>,
}

/// The types of an operation apart from those of its operands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The result has the operands' type.
    Map,
    /// The result is `bool`.
    Compare,
    /// The first operand is `bool`, the result has the type of the others.
    Choose,
}

/// An elementwise operation of the table. Operands broadcast as in NumPy.
#[derive(Clone, Copy)]
struct Map {
    scalar: &'static Scalar,
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.scalar.op.name())
    }
}

impl Elementwise for Map {
    fn emit(&self, b: &mut Builder, args: &[Value]) -> Value {
        (self.scalar.emit)(b, args)
    }
}

impl Op for Map {
    fn operation(&self) -> Operation {
        self.scalar.op.into()
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let Scalar { operands, types, kind, .. } = self.scalar;
        if inputs.len() != *operands {
            return Err(format!("takes {operands} operands, not {}", inputs.len()).into());
        }
        let shape = broadcast_shape(inputs)?;
        let numbers = match (kind, inputs) {
            (Kind::Choose, [condition, rest @ ..]) => {
                if condition.format != DType::Plain(Type::Bool) {
                    return Err("the condition must be bool".into());
                }
                rest
            }
            _ => inputs,
        };
        let format = numbers.first().ok_or("takes operands")?.format;
        if numbers.iter().any(|t| t.format != format) {
            return Err("the operands must have one type; cast makes it so".into());
        }
        match format {
            DType::Plain(ty) if types.contains(ty) => {
                let format = if *kind == Kind::Compare { DType::Plain(Type::Bool) } else { format };
                Ok(TensorType::new(format, shape))
            }
            _ => Err(not_for(format, |ty| types.contains(ty))),
        }
    }

    fn elementwise(&self) -> Option<&dyn Elementwise> {
        Some(self)
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        elementwise_program(spec, &[], 1, |b, args| Some(self.emit(b, args)))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        match self.scalar.gradients {
            Some(gradients) => derivative::vjp(g, call, gradients),
            None => Err(no_derivative(self.name())),
        }
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let Some(DType::Plain(ty)) = inputs.last().map(|t| t.format) else { return Reference::default() };
        let mut out = Reference::default();
        for_each_broadcast(inputs, |args| {
            let (value, bound) = self.scalar.expect(ty, args);
            out.push(value, bound);
        });
        out
    }
}

impl Scalar {
    /// The result for operands of a type, with its error bound.
    fn expect(&self, ty: Type, args: &[f64]) -> (f64, f64) {
        let y = (self.reference)(args);
        if self.kind != Kind::Map {
            return (y, 0.0);
        }
        if !ty.is_float() {
            let y = match self.whole {
                Some(whole) => whole(&args.iter().map(|v| *v as i64).collect::<Vec<_>>()),
                None => y as i64,
            };
            return (wrap(ty, y), 0.0);
        }
        let size = y.abs().max((self.scale)(args));
        // An intermediate result that underflows may still be multiplied by an operand.
        let product = args.iter().product::<f64>().abs();
        let greatest = args.iter().map(|v| v.abs()).filter(|v| v.is_finite()).fold(1.0, f64::max);
        let underflow = if product.is_finite() { product.max(greatest) } else { greatest };
        match stored(y, ty) {
            infinite if infinite.is_infinite() => (infinite, 0.0),
            // An operation that is not correctly rounded is not so in the reference either.
            _ if ty == Type::F64 && self.ulp > 0.5 => (y, bound(ty, y, 2.0 * self.ulp * size, underflow)),
            _ => (y, bound(ty, y, self.ulp * size, underflow)),
        }
    }
}

/// The absolute error bound of a float result `y`: `ulps` in units of the type it is computed in, plus the rounding to
/// a narrower type.
pub(super) fn bound(ty: Type, y: f64, ulps: f64, underflow: f64) -> f64 {
    let (relative, least) = match ty {
        Type::F16 => (1.0 / 2048.0, 1.0 / f64::from(1u32 << 25)),
        Type::BF16 => (1.0 / 256.0, f64::from(f32::MIN_POSITIVE)),
        _ => (0.0, 0.0),
    };
    // Rounding to nearest is off by less than half a unit in the result's last place only for correctly rounded
    // operations.
    let narrow = if ulps == 0.0 { 0.0 } else { relative * y.abs() + least };
    let (unit, least) = match ty {
        Type::F64 => (f64::EPSILON, f64::MIN_POSITIVE),
        _ => (f64::from(f32::EPSILON), f64::from(f32::MIN_POSITIVE)),
    };
    ulps * unit + underflow * least + narrow
}

/// A float rounded to a type.
fn stored(y: f64, ty: Type) -> f64 {
    if ty == Type::F32 { f64::from(y as f32) } else { super::rounded(y, DType::Plain(ty)) }
}

/// The low bits of a whole number, in an integer type.
pub(super) fn wrap(ty: Type, y: i64) -> f64 {
    match ty {
        Type::Bool => f64::from(u8::from(y & 1 != 0)),
        Type::I8 => f64::from(y as i8),
        Type::U8 => f64::from(y as u8),
        Type::I16 => f64::from(y as i16),
        Type::U16 => f64::from(y as u16),
        Type::I32 => f64::from(y as i32),
        Type::U32 => f64::from(y as u32),
        Type::U64 => y as u64 as f64,
        _ => y as f64,
    }
}

/// The type in which elements of a type are computed: `f32` for narrower floats, 32 bits for narrower integers.
pub(crate) const fn register_type(ty: Type) -> Type {
    match ty {
        Type::F16 | Type::BF16 => Type::F32,
        Type::I8 | Type::I16 => Type::I32,
        Type::U8 | Type::U16 => Type::U32,
        other => other,
    }
}

/// A constant of a register type.
pub(super) fn constant(ty: Type, value: f64) -> Value {
    match ty {
        Type::Bool => Value::from(value != 0.0),
        Type::I8 | Type::I16 | Type::I32 => Value::from(value as i32),
        Type::U8 | Type::U16 | Type::U32 => Value::from(value as u32),
        Type::I64 => Value::from(value as i64),
        Type::U64 => Value::from(value as u64),
        Type::F64 => Value::from(value),
        Type::F16 | Type::BF16 | Type::F32 => Value::from(value as f32),
    }
}

/// The shape that operands broadcast to, as in NumPy: shapes are aligned at their ends; sizes of 1 and missing
/// dimensions repeat.
fn broadcast_shape(inputs: &[&TensorType]) -> std::result::Result<Vec<Dim>, String> {
    let rank = inputs.iter().map(|t| t.shape.len()).max().unwrap_or(0);
    let mut shape = vec![Dim::Fixed(1); rank];
    for t in inputs {
        let missing = rank - t.shape.len();
        for (have, dim) in shape[missing..].iter_mut().zip(&t.shape) {
            match (*have, *dim) {
                (Dim::Fixed(1), dim) => *have = dim,
                (have, dim) if have == dim || dim == Dim::Fixed(1) => {}
                _ => return Err("the shapes do not broadcast: sizes must be equal or 1, counted from the last".into()),
            }
        }
    }
    Ok(shape)
}

/// Calls `f` with the operands of each element of the result.
fn for_each_broadcast(inputs: &[HostTensor], mut f: impl FnMut(&[f64])) {
    let rank = inputs.iter().map(|t| t.shape.len()).max().unwrap_or(0);
    let size = |t: &HostTensor, k: usize| t.shape.len().checked_sub(rank - k).map_or(1, |j| t.shape[j]);
    let of_all = |k: usize| inputs.iter().map(|t| size(t, k)).find(|n| *n != 1).unwrap_or(1);
    let shape: Vec<usize> = (0..rank).map(of_all).collect();
    let mut args = vec![0.0; inputs.len()];
    for i in 0..shape.iter().product() {
        for (arg, t) in args.iter_mut().zip(inputs) {
            let (mut at, mut stride, mut rest) = (0, 1, i);
            for k in (0..rank).rev() {
                let n = size(t, k);
                at += if n == 1 { 0 } else { rest % shape[k] * stride };
                (stride, rest) = (stride * n, rest / shape[k]);
            }
            *arg = t.values[at];
        }
        f(&args);
    }
}

/// The number of elements of a spec's shape at its maximum.
fn sizes(shape: &[Extent]) -> usize {
    shape.iter().map(|e| e.max()).product()
}
