//! What kernels share that turn each row of a tensor into a row of the result: whose rows are whose, and where they lie.

use super::simd::fence;
use super::stream::goes_past;
use super::{elements, input, is_dense};
use crate::cpu::kernel::{Args, Worker};
use crate::{Extent, Format, KernelSpec, TensorSpec};

/// Elements of a piece of work, in whole rows.
const PIECE: usize = 16 << 10;

/// The rows of the first input of an operation, and of its result.
pub(super) struct Rows {
    x: TensorSpec,
    /// Elements of a row.
    pub(super) d: usize,
    uses_step: bool,
}

/// A row to compute.
pub(super) struct Row<'a> {
    pub(super) x: &'a [f32],
    /// Where the worker's next row begins: to be asked for ahead, not to be read.
    pub(super) next: *const f32,
    pub(super) out: &'a mut [f32],
    /// Whether the result goes past the caches. It then begins at a multiple of 64 bytes.
    pub(super) past: bool,
}

impl Rows {
    /// `None` unless the first input and the result are dense `f32` of one shape, with rows of elements.
    pub(super) fn new(spec: &KernelSpec) -> Option<Rows> {
        let x = spec.inputs.first()?;
        let fixed = matches!(x.shape.last()?, Extent::Fixed(1..));
        let served = fixed && *x == spec.output && x.format == Format::F32 && is_dense(x);
        served.then(|| Rows { x: x.clone(), d: x.row_len(), uses_step: spec.uses_step() })
    }

    /// Calls `work` for each row that this worker claims; the result is argument `result`.
    ///
    /// # Errors
    /// When a buffer is smaller than its tensor.
    pub(super) fn each<'a>(
        &self,
        args: &Args<'a>,
        result: usize,
        worker: &Worker<'_>,
        mut work: impl FnMut(Row<'a>),
    ) -> Result<(), String> {
        let (d, all) = (self.d, elements(&self.x, if self.uses_step { args.step() } else { &[] }));
        let (x, rows) = (input::<f32>(args, 0, all)?, all / d);
        input::<f32>(args, result, all)?;
        let past = goes_past(args.raw(result), all * 4) && d.is_multiple_of(16);
        let together = (PIECE / d).max(1);
        let pieces = rows.div_ceil(together);
        let mut claimed = worker.next(pieces);
        while let Some(piece) = claimed {
            claimed = worker.next(pieces);
            let range = piece * together..((piece + 1) * together).min(rows);
            for row in range.clone() {
                let next = if row + 1 < range.end { row + 1 } else { claimed.map_or(row, |piece| piece * together) };
                let (here, next) = (row * d..(row + 1) * d, x[next * d..].as_ptr());
                // SAFETY: each row is claimed once, by one worker.
                let out = unsafe { &mut args.write::<f32>(result)[here.clone()] };
                work(Row { x: &x[here], next, out, past });
            }
        }
        fence();
        Ok(())
    }
}
