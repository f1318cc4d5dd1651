//! `reduce_sum` and `reduce_max`: x f32 [.., n] → f32 [..]. A few long rows are reduced in pieces by many workgroups,
//! then one workgroup reduces the pieces, always in the same order.

use hologram_device::{KernelSpec, Operation, Reduction};

use super::kernels::reduce::Reduce;
use super::launch::{Count, Places, all_f32, launch, number, single};
use super::{Memory, NativeKernel, Part, Target};

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
    // Enough rows to fill the device are not split.
    let whole = rows.max() >= 8 * target.multiprocessors as usize;
    let piece = if whole { n } else { n.div_ceil(MOST).max(LEAST).next_multiple_of(4) };
    let pieces = n.div_ceil(piece);
    let (x, y) = (places.input(0, 0), places.output(0));
    // Reduces rows of n elements in pieces.
    let part = |x, y, n: usize, piece: usize, pieces: usize| {
        let args = Reduce {
            x,
            y,
            rows: places.counted(rows),
            n: number(n)?,
            chunk: number(piece.next_multiple_of(4))?,
            chunks: number(pieces)?,
            fours: n.is_multiple_of(4).into(),
        };
        let threads = piece.div_ceil(16).next_multiple_of(32).min(256);
        launch(args, entry, [rows.max().checked_mul(pieces)?, 1], threads)
    };
    if pieces == 1 {
        return Some(single(part(x, y, n, n, 1)?));
    }
    let first = part(x, Memory::Scratch(0), n, piece, pieces)?;
    let second = part(Memory::Scratch(0), y, pieces, pieces, 1)?;
    let scratch = rows.max().checked_mul(pieces * 4)?;
    Some(NativeKernel { parts: vec![Part::Kernel(first), Part::Kernel(second)], scratch, counters: 0, phase: None })
}
