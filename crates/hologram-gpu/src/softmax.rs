//! `softmax`: x f32 [.., n] → f32, over the last dimension.

use hologram_device::{KernelSpec, Operation};

use super::kernels::softmax::Softmax;
use super::launch::{Count, FEW, Places, all_f32, launch, number, row_in_registers, single};
use super::{NativeKernel, Target};

/// The native kernel for `softmax`.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let [x] = spec.inputs.as_slice() else { return None };
    let Operation::Softmax { log: false, axis } = spec.op else { return None };
    if axis as usize + 1 != x.shape.len() || spec.in_place.is_some() || !all_f32([x]) || spec.output != *x {
        return None;
    }
    let (places, rows, n) = (Places::of(spec), Count::rows(x)?, x.row_len());
    let (x, y) = (places.input(0, 0), places.output(0));
    let args = Softmax { x, y, rows: places.counted(rows), n: number(n)? };
    let (entry, threads) = match row_in_registers(n, rows.max(), target, FEW) {
        Some((fours, threads)) => (format!("softmax_{fours}"), threads),
        None => ("softmax_any".into(), 1024),
    };
    Some(single(launch(args, entry, [rows.max(), 1], threads)?))
}
