//! Copies of operands that tensor cores cannot read as they lie, and the addition of the sums of parts of the depth.

use hologram_device::{Extent, KernelSpec, TensorSpec};
use hologram_isa::Type;

use super::{Product, Side};
use crate::arguments::Actual;
use crate::kernels::cuda::batch_copy::{BatchPad, BatchTurn, Join};
use crate::launch::{Count, launch, number};
use crate::{Memory, NativeKernel, Part};

/// Alignment of what lies in the scratch memory.
const ALIGN: usize = 256;
/// Bytes of which the distance of lines is a multiple.
const VECTOR: usize = 16;
/// Nanoseconds of a launch that copies, and bytes that it copies in one.
const COPYING: usize = 2500;
const COPIED_BYTES: usize = 1200;
/// Lines and depth of a workgroup's tile of `batch_turn`.
const TURN: usize = 64;

/// The launches before a product, and the scratch memory that they fill.
#[derive(Clone, Debug, Default)]
pub(super) struct Prepared {
    parts: Vec<Part>,
    pub scratch: usize,
    /// About how long they take, in nanoseconds.
    pub time: usize,
}

impl Prepared {
    /// With the product's kernel, whose scratch memory comes after.
    pub fn before(self, kernel: NativeKernel) -> NativeKernel {
        let parts = self.parts.into_iter().chain(kernel.parts).collect();
        NativeKernel { parts, scratch: kernel.scratch.max(self.scratch), counters: kernel.counters, phase: None }
    }
}

/// The product on operands whose lines begin at multiples of 16 bytes, `i8` along the depth, with the launches that
/// copy those that do not.
pub(super) fn aligned(product: &Product, spec: &KernelSpec) -> Option<(Product, Prepared)> {
    let (mut product, mut prepared) = (product.clone(), Prepared::default());
    let element = product.format.size();
    for (side, tensor) in [(&mut product.left, spec.inputs.first()?), (&mut product.right, spec.inputs.get(1)?)] {
        let turns = product.format == Type::I8 && !side.along;
        if !turns && (side.pitch * element).is_multiple_of(VECTOR) {
            continue;
        }
        let depth = product.k.max();
        let (from, to) = (side.memory, Memory::Scratch(prepared.scratch));
        let lines = if turns { side.lines } else { side.size / side.pitch.max(1) };
        let pitch = (if turns { depth } else { side.pitch } * element).next_multiple_of(VECTOR);
        let part = if turns {
            turned(side, tensor, product.k, product.step, [from, to], pitch)?
        } else {
            let args = BatchPad {
                x: from,
                y: to,
                lines: Count::rows(tensor)?.of_step(product.step),
                bytes: number(side.pitch * element)?,
                pitch: number(pitch)?,
            };
            let pieces = Count::rows(tensor)?.max().checked_mul(pitch / VECTOR)?;
            launch(args, "batch_pad", [pieces.div_ceil(256), 1], 256)?
        };
        prepared.parts.push(Part::Kernel(part));
        side.memory = to;
        side.along |= turns;
        side.pitch = pitch / element;
        side.size = lines.checked_mul(side.pitch)?;
        let bytes = side.size.checked_mul(side.matrices)?.checked_mul(element)?;
        prepared.scratch = prepared.scratch.checked_add(bytes.checked_next_multiple_of(ALIGN)?)?;
        prepared.time += COPYING + bytes / COPIED_BYTES;
    }
    Some((product, prepared))
}

/// Brings bytes along the depth.
fn turned(
    side: &Side,
    tensor: &TensorSpec,
    k: Extent,
    step: Memory,
    [x, y]: [Memory; 2],
    pitch: usize,
) -> Option<crate::KernelLaunch> {
    let matrices = Count::of(tensor.shape.split_at_checked(tensor.shape.len().checked_sub(2)?)?.0)?;
    let rows = Actual::of(k)?;
    let (lines, depth) = (number(side.lines)?, number(pitch)?);
    let args = BatchTurn { x, y, matrices: matrices.of_step(step), rows, lines, pitch: depth };
    let tiles = side.lines.div_ceil(TURN).checked_mul(pitch.div_ceil(TURN))?.checked_mul(matrices.max())?;
    launch(args, "batch_turn", [tiles, 1], 256)
}

/// A product's launch; with parts of the depth also the one that adds their sums, which lie at `scratch`.
pub(super) fn joined(
    product: &Product,
    splits: usize,
    scratch: usize,
    multiply: impl FnOnce(Memory) -> Option<crate::KernelLaunch>,
) -> Option<NativeKernel> {
    if splits == 1 {
        let parts = vec![Part::Kernel(multiply(product.y)?)];
        return Some(NativeKernel { parts, scratch, counters: 0, phase: None });
    }
    let sums = Memory::Scratch(scratch);
    let name = match product.result {
        Type::BF16 => "batch_join_bf16",
        Type::F16 => "batch_join_f16",
        Type::F32 => "batch_join_f32",
        Type::I32 => "batch_join_i32",
        Type::F64 => "batch_join_f64",
        _ => return None,
    };
    let (rows, batches) = (product.n, product.batches);
    // One of them is fixed.
    let rows = rows.times(batches.max()).filter(|_| batches.is_fixed()).or_else(|| batches.times(rows.max()))?;
    let args = Join {
        sums,
        bias: product.bias,
        residual: product.residual,
        y: product.y,
        rows: rows.of_step(product.step),
        m: number(product.m)?,
        splits: number(splits)?,
        finish: product.finish,
    };
    let elements = rows.max().checked_mul(product.m)?;
    let fours = product.m.is_multiple_of(4) && product.result != Type::F64;
    let threads = if fours { elements / 4 } else { elements };
    let join = launch(args, name, [threads.div_ceil(256), 1], 256)?;
    let parts = vec![Part::Kernel(multiply(sums)?), Part::Kernel(join)];
    Some(NativeKernel { parts, scratch: scratch.checked_add(product.sums(splits)?)?, counters: 0, phase: None })
}
