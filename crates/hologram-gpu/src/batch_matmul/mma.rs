//! Products on tensor cores of compute capability 8.0 and up: `kernels/cuda/batch_mma.cu`.

use hologram_isa::Type;

use super::{Pace, Product, prepare, splits};
use crate::kernels::cuda::batch_mma::{Multiply, STAGE, STAGES};
use crate::launch::{launch, number};
use crate::{KernelLaunch, NativeKernel, Target};

/// Rows and columns of a workgroup's tile.
const TILE: usize = 128;
/// Bytes of its shared memory.
const SHARED: u32 = STAGES * STAGE;
/// Bytes of a line in a stage.
const LINE: usize = 128;

/// The native kernel for a product whose operands are aligned, with this much scratch memory before its own.
pub(super) fn find(product: &Product, scratch: usize, target: Target) -> Option<NativeKernel> {
    let types = match product.format {
        Type::BF16 => "bf16",
        Type::F16 => "f16",
        Type::I8 => "i8",
        _ => return None,
    };
    if SHARED > target.max_shared {
        return None;
    }
    let tiles = product.tiles(TILE, TILE)?;
    let stages = (product.k.max() * product.format.size()).div_ceil(LINE);
    // Two workgroups share a multiprocessor.
    let pace = Pace { stage: 1300, ends: 4000, places: 2 * target.multiprocessors as usize };
    let (splits, _) = splits(product, tiles, stages, pace);
    prepare::joined(product, splits, scratch, |y| {
        let sizes = product.sizes(splits)?;
        let args = arguments!(Multiply of product, sizes, y; {
            a: product.left.memory,
            b: product.right.memory,
            finish: sizes.finish,
            a_pitch: number(product.left.pitch)?,
            a_size: number(product.left.size)?,
            b_pitch: number(product.right.pitch)?,
            b_size: number(product.right.size)?,
        });
        let launch = launch(args, format!("batch_{types}_{}", product.turns()), [tiles, splits], 256)?;
        Some(KernelLaunch { shared: SHARED, ..launch })
    })
}
