//! Shared by kernels that map each row of a tensor to a row of the result: the division of rows among workers, and
//! their addresses.

use hologram_device::{DType, Extent, KernelSpec, TensorSpec};

use super::narrow::{Element, is_in_f32};
use super::simd::{fence, prefetch};
use super::stream::is_non_temporal;
use super::{elements, input, is_dense, room};
use crate::kernel::{Args, Worker};

/// Elements of a piece of work, in whole rows.
const PIECE: usize = 16 << 10;

/// The rows of an operation's first input, and of its result.
pub(super) struct Rows {
    x: TensorSpec,
    /// Elements of a row.
    pub(super) d: usize,
    uses_step: bool,
}

/// A row to compute.
pub(super) struct Row<'a, E> {
    pub(super) x: &'a [E],
    /// The start of the worker's next row: to be prefetched, not read.
    pub(super) next: *const E,
    /// The row's number.
    pub(super) index: usize,
}

/// A row to compute, and the row of the result.
pub(super) struct Mapped<'a, E> {
    pub(super) row: Row<'a, E>,
    pub(super) out: &'a mut [E],
    /// Whether the result takes non-temporal stores. Then it begins at a multiple of 32 bytes, and rows are whole
    /// vectors.
    pub(super) non_temporal: bool,
}

impl Rows {
    /// `None` unless the first input is dense, of `f32` or a narrow float, with rows of elements.
    pub(super) fn new(spec: &KernelSpec) -> Option<Rows> {
        let x = spec.inputs.first()?;
        let fixed = matches!(x.shape.last()?, Extent::Fixed(1..));
        let served = fixed && is_in_f32(x.format) && is_dense(x);
        served.then(|| Rows { x: x.clone(), d: x.row_len(), uses_step: spec.uses_step() })
    }

    /// As [`Rows::new`]; `None` also unless the result has the first input's format and shape.
    pub(super) fn mapped(spec: &KernelSpec) -> Option<Rows> {
        Rows::new(spec).filter(|rows| rows.x == spec.output)
    }

    /// The elements' format.
    pub(super) fn format(&self) -> DType {
        self.x.format
    }

    /// Rows in a run.
    pub(super) fn count(&self, args: &Args<'_>) -> usize {
        elements(&self.x, if self.uses_step { args.step() } else { &[] }) / self.d
    }

    /// Calls `work` for each row that this worker claims.
    ///
    /// # Errors
    /// When the buffer is smaller than the tensor; those of `work`.
    pub(super) fn each<'a, E: Element>(
        &self,
        args: &Args<'a>,
        worker: &Worker<'_>,
        mut work: impl FnMut(Row<'a, E>) -> Result<(), String>,
    ) -> Result<(), String> {
        let (d, rows) = (self.d, self.count(args));
        let x = input::<E>(args, 0, rows * d)?;
        let per_piece = (PIECE / d).max(1);
        let pieces = rows.div_ceil(per_piece);
        let mut claimed = worker.next(pieces);
        while let Some(piece) = claimed {
            claimed = worker.next(pieces);
            let range = piece * per_piece..((piece + 1) * per_piece).min(rows);
            for index in range.clone() {
                let next =
                    if index + 1 < range.end { index + 1 } else { claimed.map_or(index, |piece| piece * per_piece) };
                work(Row { x: &x[index * d..(index + 1) * d], next: x[next * d..].as_ptr(), index })?;
            }
        }
        Ok(())
    }

    /// Calls `work` for each row that this worker claims; the result is argument `result`.
    ///
    /// # Errors
    /// When a buffer is smaller than its tensor.
    pub(super) fn map<'a, E: Element>(
        &self,
        args: &Args<'a>,
        result: usize,
        worker: &Worker<'_>,
        mut work: impl FnMut(Mapped<'a, E>),
    ) -> Result<(), String> {
        let (d, all) = (self.d, self.count(args) * self.d);
        room::<E>(args, result, all)?;
        let non_temporal = is_non_temporal(args.raw(result), all * size_of::<E>()) && d.is_multiple_of(16);
        self.each(args, worker, |row| {
            // SAFETY: each row is claimed once, by one worker.
            let out = unsafe { args.output::<E>(result).part(row.index * d..(row.index + 1) * d) };
            work(Mapped { row, out, non_temporal });
            Ok(())
        })?;
        fence();
        Ok(())
    }
}

/// Prefetches the cache lines of `len` elements.
#[inline(always)]
pub(super) fn prefetch_row<E>(next: *const E, at: usize, len: usize) {
    let lines = (len * size_of::<E>()).div_ceil(64);
    for line in 0..lines {
        prefetch(next.wrapping_add(at).cast::<u8>().wrapping_add(64 * line));
    }
}
