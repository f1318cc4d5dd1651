//! Products of `f32`, `f64`, `i32` and `i64`: `kernels/cuda/batch_plain.cu`.

use hologram_isa::Type;

use super::{Pace, Product, Side, prepare, splits};
use crate::kernels::cuda::batch_plain::Plain;
use crate::launch::{launch, number};
use crate::{KernelLaunch, NativeKernel, Target};

/// Bits of `Sides` in `batch_plain.cu`.
const A_ALONG: u32 = 1;
const B_ALONG: u32 = 2;

/// Bytes of the shared memory of `batch_f64`: three stages of 192 lines of 20 elements.
const F64_SHARED: u32 = 3 * 192 * 20 * 8;

/// The native kernel for a product.
pub(super) fn find(product: &Product, target: Target) -> Option<NativeKernel> {
    let whole = [product.left, product.right].iter().all(|side| in_fours(product, side));
    // Tile, shared memory, and pace: a stage is 64 elements of the depth.
    let (name, [rows, columns], shared, stage, together) = match product.format {
        Type::F32 if whole => ("batch_f32", [128, 128], 0, 8500, 2),
        Type::F32 => ("batch_f32_any", [128, 128], 0, 10_000, 1),
        Type::F64 => ("batch_f64", [128, 64], F64_SHARED, 9000, 1),
        Type::I32 => ("batch_i32", [64, 64], 0, 8000, 4),
        Type::I64 => ("batch_i64", [64, 64], 0, 20_000, 2),
        _ => return None,
    };
    if shared > target.max_shared {
        return None;
    }
    let tiles = product.tiles(rows, columns)?;
    let pace = Pace { stage, ends: 3000, places: together * target.multiprocessors as usize };
    let stages = product.k.max().div_ceil(64);
    let joins = matches!(product.format, Type::F32 | Type::I32);
    let splits = if joins { splits(product, tiles, stages, pace).0 } else { 1 };
    prepare::joined(product, splits, 0, |y| {
        let sizes = product.sizes(splits)?;
        let args = Plain {
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
            sides: u32::from(product.left.along) * A_ALONG + u32::from(product.right.along) * B_ALONG,
        };
        Some(KernelLaunch { shared, ..launch(args, name, [tiles, splits], 256)? })
    })
}

/// Whether elements can be read four at a time: either all of them are there or none.
fn in_fours(product: &Product, side: &Side) -> bool {
    let fixed = !side.along || product.depth().is_some();
    fixed && side.pitch.is_multiple_of(4) && side.size.is_multiple_of(4)
}
