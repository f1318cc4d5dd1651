//! Products of a few tokens with matrices in `F8_E4M3`, and their sums (`kernels/cuda/experts_float8.cu`), on NVIDIA
//! GPUs.

use hologram_device::{BlockType, DType};

use super::{After, Request};
use crate::kernels::cuda::experts_float8::{ExpertsFloat8, SUM_THREADS, SumsFloat8, THREADS};
use crate::launch::{Count, launch, number, single};
use crate::matvec::row_bytes;
use crate::{KernelLaunch, NativeKernel, Target};

/// Rows of a tile, and elements that share a scale.
const TILE_ROWS: usize = 16;
const SCALE_LEN: usize = 128;
/// Warps that a multiprocessor has at a time, with the registers of the products' kernel.
const RESIDENT: usize = 24;

/// The native kernel for a request.
pub(super) fn find(request: &Request, target: Target) -> Option<NativeKernel> {
    let tokens = Count::of(&[request.tokens])?;
    // Slots are counted in 32 bits.
    number(tokens.max().checked_mul(request.slots)?.checked_mul(request.m)?)?;
    let served = target.has(80)
        && request.w == DType::Planes(BlockType::F8_E4M3)
        && request.x == DType::F32
        && request.quantized.is_none()
        && request.k.is_multiple_of(SCALE_LEN);
    if !served {
        return None;
    }
    if request.after == After::Sum { sums(request, tokens, target) } else { products(request, tokens, target) }
}

fn products(request: &Request, tokens: Count, target: Target) -> Option<NativeKernel> {
    let [w0, _, s0] = request.matrix(0);
    let [w1, _, s1] = request.matrix(1);
    let (places, inputs) = (&request.places, &request.inputs);
    let of_tile = if request.gated() { TILE_ROWS / 2 } else { TILE_ROWS };
    let (tiles, slots) = (request.m.div_ceil(of_tile), tokens.max() * request.slots);
    // Warps share a tile's row as long as all of them are resident.
    let (warps, most) = (THREADS as usize / 32, RESIDENT * target.multiprocessors as usize);
    let slices = [8, 4, 2].into_iter().find(|slices| tiles * slots * slices <= most).unwrap_or(1);
    let args = ExpertsFloat8 {
        x: places.input(inputs.x, 0),
        w0,
        s0,
        w1,
        s1,
        ids: places.input(inputs.ids, 0),
        b0: request.optional(inputs.bias[0]),
        b1: request.optional(inputs.bias[1]),
        y: places.output(0),
        tokens: places.counted(tokens),
        k: number(request.k)?,
        m: number(request.m)?,
        slots: number(request.slots)?,
        experts: number(request.experts)?,
        per_slot: u32::from(request.per_slot),
        after: request.after as u32,
        biased: u32::from(inputs.bias[0].is_some()),
        slices: number(slices)?,
    };
    let shared = row_bytes(request.k);
    // Beside the sums of the warps.
    if shared + warps * TILE_ROWS * 4 > target.max_shared as usize {
        return None;
    }
    let launch = launch(args, "experts_float8", [tiles.div_ceil(warps / slices), slots], THREADS as usize)?;
    Some(single(KernelLaunch { shared: number(shared)?, ..launch }))
}

fn sums(request: &Request, tokens: Count, target: Target) -> Option<NativeKernel> {
    let [w, _, s] = request.matrix(0);
    let (places, inputs) = (&request.places, &request.inputs);
    let warps = SUM_THREADS as usize / 32;
    let slices = [16, 8, 4, 2].into_iter().find(|slices| request.slots * slices <= warps).unwrap_or(1);
    let rows = if request.per_slot { request.slots } else { 1 };
    let shared = rows.checked_mul(row_bytes(request.k))?;
    // Beside the sums of the warps.
    if shared + warps * TILE_ROWS * 4 > target.max_shared as usize {
        return None;
    }
    let args = SumsFloat8 {
        x: places.input(inputs.x, 0),
        w,
        s,
        ids: places.input(inputs.ids, 0),
        weights: request.optional(inputs.weights),
        residual: request.optional(inputs.residual),
        bias: request.optional(inputs.bias[0]),
        y: places.output(0),
        tokens: places.counted(tokens),
        k: number(request.k)?,
        m: number(request.m)?,
        slots: number(request.slots)?,
        experts: number(request.experts)?,
        per_slot: u32::from(request.per_slot),
        added: u32::from(inputs.residual.is_some()),
        biased: u32::from(inputs.bias[0].is_some()),
        slices: number(slices)?,
    };
    let launch = launch(args, "sums_float8", [request.m.div_ceil(TILE_ROWS), tokens.max()], SUM_THREADS as usize)?;
    Some(single(KernelLaunch { shared: number(shared)?, ..launch }))
}
