//! `quantize`: x f32 [rows, n] → i8 groups [rows, n].

use super::launch::{Count, FEW_QUANTIZED, Places, all_f32, launch, row_in_registers, single};
use super::{Arg, NativeKernel, Target};
use crate::{Format, KernelSpec, Operation};

/// The native kernel for `quantize`.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let [x] = spec.inputs.as_slice() else { return None };
    let Format::I8Groups { group } = spec.output.format else { return None };
    let n = x.row_len();
    let Operation::Quantize { floor, .. } = spec.op else { return None };
    if spec.in_place.is_some() || !all_f32([x]) || spec.output.shape != x.shape {
        return None;
    }
    if group == 0 || !n.is_multiple_of(group as usize) {
        return None;
    }
    let (places, rows, floor) = (Places::of(spec), Count::rows(x)?, Arg::F32(floor.get()));
    let mut args = vec![places.input(0, 0), places.output(0), places.output(1), places.step()];
    let in_registers = row_in_registers(n, rows.max(), target, FEW_QUANTIZED).filter(|_| groups(n, group));
    let (entry, workgroups, threads) = match in_registers {
        Some((fours, threads)) => {
            args.extend(rows.numbers());
            args.extend([Arg::U32(u32::try_from(n).ok()?), Arg::U32(group), floor]);
            (format!("quantize_{fours}"), rows.max(), threads)
        }
        None => {
            let all = rows.times(n / group as usize)?;
            args.extend(all.numbers());
            args.extend([Arg::U32(group), floor]);
            ("quantize_any".into(), all.max().div_ceil(8), 256)
        }
    };
    Some(single(launch("quantize", entry, [workgroups, 1], threads, args)?))
}

/// Whether kernels with a row in registers quantise rows of `n` in groups of `group`: whole rows, or 32, 64, 128 or 256 elements.
pub(super) fn groups(n: usize, group: u32) -> bool {
    n == group as usize || n.is_multiple_of(group as usize) && group.is_power_of_two() && (32..=256).contains(&group)
}
