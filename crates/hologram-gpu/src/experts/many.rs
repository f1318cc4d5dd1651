//! Products of many tokens on tensor cores: `kernels/cuda/gemm_experts.cu`, and [`wide`].

use hologram_device::{DType, Extent};

use super::{Request, wide};
use crate::kernels::cuda::gemm_experts::{self as text, ExpertOrder, Experts, HEADER, MOST_EXPERTS, TILE_WORDS};
use crate::launch::{launch, number};
use crate::{KernelLaunch, Memory, NativeKernel, Part, Target};

/// Slots of a tile: with a few for each expert, and with many.
const FEW: usize = 8;
const MANY: usize = 64;
/// Stages of activations in shared memory, and bytes of a token in each: a block of `bf16`.
const STAGES: usize = text::STAGES as usize;
const STAGE_BYTES: usize = text::BLOCK as usize * 2;
/// Rows of a workgroup; half of them with codes and many slots, so that two workgroups fit on a multiprocessor.
const ROWS: usize = 256;

/// The slots of a step sorted by expert and divided into tiles.
pub(super) struct Plan {
    pub memory: Memory,
    /// Bytes of the plan, up to which the scratch memory is in use.
    pub bytes: usize,
    /// Slots of a tile.
    pub tile: usize,
    pub most_tiles: usize,
    /// Slots at most.
    pub slots: usize,
}

/// Whether these kernels are the fastest for a request's products: with more slots than experts, a matrix has several
/// on average.
pub(super) fn serves(request: &Request, target: Target) -> bool {
    target.has(80)
        && request.x == DType::BF16
        && request.w != DType::F32
        && request.weights().is_some_and(|(_, unit)| request.k.is_multiple_of(unit.max(32)))
        && request.experts <= MOST_EXPERTS as usize
        && request.tokens.max().checked_mul(request.slots).is_some_and(|slots| slots > request.experts)
}

/// The native kernel for a request, if it is the fastest.
pub(super) fn find(request: &Request, target: Target) -> Option<NativeKernel> {
    if !serves(request, target) {
        return None;
    }
    let (weights, _) = request.weights()?;
    let tokens = request.tokens.max();
    let slots = tokens.checked_mul(request.slots)?;
    let many = slots > FEW * request.experts;
    let is_wide = many && wide::serves(request, target);
    let tile = match () {
        () if is_wide => wide::slots_of_tile(request, slots),
        () if many && !target.is(90) => MANY,
        () => FEW,
    };
    let rows = if tile == MANY && matches!(request.w, DType::Planes(_)) { ROWS / 2 } else { ROWS };
    let most_tiles = slots / tile + request.experts.min(slots);
    let words = HEADER as usize + most_tiles * TILE_WORDS as usize + slots;
    let plan = Memory::Scratch(0);
    let (places, inputs) = (&request.places, &request.inputs);
    let (step, slot) = match request.tokens {
        Extent::Fixed(_) => (Memory::Null, 0),
        Extent::Step { slot, .. } => (places.step(), slot),
    };
    let order = ExpertOrder {
        ids: places.input(inputs.ids, 0),
        plan,
        step,
        slot,
        n: number(tokens)?,
        slots: number(request.slots)?,
        experts: number(request.experts)?,
        tile: number(tile)?,
        most_tiles: number(most_tiles)?,
    };
    let order = launch(order, "expert_order", [1, 1], 1024)?;
    if is_wide {
        let plan = Plan { memory: plan, bytes: words * 4, tile, most_tiles, slots };
        let (products, scratch) = wide::products(request, &plan, target)?;
        let parts = [vec![order], products].concat().into_iter().map(Part::Kernel).collect();
        return Some(NativeKernel { parts, scratch, counters: 0, phase: None });
    }
    let [w0, h0, s0] = request.matrix(0);
    let [w1, h1, s1] = request.matrix(1);
    let products = Experts {
        x: places.input(inputs.x, 0),
        plan,
        w0,
        h0,
        s0,
        w1,
        h1,
        s1,
        b0: request.optional(inputs.bias[0]),
        b1: request.optional(inputs.bias[1]),
        y: places.output(0),
        most_tiles: number(most_tiles)?,
        slots: number(request.slots)?,
        k: number(request.k)?,
        m: number(request.m)?,
        per_slot: u32::from(request.per_slot),
        mode: request.mode() as u32,
        biased: u32::from(inputs.bias[0].is_some()),
    };
    let rows = if request.gated() { rows / 2 } else { rows };
    let entry = format!("experts_{weights}_{tile}");
    let products = launch(products, entry, [request.m.div_ceil(rows), most_tiles], 256)?;
    let shared = number(tile * (STAGES * STAGE_BYTES + 8))?;
    let parts = [order, KernelLaunch { shared, ..products }];
    Some(NativeKernel { parts: parts.map(Part::Kernel).into(), scratch: words * 4, counters: 0, phase: None })
}
