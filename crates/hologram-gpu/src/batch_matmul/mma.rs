//! Products on tensor cores of compute capability 8.0 and up: `kernels/cuda/batch_mma.cu`.

use hologram_isa::Type;

use super::{Pace, Product, prepare, splits};
use crate::kernels::cuda::batch_mma::Multiply;
use crate::launch::{launch, number};
use crate::{KernelLaunch, NativeKernel, Target};

/// Rows and columns of a workgroup's tile; bytes of its shared memory: three stages of 128 bytes of each line.
const TILE: usize = 128;
const SHARED: u32 = 3 * 2 * 128 * 128;
/// Bytes of a line in a stage.
const STAGE: usize = 128;

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
    let stages = (product.k.max() * product.format.size()).div_ceil(STAGE);
    // Two workgroups share a multiprocessor.
    let pace = Pace { stage: 1300, ends: 4000, places: 2 * target.multiprocessors as usize };
    let (splits, _) = splits(product, tiles, stages, pace);
    prepare::joined(product, splits, scratch, |y| {
        let sizes = product.sizes(splits)?;
        let args = Multiply {
            a: product.left.memory,
            b: product.right.memory,
            bias: product.bias,
            residual: product.residual,
            y,
            n: product.n.of_step(product.step),
            m: sizes.m,
            k: sizes.k,
            batches: sizes.batches,
            batches_per: sizes.batches_per,
            fast: sizes.fast,
            middle: sizes.middle,
            a_slow: sizes.a[0],
            a_middle: sizes.a[1],
            a_fast: sizes.a[2],
            b_slow: sizes.b[0],
            b_middle: sizes.b[1],
            b_fast: sizes.b[2],
            finish: sizes.finish,
            splits: sizes.splits,
            a_pitch: number(product.left.pitch)?,
            a_size: number(product.left.size)?,
            b_pitch: number(product.right.pitch)?,
            b_size: number(product.right.size)?,
        };
        let launch = launch(args, format!("batch_{types}_{}", product.turns()), [tiles, splits], 256)?;
        Some(KernelLaunch { shared: SHARED, ..launch })
    })
}
