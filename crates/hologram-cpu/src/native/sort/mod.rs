//! `sort_blocks` and the merges after it: the order, as `u32` indices, of the elements along a dimension, of any plain
//! numbers. The sort is stable; −0 equals +0, and NaN is above +∞.
//!
//! An element and its index form one number with the element's bits on top, so that numbers are ordered as elements are
//! and no two are equal. Short lines are sorted by comparison, longer ones by their digits. A few long lines are
//! divided among the workers: for each digit the workers count their parts, then place them.

mod keys;
mod top_k;

use std::sync::Arc;

use hologram_device::{DType, Fused, GroupSpec, KernelSpec, Operation, SORT_BLOCK};
use hologram_isa::Type;

use self::keys::{Keys, with_keys};
pub(super) use self::top_k::find as find_top_k;
use super::lines::{Lines, Sizes};
use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};

/// Elements of the blocks that the operation `sort_blocks` sorts.
const BLOCK: usize = SORT_BLOCK;
/// Bits of a digit, and the number of digits in a key of 32 bits.
const DIGIT: u32 = 11;
const DIGITS: usize = 3;
const VALUES: usize = 1 << DIGIT;
/// The least length of a line that is sorted by digits.
const LONG: usize = 1024;
/// The least length of a line that is divided if there are fewer than `FEW` lines; and the number of parts.
const DIVIDED: usize = 1 << 15;
const FEW: usize = 4;
const PARTS: usize = 8;
/// Neighbouring lines in a piece of work, whose elements share cache lines.
const TOGETHER: usize = 16;

struct ArgSort {
    lines: Lines,
    ty: Type,
    descending: bool,
    /// Elements that are sorted separately: [`BLOCK`], or a whole line.
    block: usize,
    uses_step: bool,
}

/// The native kernel for `sort_blocks`, and for the sort of whole lines that a group requires; `None` for any other
/// spec.
pub(super) fn find(spec: &KernelSpec, _features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x] = spec.inputs.as_slice() else { return None };
    let DType::Plain(ty) = x.format else { return None };
    let (block, axis, descending) = match spec.op {
        Operation::SortBlocks { axis, descending } => (BLOCK, axis, descending),
        Operation::ArgSort { axis, descending } => (usize::MAX, axis, descending),
        _ => return None,
    };
    let served =
        spec.in_place.is_none() && ty != Type::Bool && spec.output.format == DType::U32 && spec.output.shape == x.shape;
    let lines = Lines::new(x, axis)?;
    let block = block.min(lines.max().n.max(1));
    served.then(|| {
        Arc::new(ArgSort { lines, ty, descending, block, uses_step: spec.uses_step() }) as Arc<dyn NativeKernel>
    })
}

/// The sort of whole lines that a group requires; `None` for any other group.
pub(super) fn of_group(group: &GroupSpec) -> Option<KernelSpec> {
    let Fused::SortLines { axis, descending } = group.fused else { return None };
    let (inputs, output) = (group.inputs.clone(), group.nodes.last()?.output.clone());
    Some(KernelSpec { op: Operation::ArgSort { axis, descending }, inputs, output, in_place: None })
}

impl ArgSort {
    /// Whether lines are divided among the workers.
    fn divided(&self) -> bool {
        let max = self.lines.max();
        !self.ty.is_wide() && self.block >= DIVIDED && (1..FEW).contains(&max.lines())
    }
}

impl NativeKernel for ArgSort {
    fn phases(&self) -> usize {
        if self.divided() { 2 * DIGITS * self.lines.max().lines() } else { 1 }
    }

    fn shared_scratch(&self) -> usize {
        // Two sets of numbers, and each part's counts of digits.
        if self.divided() { 2 * 8 * self.lines.max().n + PARTS * VALUES * 4 } else { 0 }
    }

    fn worker_scratch(&self) -> usize {
        match (self.divided(), self.ty.is_wide()) {
            (true, _) => VALUES * 8,
            (false, false) => 2 * 8 * self.block + DIGITS * VALUES * 4,
            (false, true) => 16 * self.block,
        }
    }

    fn run(&self, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let sizes = self.lines.sizes(if self.uses_step { args.step() } else { &[] });
        if args.raw(1).bytes < sizes.elements() * 4 || args.raw(0).bytes < sizes.elements() * self.ty.size() {
            return Err(format!("a buffer is too small for {sizes:?}"));
        }
        with_keys!(self.ty, self.descending, args, keys => {
            if self.divided() { divided(&keys, sizes, phase, args, worker) } else { whole(&keys, sizes, self.block, args, worker) }
        });
        Ok(())
    }
}

/// Sorts blocks of lines, one at a time.
fn whole<K: Keys>(keys: &K, sizes: Sizes, block: usize, args: &Args<'_>, worker: &mut Worker<'_>) {
    let scratch = std::mem::take(&mut worker.scratch);
    let out = args.output::<u32>(1);
    let per_piece =
        if sizes.inner > 1 { TOGETHER.min(sizes.inner) } else { (4096 / sizes.n.max(1)).clamp(1, TOGETHER) };
    let lines = sizes.lines();
    while let Some(piece) = worker.next(lines.div_ceil(per_piece)) {
        for line in piece * per_piece..((piece + 1) * per_piece).min(lines) {
            let first = sizes.first(line);
            for start in (0..sizes.n).step_by(block) {
                let len = block.min(sizes.n - start);
                let at = |i: usize| first + (start + i) * sizes.inner;
                // SAFETY: each element is written by the worker that has claimed its line and block.
                keys.sort(scratch, len, start, at, |i, index| unsafe { out.set(at(i), index) });
            }
        }
    }
}

/// Sorts a line by its digits, the lowest first. Even phases count the digits of each part, odd ones place its numbers.
/// One line follows the other.
fn divided<K: Keys>(keys: &K, sizes: Sizes, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) {
    let (line, digit, places) = (phase / (2 * DIGITS), phase / 2 % DIGITS, phase % 2 == 1);
    let n = sizes.n;
    if line >= sizes.lines() || n == 0 {
        return;
    }
    let first = sizes.first(line);
    let shared = worker.shared_scratch();
    let numbers = shared.data.cast::<u64>();
    let counts = shared.data.wrapping_add(16 * n).cast::<u32>();
    // Each digit moves numbers from one set to the other. The first set is made of the elements; the last numbers are
    // stored as indices.
    let (from, to) = (numbers.wrapping_add(digit % 2 * n), numbers.wrapping_add((digit + 1) % 2 * n));
    let number = |i: usize| -> u64 {
        if digit == 0 {
            keys.number(first + i * sizes.inner, i)
        } else {
            // SAFETY: the numbers were stored in an earlier phase.
            unsafe { from.add(i).read() }
        }
    };
    let value = |number: u64| (number >> (32 + DIGIT * digit as u32)) as usize & (VALUES - 1);
    while let Some(part) = worker.next(PARTS) {
        let range = n * part / PARTS..n * (part + 1) / PARTS;
        if !places {
            // SAFETY: the counts of a part are its worker's.
            let counts = unsafe { std::slice::from_raw_parts_mut(counts.add(part * VALUES), VALUES) };
            counts.fill(0);
            range.for_each(|i| counts[value(number(i))] += 1);
            continue;
        }
        // The places of each digit's numbers of this part: behind those of lower digits and of earlier parts.
        // SAFETY: all counts were stored in the phase before.
        let counts = unsafe { std::slice::from_raw_parts(counts, PARTS * VALUES) };
        // SAFETY: any bytes are numbers; the scratch is aligned.
        let next = unsafe { worker.scratch.align_to_mut::<u64>().1 };
        let mut at = 0u64;
        for (v, next) in next.iter_mut().enumerate().take(VALUES) {
            let of = |parts: std::ops::Range<usize>| parts.map(|p| u64::from(counts[p * VALUES + v])).sum::<u64>();
            *next = at + of(0..part);
            at += of(0..PARTS);
        }
        let out = args.output::<u32>(1);
        for i in range {
            let number = number(i);
            let place = &mut next[value(number)];
            let here = *place as usize;
            *place += 1;
            if digit + 1 == DIGITS {
                // SAFETY: places are claimed by counts: each is written once.
                unsafe { out.set(first + here * sizes.inner, number as u32) };
            } else {
                // SAFETY: fewer than `n` numbers lie before this one, by the counts of the phase before, of the same
                // numbers: no other argument, and no other device, writes them in between. Each place is written once.
                unsafe { to.add(here).write(number) };
            }
        }
    }
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;
    use crate::testing::{Memory, Random, launch};
    use hologram_device::{Extent, TensorSpec};

    pub(crate) fn lines_are_sorted_stably() {
        // Outer, n, inner, workers: compared, by digits, divided.
        for (outer, n, inner, workers) in [
            (3, 7, 1, 2),
            (2, 100, 5, 2),
            (5, 5000, 1, 2),
            (1, 3000, 3, 1),
            (1, 70_001, 1, 3),
            (1, 40_000, 2, 2),
            (1, 0, 3, 1),
        ] {
            let shape = [outer, n, inner].map(Extent::Fixed).to_vec();
            let x = TensorSpec { format: DType::F32, shape: shape.clone() };
            let output = TensorSpec { format: DType::U32, shape };
            let mut random = Random(n as u64);
            let special = [f32::NAN, -f32::NAN, f32::INFINITY, -0.0, 0.0, f32::NEG_INFINITY, -1e-40];
            let element = |r: u32| if r % 9 < 7 { special[r as usize % 9] } else { (r % 1013) as f32 - 500.0 };
            let values: Vec<f32> = (0..outer * n * inner).map(|_| element(random.bits())).collect();
            for descending in [false, true] {
                let spec = KernelSpec {
                    op: Operation::ArgSort { axis: 1, descending },
                    inputs: vec![x.clone()],
                    output: output.clone(),
                    in_place: None,
                };
                let mut memory = [Memory::of(&values), Memory::filled(values.len() * 4, 0xff)];
                launch(&*find(&spec, Features::PLAIN).expect("served"), &mut memory, workers).expect("runs");
                for line in 0..outer * inner {
                    let first = line / inner * n * inner + line % inner;
                    let mut want: Vec<u32> = (0..n as u32).collect();
                    want.sort_by(|i, j| {
                        let [a, b] = [*i, *j].map(|i| values[first + i as usize * inner]);
                        let order = a.is_nan().cmp(&b.is_nan());
                        let order = order.then(a.partial_cmp(&b).unwrap_or(std::cmp::Ordering::Equal));
                        if descending { order.reverse() } else { order }
                    });
                    let got: Vec<u32> = (0..n).map(|i| memory[1].elements::<u32>()[first + i * inner]).collect();
                    assert!(got == want, "{outer} × {n} × {inner}, line {line}, descending {descending}");
                }
            }
        }
    }
}
