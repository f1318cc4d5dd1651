//! Padding of a tensor with one value.

use hologram_backends::{DType, KernelSpec, Operation};
use hologram_isa::Value;

use super::kernel::divide;
use super::{Fill, Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{self, Case, CaseInput};
use crate::eager::Call;
use crate::error::{CoreError, Result};
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, Tensor, TensorType};

/// The operation; `x` is of any plain type. `sides` has, per dimension, the number of elements before and after it.
#[derive(Debug)]
struct Pad {
    sides: Vec<(usize, usize)>,
    fill: Fill,
}

const THREADS: u32 = 256;

impl Graph {
    /// `x`, of a plain format, with `sides[k].0` elements of `value` before and `sides[k].1` after it
    /// in each dimension `k`.
    ///
    /// # Errors
    /// When there is not one pair per dimension, the pair of a run-time extent is not (0, 0), or the type
    /// cannot represent `value`.
    pub fn pad(&mut self, x: NodeId, sides: &[(usize, usize)], value: f64) -> Result<NodeId> {
        let format = self.operand("pad", x)?.ty.format;
        let DType::Plain(ty) = format else {
            return Err(CoreError::Graph(format!("pad does not take {}", format.name())));
        };
        self.apply(Pad { sides: sides.to_vec(), fill: Fill::new(value, ty, &[])? }, &[x])
    }
}

impl Tensor {
    /// The tensor with `sides[k].0` elements of `value` before and `sides[k].1` after it in each dimension `k`.
    ///
    /// # Errors
    /// As [`Graph::pad`]; errors of the device.
    pub fn pad(&self, sides: &[(usize, usize)], value: f64) -> Result<Tensor> {
        let mut key = vec![value.to_bits()];
        key.extend(sides.iter().flat_map(|(before, after)| [*before as u64, *after as u64]));
        self.executor.cached(Call::Pad, &key, &[self], |g, v| g.pad(v[0], sides, value))
    }
}

impl Op for Pad {
    fn operation(&self) -> Operation {
        let before = self.sides.iter().map(|(before, _)| *before as u32).collect();
        Operation::Pad { before, value: self.fill.number().into() }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [x] = inputs else { return Err("takes one tensor".into()) };
        if x.shape.len() != self.sides.len() {
            return Err(format!(
                "takes two sizes for each of {} dimensions, not of {}",
                x.shape.len(),
                self.sides.len()
            )
            .into());
        }
        let mut shape = x.shape.clone();
        for (dim, (before, after)) in shape.iter_mut().zip(&self.sides) {
            match dim {
                Dim::Fixed(n) => {
                    *n = n.checked_add(*before).and_then(|n| n.checked_add(*after)).ok_or("too many elements")?;
                }
                Dim::Extent(_) if (*before, *after) == (0, 0) => {}
                Dim::Extent(_) => return Err("a run-time extent has no border".into()),
            }
        }
        Ok(TensorType::new(x.format, shape))
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let mut k = Kernel::new(spec, THREADS);
        let total = k.elements(&spec.output);
        let (x, out) = (k.inputs[0].clone(), k.output.clone());
        let b = &mut k.b;
        let i = b.global_x();
        let exists = b.lt(i, total);
        b.if_(exists, |b| {
            let (mut rest, mut at, mut inside) = (i, Value::from(0u32), Value::from(true));
            let mut stride = 1u32;
            for (k, (before, _)) in self.sides.iter().enumerate().rev() {
                let (n, own) = (spec.output.shape[k].max() as u32, spec.inputs[0].shape[k].max() as u32);
                let mut index = rest;
                if k > 0 {
                    rest = divide(b, rest, n.max(1));
                    let whole = b.mul(rest, n);
                    index = b.sub(index, whole);
                }
                if n != own {
                    // Below `before` the difference wraps to a large number.
                    index = b.sub(index, *before as u32);
                    let within = b.lt(index, own);
                    inside = b.and(inside, within);
                }
                let step = b.mul(index, stride);
                at = b.add(at, step);
                stride = stride.wrapping_mul(own);
            }
            let value = self.fill.value(b);
            let border = b.cvt(x.views[0].element, value);
            b.if_else(
                inside,
                |b| {
                    let value = b.load(x.views[0], at);
                    b.store(out.views[0], i, value);
                },
                |b| b.store(out.views[0], i, border),
            );
        });
        let max = spec.output.max_rows() * spec.output.row_len();
        k.finish(max.div_ceil(THREADS as usize))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let mut grad = call.grad;
        for (dim, (before, after)) in self.sides.iter().enumerate().filter(|(_, sides)| **sides != (0, 0)) {
            if let Some(Dim::Fixed(n)) = g.shape_of(grad).get(dim).copied() {
                grad = g.slice(grad, dim, *before, n - after)?;
            }
        }
        Ok(vec![Some(grad)])
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let mut out = Reference::default();
        let [x] = inputs else { return out };
        let sizes: Vec<usize> = x.shape.iter().zip(&self.sides).map(|(n, (a, z))| n + a + z).collect();
        for i in 0..sizes.iter().product() {
            let (mut rest, mut at, mut stride, mut inside) = (i, 0, 1, true);
            for ((n, own), (before, _)) in sizes.iter().zip(&x.shape).zip(&self.sides).rev() {
                let index = rest % n;
                rest /= n;
                inside &= (*before..before + own).contains(&index);
                at += index.saturating_sub(*before) * stride;
                stride *= own;
            }
            out.push(if inside { x.values[at] } else { self.fill.stored() }, 0.0);
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    use hologram_isa::Type;
    let case = |ty: Type, sizes: &[usize], sides: &[(usize, usize)], value: f64| {
        let shape: Vec<Dim> = sizes.iter().map(|n| Dim::Fixed(*n)).collect();
        let fill = Fill::new(value, ty, &[]).ok()?;
        let input = CaseInput { format: DType::Plain(ty), shape, fill: conformance::Fill::Below(2) };
        Some(Case::new(Pad { sides: sides.to_vec(), fill }, &[]).input(input))
    };
    let rows = Fill::new(7.0, Type::F32, &[]).ok().map(|fill| {
        let input = CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(9)]);
        Case::new(Pad { sides: vec![(0, 0), (2, 0)], fill }, &[(5, 4)]).input(input)
    });
    [
        case(Type::F32, &[5], &[(2, 3)], -0.1),
        case(Type::F32, &[0], &[(1, 1)], 2.0),
        case(Type::F16, &[3, 4], &[(1, 0), (0, 2)], 0.1),
        case(Type::BF16, &[2, 3, 130], &[(0, 0), (1, 1), (3, 4)], 0.0),
        case(Type::I8, &[2, 2, 3, 3], &[(0, 0), (0, 0), (1, 1), (2, 2)], -100.0),
        case(Type::Bool, &[3, 3], &[(1, 1), (1, 1)], 1.0),
        case(Type::I64, &[7, 2], &[(0, 1), (0, 0)], -1e12),
        case(Type::F64, &[3], &[(0, 0)], 0.0),
        case(Type::U32, &[], &[], 0.0),
    ]
    .into_iter()
    .chain([rows])
    .flatten()
    .collect()
}
