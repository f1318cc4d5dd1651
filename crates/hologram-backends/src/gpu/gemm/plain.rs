//! Products of `f32` activations in plain `f32`: `kernels/matmul_f32.k`.

use super::{Mode, Product};
use crate::Format;
use crate::gpu::launch::{Count, launch, single};
use crate::gpu::{Arg, NativeKernel};
use hologram_isa::Type;

/// Tokens and rows of a workgroup's tile.
const TILE: [usize; 2] = [64, 128];

/// The native kernel for a product of one matrix.
pub(super) fn find(product: &Product) -> Option<NativeKernel> {
    let ([m], Mode::Store, Format::F32) = (product.rows.as_slice(), product.mode, product.x) else { return None };
    let name = match product.w {
        Format::Plain(Type::F32) => "f32",
        Format::Plain(Type::F16) => "f16",
        Format::Plain(Type::BF16) => "bf16",
        Format::Q8Planes => "q8",
        Format::Q4Planes => "q4",
        Format::T2Planes => "t2",
        _ => return None,
    };
    let [elements, scales] = product.w_args.first()?.clone();
    let mut args = vec![product.x_args[0].clone(), elements, scales, product.y.first()?.clone(), product.step.clone()];
    args.extend(Count::of(&[product.tokens])?.numbers());
    // Rows of a tile beyond the last are counted too.
    let number = |n: usize| u32::try_from(n).ok().filter(|n| *n < u32::MAX - (1 << 16)).map(Arg::U32);
    args.extend([number(*m)?, number(product.k)?]);
    let grid = [product.tokens.max().div_ceil(TILE[0]), m.div_ceil(TILE[1])];
    Some(single(launch("matmul_f32", format!("matmul_f32_{name}"), grid, 256, args)?))
}
