//! Activations to 8-bit codes with one scale per group of a row.

use hologram_backends::{DType, KernelSpec, Operation};
use hologram_isa::{Builder, Opcode, SUBGROUP_SIZE, Type, Value};

use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// The operation; `x` is `f32 [n, k]`.
#[derive(Debug)]
struct Quantize {
    group: u32,
    floor: f32,
}

impl Graph {
    /// Quantizes the rows of `x` (`f32 [n, k]`) in groups of `group` elements, which must divide k, to
    /// [`DType::I8Groups`].
    ///
    /// With a = max(max|x|, `floor`) over a group, its scale is a / 127 and its codes are x · (127 / a), rounded to
    /// nearest even and clamped to -128..=127. If a is 0, scale and codes are 0. A group with a NaN is NaN; a group
    /// with an infinity is NaN or infinite.
    ///
    /// # Errors
    /// When the operand does not fit or the group does not divide k.
    pub fn quantize(&mut self, x: NodeId, group: u32, floor: f32) -> Result<NodeId> {
        self.apply(Quantize { group, floor }, &[x])
    }
}

const THREADS: u32 = 256;
const SUBGROUPS: u32 = THREADS / SUBGROUP_SIZE;

impl Op for Quantize {
    fn operation(&self) -> Operation {
        Operation::Quantize { group: self.group, floor: self.floor.into() }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let x = rows_of_groups(inputs, self.group)?;
        if !(self.floor >= 0.0 && self.floor.is_finite()) {
            return Err(format!("the floor must be a finite number and not negative, not {}", self.floor).into());
        }
        Ok(TensorType::new(DType::I8Groups { group: self.group }, x.shape.clone()))
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        program_of_groups(spec, self.group, (self.floor, 127.0), |b, v| {
            let v = b.round(v);
            let v = b.max(v, -128.0f32);
            let v = b.min(v, 127.0f32);
            b.cvt(Type::I8, v)
        })
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x] = inputs else { return Reference::default() };
        let mut out = Reference::default();
        for group in x.values.chunks(self.group as usize) {
            let greatest = super::widest(f64::from(self.floor), group);
            let scale = greatest / 127.0;
            for v in group {
                let code = if greatest == 0.0 { 0.0 } else { v / scale };
                let rounded = code.round_ties_even().clamp(-128.0, 127.0);
                // The quotient is off by at most 2⁻²³, which changes only codes that are this close to a tie; the
                // scale is off by half an ulp.
                let tie = (code - code.floor() - 0.5).abs() <= code.abs() * f64::from(f32::EPSILON);
                let step = if tie { scale } else { 0.0 };
                let value = rounded * scale;
                out.push(value, value.abs() * f64::from(f32::EPSILON) / 2.0 + step + f64::from(f32::MIN_POSITIVE));
            }
        }
        out
    }
}

/// The operand, if groups of this many elements divide its rows.
pub(super) fn rows_of_groups<'a>(inputs: &[&'a TensorType], group: u32) -> std::result::Result<&'a TensorType, String> {
    let [x] = inputs else { return Err("takes x".into()) };
    match x.shape.as_slice() {
        [_, Dim::Fixed(k)] if x.format == DType::F32 => match group > 0 && *k > 0 && k.is_multiple_of(group as usize) {
            true => Ok(x),
            false => Err(format!("groups of {group} do not divide rows of {k}")),
        },
        _ => Err("takes f32 of two dimensions".into()),
    }
}

/// The program, one subgroup per group of `of_group` elements. With a, the greatest magnitude of a group and at least
/// `floor`, the scale is a / `most`, and an element's code is `code` of it times `most` / a.
pub(super) fn program_of_groups(
    spec: &KernelSpec,
    of_group: u32,
    (floor, most): (f32, f32),
    code: impl Fn(&mut Builder, Value) -> Value,
) -> Result<Launchable> {
    let groups_of_row = spec.output.row_len() as u32 / of_group;
    let mut k = Kernel::new(spec, THREADS);
    let rows = k.rows(&spec.output);
    let (x, out) = (k.inputs[0].clone(), k.output.clone());
    let b = &mut k.b;
    let groups = b.mul(rows, groups_of_row);
    let workgroup = b.builtin(Opcode::GroupX);
    let subgroup = b.builtin(Opcode::Subgroup);
    let first = b.mul(workgroup, SUBGROUPS);
    let group = b.add(first, subgroup);
    let inside = b.lt(group, groups);
    b.if_(inside, |b| {
        let lane = b.builtin(Opcode::Lane);
        let start = b.mul(group, of_group);
        // Magnitudes as bits: they have the order of the numbers, and NaN is the greatest.
        let greatest = b.var(floor.to_bits());
        b.for_(lane, of_group, SUBGROUP_SIZE, |b, i| {
            let at = b.add(start, i);
            let v = x.load(b, at);
            let v = b.abs(v);
            let v = b.bitcast(Type::U32, v);
            b.assign_op(greatest, Opcode::Max, &[greatest, v]);
        });
        let greatest = b.subgroup_max(greatest);
        let greatest = b.bitcast(Type::F32, greatest);
        let zero = b.eq(greatest, 0.0f32);
        let inverse = b.div(most, greatest);
        let inverse = b.select(zero, 0.0f32, inverse);
        b.for_(lane, of_group, SUBGROUP_SIZE, |b, i| {
            let at = b.add(start, i);
            let v = x.load(b, at);
            let v = b.mul(v, inverse);
            let code = code(b, v);
            b.store(out.views[0], at, code);
        });
        let scale = b.div(greatest, most);
        let leader = b.eq(lane, 0u32);
        b.if_(leader, |b| b.store(out.views[1], group, scale));
    });
    let max = spec.output.max_rows() * groups_of_row as usize;
    k.finish(max.div_ceil(SUBGROUPS as usize))
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let case = |group: u32, floor: f32, rows: usize, max: usize, k: usize| {
        Case::new(Quantize { group, floor }, &[(max, rows)])
            .input(CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(k)]))
    };
    let values = |group: u32, floor: f32, row: &[f32]| {
        let mut input = CaseInput::normal(DType::F32, &[Dim::Fixed(1), Dim::Fixed(row.len())]);
        input.fill = crate::conformance::Fill::Values(row.to_vec());
        Case::new(Quantize { group, floor }, &[]).input(input)
    };
    let mut zeros = vec![0.0; 64];
    let all_zero = values(32, 0.0, &zeros);
    let below_floor = values(64, 1e-5, &zeros.iter().map(|_| -1e-7).collect::<Vec<_>>());
    // With scale 1, codes that end in .5 are ties.
    zeros[..8].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127.0]);
    let one_nan = |n: usize| (0..n).map(|i| if i == 5 { f32::NAN } else { i as f32 }).collect::<Vec<_>>();
    vec![
        case(32, 0.0, 1, 1, 32),
        case(32, 0.0, 0, 3, 64),
        case(32, 0.0, 5, 8, 1056),
        case(256, 1e-5, 2, 3, 256),
        case(2560, 1e-5, 3, 4, 2560),
        case(7, 0.0, 3, 3, 21),
        all_zero,
        below_floor,
        values(32, 0.0, &zeros),
        values(32, 0.0, &one_nan(128)),
        values(96, 1e-5, &one_nan(96)),
        values(21, 0.0, &one_nan(63)),
    ]
}
