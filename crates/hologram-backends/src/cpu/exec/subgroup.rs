//! Operations across the lanes of a subgroup.

use hologram_isa::{Opcode, SUBGROUP_SIZE, Type};

use super::words::{float, max_f, min_f};

const LANES: usize = SUBGROUP_SIZE as usize;

/// Runs a subgroup operation on each subgroup; `lane` is the second operand of a shuffle. What inactive lanes get means nothing.
pub(super) fn subgroup(op: Opcode, ty: Type, dst: &mut [u32], value: &[u32], lane: &[u32], mask: &[u32]) {
    let groups = value.chunks_exact(LANES).zip(lane.chunks_exact(LANES)).zip(mask.chunks_exact(LANES));
    for (dst, ((value, lane), mask)) in dst.chunks_exact_mut(LANES).zip(groups) {
        match op {
            Opcode::Shuffle => {
                for (i, dst) in dst.iter_mut().enumerate() {
                    let source = lane[i] as usize % LANES;
                    *dst = if mask[source] != 0 { value[source] } else { value[i] };
                }
            }
            Opcode::Broadcast => dst.fill(mask.iter().position(|m| *m != 0).map_or(0, |lowest| value[lowest])),
            Opcode::SubgroupAdd if ty == Type::F32 => {
                dst.fill(butterfly(value, mask, (-0.0f32).to_bits(), |a, b| (float(a) + float(b)).to_bits()));
            }
            Opcode::SubgroupAdd => dst.fill(butterfly(value, mask, 0, u32::wrapping_add)),
            Opcode::SubgroupMin => dst.fill(match ty {
                Type::F32 => butterfly(value, mask, f32::NAN.to_bits(), min_f),
                Type::I32 => butterfly(value, mask, i32::MAX as u32, |a, b| (a as i32).min(b as i32) as u32),
                _ => butterfly(value, mask, u32::MAX, u32::min),
            }),
            Opcode::SubgroupMax => dst.fill(match ty {
                Type::F32 => butterfly(value, mask, f32::NAN.to_bits(), max_f),
                Type::I32 => butterfly(value, mask, i32::MIN as u32, |a, b| (a as i32).max(b as i32) as u32),
                _ => butterfly(value, mask, 0, u32::max),
            }),
            _ => {}
        }
    }
}

/// Combines the lanes in the order that defines `subgroup.add`: with the lane 16 apart, then 8, 4, 2, 1. Every lane comes to the same
/// result, so one is computed.
#[inline(always)]
fn butterfly(value: &[u32], mask: &[u32], neutral: u32, f: impl Fn(u32, u32) -> u32) -> u32 {
    let mut v = [neutral; LANES];
    for (i, v) in v.iter_mut().enumerate() {
        if mask[i] != 0 {
            *v = value[i];
        }
    }
    let mut distance = LANES / 2;
    while distance > 0 {
        for i in 0..distance {
            v[i] = f(v[i], v[i + distance]);
        }
        distance /= 2;
    }
    v[0]
}
