//! Products of a few tokens with experts' matrices on tensor cores, and their sums (`kernels/cuda/experts_tiles.cu`), on
//! NVIDIA GPUs: matrices in `F8_E4M3` with `f32` activations, those with a table of values with 8-bit ones.

use hologram_device::{BlockType, DType};

use super::{After, Request};
use crate::kernels::cuda::experts_tiles::{Experts, SUM_THREADS, Sums, TABLE_SUM_THREADS, THREADS};
use crate::launch::{Count, launch, number, packed_name, single};
use crate::matvec::ZEROS;
use crate::{KernelLaunch, Memory, NativeKernel, Target};

/// Rows of a tile, and elements of `F8_E4M3` that share a scale.
const TILE_ROWS: usize = 16;
const SCALE_LEN: usize = 128;

/// How a weight format's tiles are served.
struct Tiles {
    /// The format in the kernels' names.
    name: String,
    /// Bytes of a row's activations in shared memory, with what belongs to them: `row_bytes` in the kernels' text.
    row_bytes: usize,
    /// Warps that a multiprocessor has at a time, with the registers of the products' kernel.
    resident: usize,
    /// Threads of a sum's workgroup.
    sum_threads: usize,
}

impl Tiles {
    fn of(request: &Request) -> Option<Tiles> {
        let (DType::Planes(block), k) = (request.w, request.k) else { return None };
        let name = packed_name(block);
        if block == BlockType::F8_E4M3 {
            let served = request.x == DType::F32 && request.quantized.is_none() && k.is_multiple_of(SCALE_LEN);
            // Two f16 for each element.
            let row_bytes = k * 4 + 32 + (k / SCALE_LEN).div_ceil(2) * 16;
            return served.then_some(Tiles { name, row_bytes, resident: 24, sum_threads: SUM_THREADS as usize });
        }
        // Sums quantize their activations themselves.
        let served = block.table().is_some()
            && request.x == DType::I8Groups { group: 32 }
            && request.quantized.is_some() == (request.after == After::Sum)
            && k.is_multiple_of(block.row().len.max(32));
        let row_bytes = k + (k / 32).div_ceil(2) * 16 + ZEROS;
        served.then_some(Tiles { name, row_bytes, resident: 16, sum_threads: TABLE_SUM_THREADS as usize })
    }
}

/// The native kernel for a request.
pub(super) fn find(request: &Request, target: Target) -> Option<NativeKernel> {
    let tokens = Count::of(&[request.tokens])?;
    // Slots are counted in 32 bits.
    number(tokens.max().checked_mul(request.slots)?.checked_mul(request.m)?)?;
    if !target.has(80) {
        return None;
    }
    let tiles = Tiles::of(request)?;
    let kernel = if request.after == After::Sum { sums } else { products };
    kernel(request, &tiles, tokens, target)
}

fn products(request: &Request, format: &Tiles, tokens: Count, target: Target) -> Option<NativeKernel> {
    let [w0, _, s0] = request.matrix(0);
    let [w1, _, s1] = request.matrix(1);
    let (places, inputs) = (&request.places, &request.inputs);
    let of_tile = if request.gated() { TILE_ROWS / 2 } else { TILE_ROWS };
    let (tiles, slots) = (request.m.div_ceil(of_tile), tokens.max() * request.slots);
    // Warps share a tile's row as long as all of them are resident.
    let (warps, most) = (THREADS as usize / 32, format.resident * target.multiprocessors as usize);
    let slices = [8, 4, 2].into_iter().find(|slices| tiles * slots * slices <= most).unwrap_or(1);
    let args = Experts {
        x: places.input(inputs.x, 0),
        x_scales: if request.x == DType::F32 { Memory::Null } else { places.input(inputs.x, 1) },
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
    let shared = format.row_bytes;
    // Beside the sums of the warps.
    if shared + warps * TILE_ROWS * 4 > target.max_shared as usize {
        return None;
    }
    let launch =
        launch(args, format!("experts_{}", format.name), [tiles.div_ceil(warps / slices), slots], THREADS as usize)?;
    Some(single(KernelLaunch { shared: number(shared)?, ..launch }))
}

fn sums(request: &Request, format: &Tiles, tokens: Count, target: Target) -> Option<NativeKernel> {
    let [w, _, s] = request.matrix(0);
    let (places, inputs) = (&request.places, &request.inputs);
    let warps = format.sum_threads / 32;
    let slices = [16, 8, 4, 2].into_iter().find(|slices| request.slots * slices <= warps).unwrap_or(1);
    let rows = if request.per_slot { request.slots } else { 1 };
    let shared = rows.checked_mul(format.row_bytes)?;
    // Beside the sums of the warps.
    if shared + warps * TILE_ROWS * 4 > target.max_shared as usize {
        return None;
    }
    let args = Sums {
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
        least: request.quantized.unwrap_or(0.0),
    };
    let launch = launch(
        args,
        format!("sums_{}", format.name),
        [request.m.div_ceil(TILE_ROWS), tokens.max()],
        format.sum_threads,
    )?;
    Some(single(KernelLaunch { shared: number(shared)?, ..launch }))
}
