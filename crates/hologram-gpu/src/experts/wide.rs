//! Products of many slots for each expert by warpgroup matrix instructions (`kernels/cuda/gemm_experts_wide.cu`). The rows
//! of activations are brought into the plan's order first, so that the copy engine reads those of an expert as a tile.

use hologram_device::DType;

use super::Request;
use super::many::Plan;
use crate::gemm::{WideTile, stage_bytes, wide_map};
use crate::kernels::cuda::gemm_experts_wide::{ExpertRows, Experts, FEW_SLOTS, GROUPS, MANY_SLOTS};
use crate::launch::{launch, number};
use crate::{KernelLaunch, Memory, Target};

/// Elements of a row in a stage.
const ELEMENTS: usize = 64;
/// Rows of activations that a workgroup of 256 threads brings into order.
const ROWS: usize = 8;

/// Whether these kernels compute a request.
pub(super) fn serves(request: &Request, target: Target) -> bool {
    WideTile::fit(target)
        && request.k.is_multiple_of(ELEMENTS)
        && request.m.is_multiple_of(4)
        && stage_bytes(request.w).is_some()
}

/// Slots of a tile, for up to `slots` in all. With 128 slots an expert on average the larger tile takes 0.78 of the time
/// of the smaller one, with 256 0.68 (an H200: benches/history/2026-11-26.md).
pub(super) fn slots_of_tile(request: &Request, slots: usize) -> usize {
    let many = slots >= MANY_SLOTS as usize * 3 / 4 * request.experts;
    (if many { MANY_SLOTS } else { FEW_SLOTS }) as usize
}

/// The launches after the plan's, and the bytes of scratch memory.
pub(super) fn products(request: &Request, plan: &Plan, target: Target) -> Option<(Vec<KernelLaunch>, usize)> {
    let (places, inputs, k, m) = (&request.places, &request.inputs, request.k, request.m);
    let tile = WideTile { groups: GROUPS as usize, tokens: plan.tile, splits: 1 };
    let [codes, beside] = stage_bytes(request.w)?;
    let at = plan.bytes.next_multiple_of(256);
    let rows = Memory::Scratch(at);
    let (most_tiles, per_slot) = (number(plan.most_tiles)?, u32::from(request.per_slot));
    let order = ExpertRows {
        x: places.input(inputs.x, 0),
        plan: plan.memory,
        y: rows,
        most_tiles,
        slots: number(request.slots)?,
        k: number(k)?,
        per_slot,
    };
    let order = launch(order, "expert_rows", [plan.slots.div_ceil(ROWS), 1], 256)?;

    let element = if matches!(request.w, DType::Plain(_)) { 2 } else { 1 };
    let box_rows = if request.gated() { 32 } else { 64 };
    // The first matrix stands in for a missing one, which is not read.
    let second = usize::from(inputs.w[1].is_some());
    let [[w0, h0, s0], [w1, h1, s1]] = [0, second].map(|i| request.matrix(i));
    let weights = |w| wide_map(w, element, k / ELEMENTS * codes, request.experts * m, [codes, box_rows]);
    let (weights_0, weights_1) = (weights(w0)?, weights(w1)?);
    let args = Experts {
        x: wide_map(rows, 2, k * 2, plan.slots, [128, tile.tokens])?,
        w0: weights_0,
        w1: weights_1,
        h0,
        h1,
        s0,
        s1,
        plan: plan.memory,
        b0: request.optional(inputs.bias[0]),
        b1: request.optional(inputs.bias[1]),
        y: places.output(0),
        most_tiles,
        k: number(k)?,
        m: number(m)?,
        mode: request.mode() as u32,
        biased: u32::from(inputs.bias[0].is_some()),
    };
    let (name, _) = request.weights()?;
    let row_groups = m.div_ceil(if request.gated() { 32 } else { 64 });
    let tiles = plan.most_tiles.checked_mul(row_groups.div_ceil(tile.groups))?;
    let products =
        tile.launch(args, format!("experts_wide_{name}_{}", plan.tile), tile.stage(codes, beside), tiles, target)?;
    Some((vec![order, products], at + plan.slots.checked_mul(k * 2)?))
}
