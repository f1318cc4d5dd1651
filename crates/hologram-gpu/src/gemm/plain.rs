//! Products of `f32` and `bf16` activations in plain `f32`, for any shape: `kernels/cuda/matmul_f32.cu`.

use super::{Mode, Product};
use crate::kernels::cuda::matmul_f32::{FEW_ROWS, FEW_TOKENS, Matmul, MatmulSmall, ROWS, TOKENS};
use crate::launch::{Count, launch, number, single};
use crate::{NativeKernel, Target};
use hologram_device::DType;
use hologram_isa::Type;

/// Tokens and rows of a workgroup's tile.
const TILE: [usize; 2] = [TOKENS as usize, ROWS as usize];

/// Workgroups of the small form along rows have 8 warps.
const SMALL: [usize; 2] = [FEW_TOKENS as usize, 8 * FEW_ROWS as usize];

/// The native kernel for a product of one matrix.
pub(super) fn find(product: &Product, target: Target) -> Option<NativeKernel> {
    let ([m], Mode::Store) = (product.rows.as_slice(), product.mode) else { return None };
    let x = match product.x {
        DType::Plain(Type::F32) => "f32",
        DType::Plain(Type::BF16) => "bf16",
        _ => return None,
    };
    let name = match product.w {
        DType::Plain(Type::F32) if product.x == DType::F32 => "f32",
        DType::Plain(Type::F16) => "f16",
        DType::Plain(Type::BF16) => "bf16",
        DType::Q8Planes => "q8",
        DType::Q4Planes => "q4",
        DType::T2Planes if product.x == DType::F32 => "t2",
        _ => return None,
    };
    let [w, d] = *product.w_args.first()?;
    // Kernels also count a tile's rows beyond the last one.
    let size = |n: usize| number(n).filter(|n| *n < u32::MAX - (1 << 16));
    let args = Matmul {
        x: product.x_args[0],
        w,
        d,
        y: *product.y.first()?,
        tokens: Count::of(&[product.tokens])?.of_step(product.step),
        m: size(*m)?,
        k: size(product.k)?,
    };
    let (tokens, f32) = (product.tokens.max(), product.x == DType::F32 && product.w == DType::F32);
    let tiles = tokens.div_ceil(TILE[0]) * m.div_ceil(TILE[1]);
    if f32 && product.k.is_multiple_of(4) && 2 * tiles < target.multiprocessors as usize {
        let Matmul { x, w, y, tokens: counted, m: rows, k, .. } = args;
        let args = MatmulSmall { x, w, y, tokens: counted, m: rows, k };
        let grid = [tokens.div_ceil(SMALL[0]), m.div_ceil(SMALL[1])];
        return Some(single(launch(args, "matmul_small", grid, 256)?));
    }
    let grid = [product.tokens.max().div_ceil(TILE[0]), m.div_ceil(TILE[1])];
    Some(single(launch(args, format!("matmul_{x}_{name}"), grid, 256)?))
}
