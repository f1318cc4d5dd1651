//! `repack`: weights from blocks to two planes, in one pass.

use super::{Arg, KernelLaunch, NativeKernel, Part, Target};
use crate::{Format, KernelSpec, Operation};

/// Threads of a workgroup, one for each 2 bytes.
const THREADS: u32 = 256;

/// The kernel for a spec.
pub(super) fn find(spec: &KernelSpec, _target: Target) -> Option<NativeKernel> {
    let [x] = spec.inputs.as_slice() else { return None };
    if spec.op != Operation::Repack || spec.uses_step() || spec.output.format != x.format.in_planes() {
        return None;
    }
    let words = match x.format {
        Format::Q8_0 | Format::Q4_0 | Format::TQ2_0 => x.format.block_bytes() as u32 / 2,
        _ => return None,
    };
    let scale_at = if x.format == Format::TQ2_0 { words - 1 } else { 0 };
    let total = u32::try_from(x.max_bytes() / 2).ok()?;
    let launch = KernelLaunch {
        image: "repack",
        entry: "repack".into(),
        grid: [total.div_ceil(THREADS).max(1), 1, 1],
        block: [THREADS, 1, 1],
        shared: 0,
        cluster: 1,
        early: false,
        ahead: None,
        // Both views of the blocks are the same bytes.
        args: vec![
            Arg::Binding(0),
            Arg::Binding(2),
            Arg::Binding(3),
            Arg::U32(words),
            Arg::U32(scale_at),
            Arg::U32(total),
        ],
    };
    Some(NativeKernel { parts: vec![Part::Kernel(launch)], scratch: 0, counters: 0 })
}
