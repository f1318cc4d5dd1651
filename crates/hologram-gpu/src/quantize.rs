//! `quantize`: x f32 [rows, n] → i8 groups [rows, n]; `quantize_f8`: → floats of 8 bits.

use hologram_device::{DType, KernelSpec, Operation};

use super::kernels::cuda::quantize_f8::QuantizeF8;
use super::kernels::quantize;
use super::launch::{Count, FEW_QUANTIZED, Places, all_f32, launch, number, row_in_registers, single};
use super::{NativeKernel, Target};

/// The native kernel for `quantize`.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let [x] = spec.inputs.as_slice() else { return None };
    let DType::I8Groups { group } = spec.output.format else { return None };
    let n = x.row_len();
    let Operation::Quantize { floor, .. } = spec.op else { return None };
    if spec.in_place.is_some() || !all_f32([x]) || spec.output.shape != x.shape {
        return None;
    }
    if group == 0 || !n.is_multiple_of(group as usize) {
        return None;
    }
    let (places, rows, least) = (Places::of(spec), Count::rows(x)?, floor.get());
    let (x, codes, scales) = (places.input(0, 0), places.output(0), places.output(1));
    let in_registers = row_in_registers(n, rows.max(), target, FEW_QUANTIZED).filter(|_| groups(n, group));
    let launch = match in_registers {
        Some((fours, threads)) => {
            let args = quantize::Quantize { x, codes, scales, rows: places.counted(rows), n: number(n)?, group, least };
            launch(args, format!("quantize_{fours}"), [rows.max(), 1], threads)?
        }
        None => {
            let all = rows.times(n / group as usize)?;
            let args = quantize::QuantizeAny { x, codes, scales, groups: places.counted(all), group, least };
            launch(args, "quantize_any", [all.max().div_ceil(8), 1], 256)?
        }
    };
    Some(single(launch))
}

/// The native kernel for `quantize_f8`, on NVIDIA GPUs.
pub(super) fn find_f8(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let ([x], DType::F8Groups { group }) = (spec.inputs.as_slice(), spec.output.format) else { return None };
    let (n, groups) = (x.row_len(), x.row_len() / group.max(1) as usize);
    let served = !target.is_apple()
        && spec.in_place.is_none()
        && all_f32([x])
        && spec.output.shape == x.shape
        && group > 0
        && group.is_multiple_of(4)
        && n == groups * group as usize;
    if !served {
        return None;
    }
    let (places, all) = (Places::of(spec), Count::rows(x)?.times(groups)?);
    let args = QuantizeF8 {
        x: places.input(0, 0),
        codes: places.output(0),
        scales: places.output(1),
        groups: places.counted(all),
        group,
    };
    Some(single(launch(args, "quantize_f8", [all.max(), 1], 512)?))
}

/// Whether kernels with a row in registers quantise rows of `n` in groups of `group`: whole rows, or 32, 64, 128 or 256
/// elements.
pub(super) fn groups(n: usize, group: u32) -> bool {
    n == group as usize || n.is_multiple_of(group as usize) && group.is_power_of_two() && (32..=256).contains(&group)
}
