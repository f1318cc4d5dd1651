//! `repack`: weights from blocks to two planes, in one pass.

use super::kernels::repack::Repack;
use super::launch::{launch, single};
use super::{KernelLaunch, Memory, NativeKernel, Target};
use crate::{Format, KernelSpec, Operation};

/// Threads of a workgroup, one for each 2 bytes.
const THREADS: usize = 256;

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
    // Both views of the blocks are the same bytes.
    let [x, codes, scales] = [0, 2, 3].map(Memory::Binding);
    let args = Repack { x, codes, scales, words, scale_at, total };
    let launch = launch(args, "repack", [(total as usize).div_ceil(THREADS), 1], THREADS)?;
    Some(single(KernelLaunch { early: false, ..launch }))
}
