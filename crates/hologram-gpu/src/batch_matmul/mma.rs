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

/// The least depth of products of `f32` in three parts, by which a product is off by up to 2⁻²²: sums of many round
/// more than that.
const LEAST_DEPTH: usize = 32;

/// The types in the kernels' names, and nanoseconds of a stage on an NVIDIA H100, for `f32` on an H200.
fn types(product: &Product, target: Target) -> Option<(&'static str, usize)> {
    match product.format {
        Type::BF16 => Some(("bf16", 1300)),
        Type::F16 => Some(("f16", 1300)),
        Type::I8 => Some(("i8", 1300)),
        Type::F32 if target.tf32 => Some(("tf32", 2300)),
        // Other GPUs multiply tf32 no faster than f32.
        Type::F32 if (target.is(80) || target.is(90)) && product.k.max() >= LEAST_DEPTH => Some(("tf32x3", 5100)),
        _ => None,
    }
}

/// How a product is computed.
struct Plan {
    types: &'static str,
    tiles: usize,
    splits: usize,
    /// The estimated time in nanoseconds.
    time: usize,
}

fn plan(product: &Product, target: Target) -> Option<Plan> {
    let (types, stage) = types(product, target).filter(|_| SHARED <= target.max_shared)?;
    let tiles = product.tiles(TILE, TILE)?;
    let stages = (product.k.max() * product.format.size()).div_ceil(LINE);
    // Two workgroups share a multiprocessor.
    let pace = Pace { stage, ends: 4000, places: 2 * target.multiprocessors as usize };
    let (splits, time) = splits(product, tiles, stages, pace);
    Some(Plan { types, tiles, splits, time })
}

/// The estimated time in nanoseconds, if there is a kernel.
pub(super) fn time(product: &Product, target: Target) -> Option<usize> {
    plan(product, target).map(|plan| plan.time)
}

/// The native kernel for a product whose operands are aligned, with this much scratch memory before its own.
pub(super) fn find(product: &Product, scratch: usize, target: Target) -> Option<NativeKernel> {
    let Plan { types, tiles, splits, .. } = plan(product, target)?;
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
