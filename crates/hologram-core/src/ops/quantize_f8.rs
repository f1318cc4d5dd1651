//! Activations to floats of 8 bits with one scale per group of a row.

use hologram_backends::{DType, KernelSpec, Operation};
use hologram_isa::{Builder, Type, Value};

use super::quantize::{program_of_groups, rows_of_groups};
use super::{Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::reference::{HostTensor, Reference};
#[cfg(feature = "conformance")]
use crate::tensor::Dim;
use crate::tensor::TensorType;

/// The operation; `x` is `f32 [n, k]`.
#[derive(Debug)]
struct QuantizeF8 {
    group: u32,
}

impl Graph {
    /// Converts the rows of `x` (`f32 [n, k]`), in groups of `group` elements, which must divide k, to floats of 8 bits
    /// (E4M3), [`DType::F8Groups`].
    ///
    /// With a = max|x| over a group, its scale is a / 448, the greatest float, and its codes are the floats nearest to
    /// x · (448 / a), the even one of two; elements below a / 28,672 have fewer than four bits. If a is 0, scale and
    /// codes are 0. A group with a NaN or an infinity is NaN.
    ///
    /// # Errors
    /// When the operand does not fit or the group does not divide k.
    pub fn quantize_f8(&mut self, x: NodeId, group: u32) -> Result<NodeId> {
        self.apply(QuantizeF8 { group }, &[x])
    }
}

/// The greatest float of 8 bits.
const MOST: f32 = 448.0;
/// The least float with all bits.
const NORMAL: f32 = 1.0 / 64.0;

/// The code of the float of a byte that is nearest to a number, as [`hologram_backends::Values::to_e4m3`].
pub(super) fn float_code(b: &mut Builder, v: Value) -> Value {
    let magnitude = b.abs(v);
    let magnitude = b.min(magnitude, MOST);
    let small = b.mul(magnitude, 512.0f32);
    let small = b.round(small);
    let small = b.cvt(Type::U32, small);
    // Three bits of mantissa are left; half of the last and its parity round to nearest even.
    let bits = b.bitcast(Type::U32, magnitude);
    let odd = b.shr(bits, 20u32);
    let odd = b.and(odd, 1u32);
    let bits = b.add(bits, 0x7_ffffu32);
    let bits = b.add(bits, odd);
    let bits = b.shr(bits, 20u32);
    let normal = b.sub(bits, 120u32 << 3);
    let is_small = b.lt(magnitude, NORMAL);
    let code = b.select(is_small, small, normal);
    let sign = b.bitcast(Type::U32, v);
    let sign = b.shr(sign, 24u32);
    let sign = b.and(sign, 128u32);
    let code = b.or(code, sign);
    b.and(code, 255u32)
}

impl Op for QuantizeF8 {
    fn operation(&self) -> Operation {
        Operation::QuantizeF8 { group: self.group }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let x = rows_of_groups(inputs, self.group)?;
        Ok(TensorType::new(DType::F8Groups { group: self.group }, x.shape.clone()))
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        program_of_groups(spec, self.group, (0.0, MOST), |b, v| {
            let code = float_code(b, v);
            b.cvt(Type::U8, code)
        })
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x] = inputs else { return Reference::default() };
        let mut out = Reference::default();
        for group in x.values.chunks(self.group as usize) {
            let greatest = super::widest(0.0, group);
            let scale = greatest / f64::from(MOST);
            for v in group {
                let code = if greatest == 0.0 { 0.0 } else { v / scale };
                // The distance of the floats next to it.
                let step = code.abs().max(f64::from(NORMAL)).log2().floor().exp2() / 8.0;
                let steps = code / step;
                let rounded = (steps.round_ties_even() * step).clamp(-f64::from(MOST), f64::from(MOST));
                // The quotient is off by at most 2⁻²³: codes that are this close to a tie may be their neighbours.
                let tie = (steps - steps.floor() - 0.5).abs() <= steps.abs() * f64::from(f32::EPSILON);
                let step = if tie { step * scale } else { 0.0 };
                let value = rounded * scale;
                out.push(value, value.abs() * f64::from(f32::EPSILON) / 2.0 + step + f64::from(f32::MIN_POSITIVE));
            }
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let case = |group: u32, rows: usize, max: usize, k: usize| {
        Case::new(QuantizeF8 { group }, &[(max, rows)])
            .input(CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(k)]))
    };
    let values = |group: u32, row: &[f32]| {
        let mut input = CaseInput::normal(DType::F32, &[Dim::Fixed(1), Dim::Fixed(row.len())]);
        input.fill = crate::conformance::Fill::Values(row.to_vec());
        Case::new(QuantizeF8 { group }, &[]).input(input)
    };
    // With scale 1: ties of normal and of subnormal floats, and numbers far below the least.
    let mut ties = vec![0.0; 128];
    ties[..8].copy_from_slice(&[448.0, 17.0, 19.0, -0.5 / 512.0, -1.5 / 512.0, 1e-6, -448.0, 7.5 / 512.0]);
    let one_nan: Vec<f32> = (0..256).map(|i| if i == 5 { f32::NAN } else { i as f32 }).collect();
    vec![
        case(128, 1, 1, 128),
        case(128, 0, 3, 256),
        case(1056, 5, 8, 1056),
        case(4096, 130, 160, 4096),
        case(7, 3, 3, 21),
        values(128, &[0.0; 128]),
        values(128, &ties),
        values(128, &one_nan),
    ]
}
