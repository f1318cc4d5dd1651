//! Constants: tensors filled with one value. They need no memory if only elementwise operations read them.

use hologram_backends::{DType, KernelSpec, Operation};
use hologram_isa::{Builder, Type, Value};

use super::{constant, elementwise_program, register_type, stored};
#[cfg(feature = "conformance")]
use crate::conformance::Case;
use crate::error::{CoreError, Result};
use crate::graph::{Graph, NodeId};
use crate::ops::reference::{HostTensor, Reference};
use crate::ops::{Elementwise, Launchable, Mismatch, Op};
use crate::tensor::{Dim, TensorType, plain};

/// A tensor in which every element has one value.
#[derive(Debug)]
pub(crate) struct Fill {
    value: f64,
    ty: Type,
    shape: Vec<Dim>,
}

impl Fill {
    /// # Errors
    /// When the type cannot represent the value.
    pub(crate) fn new(value: f64, ty: Type, shape: &[Dim]) -> Result<Fill> {
        let fits = match ty {
            Type::Bool => value == 0.0 || value == 1.0,
            _ if ty.is_float() => true,
            _ => {
                let (least, greatest) = integer_range(ty);
                value.fract() == 0.0 && (least..=greatest).contains(&value)
            }
        };
        if !fits {
            return Err(CoreError::Graph(format!("{value} is no value of {ty}")));
        }
        Ok(Fill { value, ty, shape: shape.to_vec() })
    }

    /// The value as elements hold it.
    pub(crate) fn stored(&self) -> f64 {
        stored(self.value, self.ty)
    }

    /// The value as the caller gave it.
    pub(crate) fn number(&self) -> f64 {
        self.value
    }

    /// The value in the type that it is computed with.
    pub(crate) fn value(&self, b: &mut Builder) -> Value {
        self.emit(b, &[])
    }

    /// The bytes of one element.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self.ty {
            Type::F16 => half::f16::from_f64(self.value).to_le_bytes().to_vec(),
            Type::BF16 => half::bf16::from_f64(self.value).to_le_bytes().to_vec(),
            Type::F32 => (self.value as f32).to_le_bytes().to_vec(),
            Type::F64 => self.value.to_le_bytes().to_vec(),
            Type::U64 => (self.value as u64).to_le_bytes().to_vec(),
            ty => (self.value as i64).to_le_bytes()[..ty.size()].to_vec(),
        }
    }
}

/// The least and the greatest number of an integer type.
fn integer_range(ty: Type) -> (f64, f64) {
    let bits = 8 * ty.size() as i32;
    let unsigned = ty.name().starts_with('u');
    if unsigned { (0.0, 2f64.powi(bits) - 1.0) } else { (-(2f64.powi(bits - 1)), 2f64.powi(bits - 1) - 1.0) }
}

impl Graph {
    /// A tensor of this shape in which every element is `value`, rounded to nearest even for floats.
    ///
    /// # Errors
    /// When an integer type cannot represent the value, or a dimension other than the first is an extent.
    pub fn full(&mut self, dtype: impl Into<DType>, shape: &[Dim], value: f64) -> Result<NodeId> {
        self.apply(Fill::new(value, plain("full", dtype.into())?, shape)?, &[])
    }

    /// A scalar: [`Graph::full`] without dimensions. As an operand of an elementwise operation it becomes part of the
    /// program.
    ///
    /// # Errors
    /// As [`Graph::full`].
    pub fn scalar(&mut self, dtype: impl Into<DType>, value: f64) -> Result<NodeId> {
        self.full(dtype, &[], value)
    }

    /// A scalar of the type of `x`, an operand of `op`.
    fn scalar_like(&mut self, op: &'static str, x: NodeId, value: f64) -> Result<NodeId> {
        match self.operand(op, x)?.ty.format {
            DType::Plain(ty) => self.scalar(ty, value),
            format => Err(CoreError::Graph(format!("there are no scalars of {}", format.name()))),
        }
    }
}

macro_rules! scalar_forms {
    ($($name:ident $op:ident $doc:literal;)*) => {
        impl Graph {
            $(
                #[doc = $doc]
                ///
                /// # Errors
                #[doc = concat!("As [`Graph::", stringify!($op), "`] and [`Graph::full`].")]
                pub fn $name(&mut self, x: NodeId, value: f64) -> Result<NodeId> {
                    let value = self.scalar_like(stringify!($name), x, value)?;
                    self.$op(x, value)
                }
            )*

            /// Clamps x to the range between two scalars: `min(max(x, least), greatest)`.
            ///
            /// # Errors
            /// As [`Graph::clip`] and [`Graph::full`].
            pub fn clip_scalar(&mut self, x: NodeId, least: f64, greatest: f64) -> Result<NodeId> {
                let [least, greatest] = [self.scalar_like("clip_scalar", x, least)?, self.scalar_like("clip_scalar", x, greatest)?];
                self.clip(x, least, greatest)
            }
        }
    };
}

scalar_forms! {
    add_scalar add "x + value.";
    sub_scalar sub "x − value.";
    mul_scalar mul "x · value.";
    div_scalar div "x / value.";
    max_scalar maximum "The greater of x and value.";
    min_scalar minimum "The lesser of x and value.";
    pow_scalar pow "x to the power of value.";
}

impl Elementwise for Fill {
    fn emit(&self, b: &mut Builder, _: &[Value]) -> Value {
        let register = register_type(self.ty);
        if register == self.ty {
            return constant(self.ty, self.value);
        }
        let value = constant(register, stored(self.value, self.ty));
        b.mov(value)
    }
}

impl Op for Fill {
    fn operation(&self) -> Operation {
        Operation::Fill { value: self.value.into() }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        match inputs {
            [] => Ok(TensorType::new(DType::Plain(self.ty), self.shape.clone())),
            _ => Err("takes no operands".into()),
        }
    }

    fn elementwise(&self) -> Option<&dyn Elementwise> {
        Some(self)
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        elementwise_program(spec, &[], 1, |b, args| Some(self.emit(b, args)))
    }

    fn reference(&self, _: &[HostTensor]) -> Reference {
        let mut out = Reference::default();
        let size = |d: &Dim| if let Dim::Fixed(n) = d { *n } else { 0 };
        for _ in 0..self.shape.iter().map(size).product() {
            out.push(stored(self.value, self.ty), 0.0);
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in Type::ALL {
        for (value, shape) in [(1.0, vec![]), (0.0, vec![3, 0]), (1.0, vec![7, 131]), (0.1, vec![3]), (-100.0, vec![3])]
        {
            let shape: Vec<Dim> = shape.into_iter().map(Dim::Fixed).collect();
            // A value that the type cannot represent is rejected.
            cases.extend(Fill::new(value, ty, &shape).ok().map(|op| Case::new(op, &[])));
        }
    }
    cases
}
