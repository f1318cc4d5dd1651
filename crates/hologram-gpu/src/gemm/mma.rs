//! Products on tensor cores of compute capability 8.0 and up: `kernels/gemm_mma.cu`.

use hologram_device::DType;

use super::Product;
use crate::kernels::cuda::gemm_mma::{self as text, Multiply};
use crate::launch::{launch, number, single};
use crate::{KernelLaunch, NativeKernel, Target};

/// Stages in shared memory, and bytes of activations per token in each.
const STAGES: usize = text::STAGES as usize;
const STAGE_BYTES: usize = 128;
/// Rows of a workgroup's tile.
const ROWS: usize = text::ROWS as usize;
/// Floats between the results of two tokens in shared memory.
const STRIDE: usize = text::STRIDE as usize;

/// The native kernel for a product.
pub(super) fn find(product: &Product, target: Target) -> Option<NativeKernel> {
    if !target.has(80) || !product.fits_tiles() {
        return None;
    }
    let k = product.k;
    let bf16 = product.x == DType::BF16 && k.is_multiple_of(64);
    let group = product.activation_group();
    // The kernel's name, tokens per tile, and bytes per stage: of a row's codes and scales, and of a token's scales.
    let few = product.tokens.max() <= 32;
    let (name, tile, codes, scales, x_scales) = match product.w {
        DType::BF16 if bf16 => ("bf16", if few { 32 } else { 128 }, 128, 0, 0),
        DType::F16 if bf16 => ("f16", if few { 32 } else { 128 }, 128, 0, 0),
        DType::Q8Planes if bf16 => ("q8", if few { 32 } else { 128 }, 64, 4, 0),
        DType::Q4Planes if bf16 => ("q4", if few { 32 } else { 128 }, 32, 4, 0),
        DType::Q8Planes if group == 32 && k.is_multiple_of(128) => ("q8_i8", 64, 128, 8, 16),
        DType::Q4Planes if group == 32 && k.is_multiple_of(128) => ("q4_i8", 64, 64, 8, 16),
        DType::T2Planes if group > 0 && group.is_multiple_of(256) => ("t2_i8", if few { 32 } else { 128 }, 32, 0, 0),
        _ => return None,
    };
    let stages = STAGES * (tile * (STAGE_BYTES + x_scales) + ROWS * (codes + scales));
    let shared = stages.max(2 * tile * STRIDE * 4);
    let [x, x_scales] = product.x_args;
    let [[w0, s0], [w1, s1], [w2, s2]] = [0, 1, 2].map(|i| product.matrix(i));
    let args = arguments!(Multiply of product; {
        x,
        x_scales,
        w0,
        s0,
        w1,
        s1,
        w2,
        s2,
        group: number(group)?,
        narrow: u32::from(product.narrow),
    });
    let grid = [product.tokens.max().div_ceil(tile), product.groups().div_ceil(2)];
    let launch = launch(args, format!("mma_{name}_{tile}"), grid, 256)?;
    Some(single(KernelLaunch { shared: number(shared).filter(|s| *s <= target.max_shared)?, ..launch }))
}
