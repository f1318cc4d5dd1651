//! Products on the tensor cores of compute capability 9.0: `kernels/cuda/batch_wgmma.cu`.

use hologram_isa::Type;

use super::{Pace, Product, Side, prepare, splits};
use crate::kernels::cuda::batch_wgmma::Multiply;
use crate::launch::{launch, number};
use crate::{KernelLaunch, NativeKernel, Target, TensorMap};

/// Shared memory of a workgroup.
const SHARED: u32 = 227 * 1024;
/// Rows of a tile, and the numbers of columns.
const ROWS: usize = 128;
const COLUMNS: [usize; 3] = [256, 128, 64];
/// Lines of a panel, and bytes of a line in a stage.
const LINES: u32 = 64;
const STAGE: usize = 128;

/// The native kernel for a product whose operands are aligned, with this much scratch memory before its own.
pub(super) fn find(product: &Product, scratch: usize, target: Target) -> Option<NativeKernel> {
    let types = match product.format {
        Type::BF16 => "bf16",
        Type::F16 => "f16",
        Type::I8 => "i8",
        _ => return None,
    };
    let (turns, k) = (product.turns(), product.depth()?);
    if !target.is(90) || target.max_shared < SHARED || turns == "tt" {
        return None;
    }
    let (multiprocessors, stages) = (target.multiprocessors as usize, (k * product.format.size()).div_ceil(STAGE));
    let choice = |columns: usize| {
        let tiles = product.tiles(ROWS, columns)?;
        let (splits, time) = splits(product, tiles, stages, pace(columns, multiprocessors));
        Some((columns, tiles, splits, time))
    };
    let (columns, tiles, splits, _) = COLUMNS.into_iter().filter_map(choice).min_by_key(|choice| choice.3)?;
    prepare::joined(product, splits, scratch, |y| {
        let sizes = product.sizes(splits)?;
        let args = Multiply {
            a: map(&product.left, k, product.format)?,
            b: map(&product.right, k, product.format)?,
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
        };
        let workgroups = tiles.checked_mul(splits)?.min(multiprocessors);
        let entry = format!("batch_wgmma_{types}_{turns}_{columns}");
        let launch = launch(args, entry, [workgroups, 1], 3 * 128)?;
        Some(KernelLaunch { shared: SHARED, ..launch })
    })
}

/// The matrices of an operand for the copy engine, in panels of 128 bytes of `k` × 64 lines, or 64 of `k` × 64 lines.
fn map(side: &Side, k: usize, format: Type) -> Option<TensorMap> {
    let element = format.size();
    let size = if side.along { [k, side.lines] } else { [side.lines, k] };
    Some(TensorMap {
        memory: side.memory,
        element: number(element)?,
        dims: vec![size[0] as u64, size[1] as u64, side.matrices as u64],
        strides: vec![(side.pitch * element) as u64, side.size.checked_mul(element)? as u64],
        tile: vec![number(STAGE / element)?, LINES, 1],
        swizzle: number(STAGE)?,
    })
}

/// Fitted to products of `bf16` on an NVIDIA H200.
fn pace(columns: usize, multiprocessors: usize) -> Pace {
    let (stage, ends) = match columns {
        256 => (700, 4000),
        128 => (370, 2500),
        _ => (225, 1800),
    };
    Pace { stage, ends, places: multiprocessors }
}
