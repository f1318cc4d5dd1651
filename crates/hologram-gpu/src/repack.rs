//! `repack`: weights from blocks to two planes, in one pass.

use hologram_device::{KernelSpec, Operation, PlaneLayout};

use super::kernels::repack::Repack;
use super::launch::{launch, single};
use super::{KernelLaunch, Memory, NativeKernel, Target};

/// Threads per workgroup; each copies 2 bytes.
const THREADS: usize = 256;

/// The kernel for a spec.
pub(super) fn find(spec: &KernelSpec, _target: Target) -> Option<NativeKernel> {
    let [x] = spec.inputs.as_slice() else { return None };
    if spec.op != Operation::Repack || spec.uses_step() || spec.output.format != x.format.in_planes() {
        return None;
    }
    let row = x.format.row().filter(|row| row.planes == PlaneLayout::Codes)?;
    let [words, scale_at] = [row.bytes, row.numbers[0]].map(|bytes| bytes as u32 / 2);
    let total = u32::try_from(x.max_bytes() / 2).ok()?;
    // Both views of the blocks are the same bytes.
    let [x, codes, scales] = [0, 2, 3].map(Memory::Binding);
    let args = Repack { x, codes, scales, words, scale_at, total };
    let launch = launch(args, "repack", [(total as usize).div_ceil(THREADS), 1], THREADS)?;
    Some(single(KernelLaunch { early: false, ..launch }))
}
