//! Products on tensor cores of compute capability 8.0 and up: `kernels/gemm_mma.cu`.

use super::Product;
use crate::Format;
use crate::gpu::{Arg, KernelLaunch, NativeKernel, Part, Target};

/// Stages in shared memory, and bytes of activations of a token in each.
const STAGES: usize = 3;
const STAGE_BYTES: usize = 128;
/// Rows of a workgroup's tile.
const ROWS: usize = 128;
/// Floats between the results of two tokens in shared memory.
const STRIDE: usize = 68;

/// The native kernel for a product.
pub(super) fn find(product: &Product, target: Target) -> Option<NativeKernel> {
    if !target.has(80) || !product.fits_tiles() {
        return None;
    }
    let k = product.k;
    let bf16 = product.x == Format::BF16 && k.is_multiple_of(64);
    let group = product.activation_group();
    // The kernel's name, tokens of a tile, and bytes in a stage: of a row's codes and scales, and of a token's scales.
    let few = product.tokens.max() <= 32;
    let (name, tile, codes, scales, x_scales) = match product.w {
        Format::BF16 if bf16 => ("bf16", if few { 32 } else { 128 }, 128, 0, 0),
        Format::Q8Planes if bf16 => ("q8", if few { 32 } else { 128 }, 64, 4, 0),
        Format::Q4Planes if bf16 => ("q4", if few { 32 } else { 128 }, 32, 4, 0),
        Format::Q8Planes if group == 32 && k.is_multiple_of(128) => ("q8_i8", 64, 128, 8, 16),
        Format::Q4Planes if group == 32 && k.is_multiple_of(128) => ("q4_i8", 64, 64, 8, 16),
        Format::T2Planes if group > 0 && group.is_multiple_of(256) => ("t2_i8", if few { 32 } else { 128 }, 32, 0, 0),
        _ => return None,
    };
    let stages = STAGES * (tile * (STAGE_BYTES + x_scales) + ROWS * (codes + scales));
    let shared = stages.max(2 * tile * STRIDE * 4);
    let [elements, x_scales] = product.x_args.clone();
    let mut args = vec![elements, x_scales];
    for i in 0..3 {
        args.extend(product.w_args.get(i).cloned().unwrap_or([Arg::Null, Arg::Null]));
    }
    args.extend(product.tail()?);
    let y = u32::try_from(product.groups().div_ceil(2)).ok().filter(|y| *y <= 65_535)?;
    let launch = KernelLaunch {
        image: "gemm_mma",
        entry: format!("mma_{name}_{tile}"),
        grid: [u32::try_from(product.tokens.max().div_ceil(tile)).ok()?.max(1), y, 1],
        block: [256, 1, 1],
        shared: u32::try_from(shared).ok().filter(|s| *s <= target.max_shared)?,
        cluster: 1,
        early: true,
        ahead: None,
        args,
    };
    Some(NativeKernel { parts: vec![Part::Kernel(launch)], scratch: 0, counters: 0 })
}
