//! Evenly spaced numbers.

use hologram_backends::{DType, KernelSpec, Operation};
use hologram_isa::Type;

use super::elementwise::{constant, wrap};
use super::{Fill, Kernel, Launchable, Mismatch, Op, register_type, rounded};
#[cfg(feature = "conformance")]
use crate::conformance::Case;
use crate::eager::Call;
use crate::error::{CoreError, Result};
use crate::executor::Executor;
use crate::graph::{Graph, NodeId};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, Tensor, TensorType, plain};

/// The operation, without inputs.
#[derive(Debug)]
struct Arange {
    start: f64,
    step: f64,
    ty: Type,
    len: Dim,
}

const THREADS: u32 = 256;

impl Arange {
    fn new(ty: Type, start: f64, step: f64, len: Dim) -> Result<Arange> {
        if ty == Type::Bool {
            return Err(CoreError::Graph("arange does not exist for bool".into()));
        }
        Fill::new(start, ty, &[])?;
        Fill::new(step, ty, &[])?;
        Ok(Arange { start, step, ty, len })
    }
}

impl Graph {
    /// `start + i·step` for each index `i` below `len`: `[len]`. Floats are computed in `f32` (`f64` in `f64`) with
    /// one rounding of the sum; integers wrap.
    ///
    /// # Errors
    /// When the type is `bool`, or is an integer type that cannot represent `start` or `step`.
    pub fn arange(&mut self, dtype: impl Into<DType>, start: f64, step: f64, len: Dim) -> Result<NodeId> {
        let ty = plain("arange", dtype.into())?;
        self.apply(Arange::new(ty, start, step, len)?, &[])
    }
}

impl Tensor {
    /// `start + i·step` for each index `i` below `len`, as [`Graph::arange`].
    ///
    /// # Errors
    /// As [`Graph::arange`]; errors of the device.
    pub fn arange(executor: &Executor, dtype: impl Into<DType>, start: f64, step: f64, len: usize) -> Result<Tensor> {
        let ty = plain("arange", dtype.into())?;
        let key = [ty as u64, start.to_bits(), step.to_bits(), len as u64];
        executor.cached(Call::Arange, &key, &[], |g, _| g.arange(ty, start, step, Dim::Fixed(len)))
    }
}

impl Op for Arange {
    fn operation(&self) -> Operation {
        Operation::Arange { start: self.start.into(), step: self.step.into() }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        match inputs {
            [] => Ok(TensorType::new(DType::Plain(self.ty), [self.len])),
            _ => Err("takes no operands".into()),
        }
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let register = register_type(self.ty);
        let mut k = Kernel::new(spec, THREADS);
        let total = k.elements(&spec.output);
        let out = k.output.clone();
        let b = &mut k.b;
        let i = b.global_x();
        let inside = b.lt(i, total);
        b.if_(inside, |b| {
            let index = b.cvt(register, i);
            let (start, step) = (constant(register, self.start), constant(register, self.step));
            let value = if register.is_float() {
                b.fma(index, step, start)
            } else {
                let product = b.mul(index, step);
                b.add(product, start)
            };
            out.store(b, i, value);
        });
        k.finish(spec.output.row_len().div_ceil(THREADS as usize))
    }

    fn reference(&self, _: &[HostTensor]) -> Reference {
        let mut out = Reference::default();
        let Dim::Fixed(len) = self.len else { return out };
        for i in 0..len {
            if !self.ty.is_float() {
                let (start, step) = (self.start as i64, self.step as i64);
                out.push(wrap(self.ty, start.wrapping_add(step.wrapping_mul(i as i64))), 0.0);
                continue;
            }
            let y = self.start + self.step * i as f64;
            // Start, step and index are each rounded once, then the sum.
            let size = self.start.abs() + 2.0 * (self.step * i as f64).abs() + y.abs();
            let unit = match self.ty {
                Type::F64 => f64::EPSILON,
                _ => f64::from(f32::EPSILON),
            };
            let narrow = match self.ty {
                Type::F16 => y.abs() / 2048.0 + 1.0 / f64::from(1u32 << 25),
                Type::BF16 => y.abs() / 256.0,
                _ => 0.0,
            };
            let stored = rounded(y, DType::Plain(self.ty));
            out.push(if stored.is_infinite() { stored } else { y }, 0.5 * size * unit + narrow);
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in Type::ALL {
        for (start, step, len) in
            [(0.0, 1.0, 300), (-7.0, 3.0, 33), (200.0, 1.0, 100), (-0.3, 0.1, 1000), (1.0, 1.0, 0)]
        {
            cases.extend(Arange::new(ty, start, step, Dim::Fixed(len)).ok().map(|op| Case::new(op, &[])));
        }
    }
    cases
}
