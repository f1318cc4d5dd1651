//! Operations across the lanes of a subgroup.

use hologram_isa::{Opcode, SUBGROUP_SIZE, Type, meaning};

use super::words::Float;

const LANES: usize = SUBGROUP_SIZE as usize;

/// A register of a subgroup operation, by its first word, as values of 32 or 64 bits.
#[derive(Clone, Copy)]
pub(super) struct Register {
    pub(super) words: *mut u32,
    pub(super) lanes: usize,
}

impl Register {
    /// # Safety
    /// The register holds values of this size, and nothing writes to it meanwhile.
    unsafe fn values<'a, T>(self) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.words.cast(), self.lanes) }
    }

    /// # Safety
    /// As for `values`, and nothing else refers to it.
    unsafe fn values_mut<'a, T>(self) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.words.cast(), self.lanes) }
    }
}

/// Runs a subgroup operation on each subgroup. `lane` is the second operand of a shuffle. Inactive lanes get
/// meaningless values.
///
/// # Safety
/// `dst` and `value` hold values of the type's size; `dst` is none of the others.
pub(super) unsafe fn subgroup(op: Opcode, ty: Type, dst: Register, value: Register, lane: &[u32], mask: &[u32]) {
    macro_rules! across {
        ($rust:ident, $zero:expr, $lowest:expr, $highest:expr, $add:expr, $min:expr, $max:expr) => {{
            // SAFETY: the caller's promise.
            let (dst, value) = unsafe { (dst.values_mut::<$rust>(), value.values::<$rust>()) };
            each(dst, value, mask, |value, mask| match op {
                Opcode::SubgroupAdd => butterfly(value, mask, $zero, $add),
                Opcode::SubgroupMin => butterfly(value, mask, $highest, $min),
                _ => butterfly(value, mask, $lowest, $max),
            })
        }};
        (integer $rust:ident) => {
            across!($rust, 0, $rust::MIN, $rust::MAX, $rust::wrapping_add, $rust::min, $rust::max)
        };
        (float $rust:ident) => {
            across!($rust, -0.0, $rust::NAN, $rust::NAN, |a, b| a + b, $rust::least, $rust::greatest)
        };
    }
    match (op, ty) {
        // SAFETY: the caller's promise.
        (Opcode::Shuffle | Opcode::Broadcast, ty) if ty.is_wide() => unsafe {
            moved::<u64>(op, dst.values_mut(), value.values(), lane, mask);
        },
        // SAFETY: the caller's promise.
        (Opcode::Shuffle | Opcode::Broadcast, _) => unsafe {
            moved::<u32>(op, dst.values_mut(), value.values(), lane, mask);
        },
        (_, Type::I32) => across!(integer i32),
        (_, Type::U32) => across!(integer u32),
        (_, Type::I64) => across!(integer i64),
        (_, Type::U64) => across!(integer u64),
        (_, Type::F32) => across!(float f32),
        (_, Type::F64) => across!(float f64),
        _ => {}
    }
}

/// Runs a product of tiles on each subgroup.
///
/// # Safety
/// The operands hold values of 32, 32 and 64 bits, the result of 64; `dst` is none of them.
pub(super) unsafe fn tiles(ty: Type, dst: Register, [a, b, c]: [Register; 3]) {
    // SAFETY: the caller's promise.
    let (dst, a, b, c) = unsafe { (dst.values_mut::<u64>(), a.values::<u32>(), b.values::<u32>(), c.values::<u64>()) };
    let (a, b, c) = (a.as_chunks::<LANES>().0, b.as_chunks::<LANES>().0, c.as_chunks::<LANES>().0);
    for (((dst, a), b), c) in dst.as_chunks_mut::<LANES>().0.iter_mut().zip(a).zip(b).zip(c) {
        if let Some(sums) = meaning::tile(ty, a, b, c) {
            *dst = sums;
        }
    }
}

/// Writes each subgroup's result to all its lanes.
#[inline(always)]
fn each<T: Copy>(dst: &mut [T], value: &[T], mask: &[u32], result: impl Fn(&[T], &[u32]) -> T) {
    let groups = value.chunks_exact(LANES).zip(mask.chunks_exact(LANES));
    for (dst, (value, mask)) in dst.chunks_exact_mut(LANES).zip(groups) {
        dst.fill(result(value, mask));
    }
}

/// A shuffle or broadcast.
fn moved<T: Copy>(op: Opcode, dst: &mut [T], value: &[T], lane: &[u32], mask: &[u32]) {
    let groups = value.chunks_exact(LANES).zip(lane.chunks_exact(LANES)).zip(mask.chunks_exact(LANES));
    for (dst, ((value, lane), mask)) in dst.chunks_exact_mut(LANES).zip(groups) {
        if op == Opcode::Shuffle {
            for (i, dst) in dst.iter_mut().enumerate() {
                let source = lane[i] as usize % LANES;
                *dst = if mask[source] != 0 { value[source] } else { value[i] };
            }
        } else if let Some(lowest) = mask.iter().position(|m| *m != 0) {
            dst.fill(value[lowest]);
        }
    }
}

/// Combines the lanes in the order that defines `subgroup.add`: each lane with the one 16 apart, then 8, 4, 2, 1. Every
/// lane gets the same result, so one is computed.
#[inline(always)]
fn butterfly<T: Copy>(value: &[T], mask: &[u32], neutral: T, f: impl Fn(T, T) -> T) -> T {
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
