//! `layer_norm`: x f32 [.., n], w and bias f32 [n] → f32.

use hologram_device::{Extent, KernelSpec, Operation};

use super::kernels::layer_norm::LayerNorm;
use super::launch::{Count, FEW, Places, all_f32, launch, number, row_in_registers, single};
use super::{NativeKernel, Target};

/// The native kernel for `layer_norm`.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let [x, w, bias] = spec.inputs.as_slice() else { return None };
    let Operation::LayerNorm { eps } = spec.op else { return None };
    let of_row = [Extent::Fixed(x.row_len())];
    let served = spec.in_place.is_none()
        && spec.output == *x
        && all_f32([x, w, bias])
        && x.row_len() > 0
        && [w, bias].iter().all(|t| t.shape == of_row)
        && x.shape.last() == of_row.last();
    if !served {
        return None;
    }
    let (places, rows, n) = (Places::of(spec), Count::rows(x)?, x.row_len());
    let args = LayerNorm {
        x: places.input(0, 0),
        w: places.input(1, 0),
        bias: places.input(2, 0),
        y: places.output(0),
        rows: places.counted(rows),
        n: number(n)?,
        eps: eps.get(),
    };
    let (entry, threads) = match row_in_registers(n, rows.max(), target, FEW) {
        Some((fours, threads)) => (format!("layer_norm_{fours}"), threads),
        None => ("layer_norm_any".into(), 1024),
    };
    Some(single(launch(args, entry, [rows.max(), 1], threads)?))
}
