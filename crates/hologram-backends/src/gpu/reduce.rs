//! `reduce_sum` and `reduce_max`: x f32 [.., n] → f32 [..]. Long rows, when there are few, are reduced in pieces by many workgroups, then the pieces by
//! one: always in the same order.

use super::launch::{Count, Places, all_f32, launch};
use super::{Arg, KernelLaunch, NativeKernel, Part, Target};
use crate::{KernelSpec, Operation, Reduction};

/// The fewest elements of a piece.
const LEAST: usize = 8192;
/// The most pieces of a row.
const MOST: usize = 16_384;

/// The native kernel for `reduce_sum` and `reduce_max`.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let [x] = spec.inputs.as_slice() else { return None };
    let (entry, axis) = match spec.op {
        Operation::Reduce { reduction: Reduction::Sum, axis } => ("reduce_sum", axis),
        Operation::Reduce { reduction: Reduction::Max, axis } => ("reduce_max", axis),
        _ => return None,
    };
    let served = spec.in_place.is_none()
        && axis as usize + 1 == x.shape.len()
        && all_f32([x, &spec.output])
        && x.shape.split_last().is_some_and(|(_, rows)| rows == spec.output.shape)
        && x.row_len() > 0;
    if !served {
        return None;
    }
    let (places, rows, n) = (Places::of(spec), Count::rows(x)?, x.row_len());
    // Rows that fill the device by themselves are left whole.
    let whole = rows.max() >= 8 * target.multiprocessors as usize;
    let piece = if whole { n } else { n.div_ceil(MOST).max(LEAST).next_multiple_of(4) };
    let pieces = n.div_ceil(piece);
    let (from, to, step) = (places.input(0, 0), places.output(0), places.step());
    if pieces == 1 {
        let parts = vec![Part::Kernel(part(entry, rows, from, to, step, n, n, 1)?)];
        return Some(NativeKernel { parts, scratch: 0, counters: 0 });
    }
    let first = part(entry, rows, from, Arg::Scratch(0), step.clone(), n, piece, pieces)?;
    let second = part(entry, rows, Arg::Scratch(0), to, step, pieces, pieces, 1)?;
    let scratch = rows.max().checked_mul(pieces * 4)?;
    Some(NativeKernel { parts: vec![Part::Kernel(first), Part::Kernel(second)], scratch, counters: 0 })
}

/// Reduces rows of `n` elements in pieces of `piece`.
#[expect(clippy::too_many_arguments, reason = "the kernel's own")]
fn part(
    entry: &str,
    rows: Count,
    from: Arg,
    to: Arg,
    step: Arg,
    n: usize,
    piece: usize,
    pieces: usize,
) -> Option<KernelLaunch> {
    let mut args = vec![from, to, step];
    args.extend(rows.numbers());
    let number = |n: usize| u32::try_from(n).ok().map(Arg::U32);
    args.extend([
        number(n)?,
        number(piece.next_multiple_of(4))?,
        number(pieces)?,
        Arg::U32(n.is_multiple_of(4).into()),
    ]);
    let threads = piece.div_ceil(16).next_multiple_of(32).min(256);
    launch("reduce", entry.into(), [rows.max().checked_mul(pieces)?, 1], threads, args)
}
