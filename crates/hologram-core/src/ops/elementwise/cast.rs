//! Conversion between element types.

use hologram_backends::{DType, KernelSpec, Operation};
use hologram_isa::{Builder, Type, Value};

use super::{elementwise_program, stored, wrap};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
use crate::ops::{Elementwise, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::tensor::Dim;
use crate::tensor::{TensorType, plain};

/// Conversion of plain elements to another plain type.
#[derive(Debug)]
pub(crate) struct Cast {
    pub(crate) to: Type,
}

impl Graph {
    /// Converts elements to another type.
    ///
    /// - To a float: rounded to nearest even.
    /// - From a float to an integer: toward zero, clamped to the range; NaN gives 0.
    /// - To a narrower integer: the low bits.
    /// - To `bool`: whether not zero. From `bool`: 0 or 1.
    ///
    /// # Errors
    /// When the operand or the new type is not plain.
    pub fn cast(&mut self, x: NodeId, to: impl Into<DType>) -> Result<NodeId> {
        self.apply(Cast { to: plain("cast", to.into())? }, &[x])
    }
}

impl Elementwise for Cast {
    fn emit(&self, b: &mut Builder, args: &[Value]) -> Value {
        args.first().map_or_else(|| Value::from(0.0f32), |v| b.cvt(self.to, *v))
    }
}

impl Op for Cast {
    fn operation(&self) -> Operation {
        Operation::Cast
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        match inputs {
            [x] if matches!(x.format, DType::Plain(_)) => Ok(TensorType::new(DType::Plain(self.to), x.shape.clone())),
            _ => Err(format!("takes one operand of a plain type, to make it {}", self.to).into()),
        }
    }

    fn elementwise(&self) -> Option<&dyn Elementwise> {
        Some(self)
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        elementwise_program(spec, &[], 1, |b, args| Some(self.emit(b, args)))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        Ok(vec![Some(g.cast_like(call.grad, call.inputs[0])?)])
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let mut out = Reference::default();
        for t in inputs {
            t.values.iter().for_each(|v| out.push(convert(*v, t.format, self.to), 0.0));
        }
        out
    }
}

fn convert(v: f64, from: DType, to: Type) -> f64 {
    let is_float = matches!(from, DType::Plain(ty) if ty.is_float());
    match to {
        Type::Bool => f64::from(u8::from(v != 0.0)),
        _ if to.is_float() => stored(v, to),
        Type::I8 if is_float => f64::from(v as i8),
        Type::U8 if is_float => f64::from(v as u8),
        Type::I16 if is_float => f64::from(v as i16),
        Type::U16 if is_float => f64::from(v as u16),
        Type::I32 if is_float => f64::from(v as i32),
        Type::U32 if is_float => f64::from(v as u32),
        Type::I64 if is_float => v as i64 as f64,
        Type::U64 if is_float => v as u64 as f64,
        _ => wrap(to, v as i64),
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let floats = [
        0.0,
        -0.0,
        0.5,
        1.5,
        -1.5,
        2.5,
        127.6,
        -128.4,
        255.5,
        300.0,
        -300.0,
        65504.0,
        65520.0,
        1e9,
        -1e9,
        3e9,
        5e9,
        1e-8,
        1e-40,
        3.4e38,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1.003_906_2,
        1.000_488_3,
        16_777_215.0,
    ];
    let wholes = [0.0, 1.0, -1.0, 2.0, 127.0, -128.0, 100.0, 255.0, 256.0, -300.0, 70_000.0, 8_388_609.0, 16_777_215.0];
    let mut cases = Vec::new();
    for from in Type::ALL {
        let values = match from {
            _ if from.is_float() => floats.to_vec(),
            Type::Bool => vec![0.0, 1.0, 1.0],
            Type::U8 | Type::U16 | Type::U32 | Type::U64 => wholes.into_iter().filter(|v| *v >= 0.0).collect(),
            _ => wholes.to_vec(),
        };
        for to in Type::ALL {
            let shape = vec![Dim::Fixed(values.len())];
            let input = CaseInput { format: DType::Plain(from), shape, fill: Fill::Values(values.clone()) };
            cases.push(Case::new(Cast { to }, &[]).input(input));
        }
    }
    for to in [Type::F16, Type::BF16] {
        let shape = [Dim::Extent(0), Dim::Fixed(100)];
        cases.push(Case::new(Cast { to }, &[(5, 4)]).input(CaseInput::normal(DType::F32, &shape)));
    }
    cases
}
