//! `top_k`: the indices of the greatest elements of each row, x [.., d] of floats computed in `f32` → u32 [.., k], in
//! descending order. Candidates are the elements above the least of the best so far. Long rows are divided, and the
//! results of their parts are merged.

use std::sync::Arc;

use half::{bf16, f16};
use hologram_device::{DType, Extent, KernelSpec, Operation, TensorSpec};

use super::keys::{Key, Keys, Short};
use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};
use crate::native::narrow::is_in_f32;
use crate::native::{elements, is_dense};

/// Elements of a part of a long row.
const PART: usize = 64 << 10;
/// Candidates per requested element that are gathered before only the best are kept.
const SLACK: usize = 4;
/// Elements that are examined together.
const TOGETHER: usize = 64;

struct TopK {
    format: DType,
    output: TensorSpec,
    d: usize,
    k: usize,
    uses_step: bool,
}

/// The native kernel for `top_k`; `None` for any other spec.
pub(in super::super) fn find(spec: &KernelSpec, _features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x] = spec.inputs.as_slice() else { return None };
    let Operation::TopK { k } = spec.op else { return None };
    let (Extent::Fixed(d), k) = (*x.shape.last()?, k as usize) else { return None };
    let served = spec.in_place.is_none()
        && is_in_f32(x.format)
        && spec.output.format == DType::U32
        && (1..=d).contains(&k)
        && spec.output.shape.split_last() == Some((&Extent::Fixed(k), &x.shape[..x.shape.len() - 1]))
        && is_dense(x);
    let kernel = TopK { format: x.format, output: spec.output.clone(), d, k, uses_step: spec.uses_step() };
    served.then(|| Arc::new(kernel) as Arc<dyn NativeKernel>)
}

impl TopK {
    fn parts(&self) -> usize {
        self.d.div_ceil(PART)
    }

    fn rows<T: Key<Bits = u32>>(&self, phase: usize, rows: usize, args: &Args<'_>, worker: &mut Worker<'_>) {
        let keys = Short::<T>::new(args, true);
        let (d, k, parts) = (self.d, self.k, self.parts());
        let out = args.output::<u32>(1);
        let scratch = std::mem::take(&mut worker.scratch);
        // SAFETY: any bytes are numbers; the scratch is aligned.
        let room = &mut unsafe { scratch.align_to_mut::<u64>().1 }[..SLACK * k + TOGETHER];
        let shared = worker.shared_scratch().data.cast::<u64>();
        if phase == 0 {
            while let Some(index) = worker.next(rows * parts) {
                let (row, part) = (index / parts, index % parts);
                let best = best(&keys, row * d, part * PART..((part + 1) * PART).min(d), k, room);
                if parts == 1 {
                    // SAFETY: each row is claimed by one worker.
                    let out = unsafe { out.part(row * k..(row + 1) * k) };
                    out.iter_mut().zip(best).for_each(|(to, number)| *to = *number as u32);
                } else {
                    // SAFETY: the scratch has room for the best of each part of each row; a part may have fewer.
                    let to = unsafe { std::slice::from_raw_parts_mut(shared.add(index * k), k) };
                    to.fill(u64::MAX);
                    to[..best.len()].copy_from_slice(best);
                }
            }
            return;
        }
        while let Some(row) = worker.next(rows) {
            // SAFETY: the numbers of the row's parts were stored in the phase before, and are this worker's now.
            let numbers = unsafe { std::slice::from_raw_parts_mut(shared.add(row * parts * k), parts * k) };
            numbers.sort_unstable();
            // SAFETY: each row is claimed by one worker.
            let out = unsafe { out.part(row * k..(row + 1) * k) };
            out.iter_mut().zip(numbers).for_each(|(to, number)| *to = *number as u32);
        }
    }
}

/// The least `k` of the numbers of a range of a row that begins at `first`, in order; fewer if the range is shorter.
fn best<'a, T: Key<Bits = u32>>(
    keys: &Short<'_, T>,
    first: usize,
    range: std::ops::Range<usize>,
    k: usize,
    room: &'a mut [u64],
) -> &'a [u64] {
    let (mut len, mut limit) = (0, u32::MAX);
    let mut at = range.start;
    while at < range.end {
        let count = TOGETHER.min(range.end - at);
        let block = &keys.x[first + at..first + at + count];
        // Once there are enough, keys that equal the limit come later than the one that set it, so they lose.
        let least = block.iter().fold(u32::MAX, |least, x| least.min(x.bits() ^ keys.flip));
        if least < limit || len < k {
            for i in at..at + count {
                let number = keys.number(first + i, i);
                if ((number >> 32) as u32) < limit || len < k {
                    room[len] = number;
                    len += 1;
                }
            }
            if len > room.len() - TOGETHER {
                room[..len].select_nth_unstable(k - 1);
                len = k;
                limit = (room[k - 1] >> 32) as u32;
            }
        }
        at += count;
    }
    room[..len].sort_unstable();
    &room[..len.min(k)]
}

impl NativeKernel for TopK {
    fn phases(&self) -> usize {
        if self.parts() > 1 { 2 } else { 1 }
    }

    fn shared_scratch(&self) -> usize {
        if self.parts() > 1 { self.output.max_rows() * self.parts() * self.k * 8 } else { 0 }
    }

    fn worker_scratch(&self) -> usize {
        (SLACK * self.k + TOGETHER) * 8
    }

    fn run(&self, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let rows = elements(&self.output, if self.uses_step { args.step() } else { &[] }) / self.k;
        let bytes = rows * self.d * self.format.block_bytes();
        if args.raw(0).bytes < bytes || args.raw(1).bytes < rows * self.k * 4 {
            return Err(format!("a buffer is too small for {rows} rows of {}", self.d));
        }
        match self.format {
            DType::F16 => self.rows::<f16>(phase, rows, args, worker),
            DType::BF16 => self.rows::<bf16>(phase, rows, args, worker),
            _ => self.rows::<f32>(phase, rows, args, worker),
        }
        Ok(())
    }
}
