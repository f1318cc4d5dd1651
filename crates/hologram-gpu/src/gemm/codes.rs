//! Products of up to 16 tokens of 8-bit codes with quantised weights, on tensor cores of compute capability 9.0:
//! `kernels/cuda/gemm_codes.cu`.

use hologram_device::{BlockType, DType};

use super::Product;
use crate::kernels::cuda::gemm_codes::{self as text, Codes};
use crate::launch::{Planes, launch, number, packed_name, single};
use crate::{KernelLaunch, Memory, NativeKernel, Target};

/// The most tokens.
pub const TOKENS: usize = 16;
/// The most tokens of the kernels for all types.
const OF_ALL: usize = 8;
/// The longest rows of which a workgroup has the codes of [`TOKENS`] tokens whole, for any type. On an NVIDIA H100 the
/// kernels for 16 tokens took 0.55 of the time of those for `bf16` with rows of 4,096 elements in `Q4_K`, and 1.1 with
/// rows of 14,336, which a cluster shares; of planes of 4 and 8 bits those for `bf16` are faster.
pub const MOST_WHOLE: usize = 6144;
/// Elements of the chunks that a unit consists of, and of a unit.
const CHUNK: usize = 32;
pub const UNIT: usize = text::CHUNKS as usize * CHUNK;
/// Warps of a workgroup, and rows of a tile.
const WARPS: usize = text::WARPS as usize;
const ROWS: usize = 16;
/// Shared memory of a workgroup, and units in a warp's ring.
const SHARED: usize = 227 * 1024;
const STAGES: [usize; 2] = [2, 4];
/// The most tiles of a workgroup: with more, there are more workgroups than multiprocessors.
const TILES: usize = 64;

/// What the kernel keeps of a type in shared memory, as `Form` in its text.
struct Form {
    name: String,
    /// Bytes of a unit of 16 rows.
    unit: usize,
    /// Floats for a chunk of a row: scales and minimums.
    line: usize,
    /// Sums for a chunk of a token.
    sums: usize,
}

impl Form {
    fn of(weights: BlockType) -> Form {
        let row = weights.row();
        let [low, high, _] = weights.plane_bytes().map(|bytes| bytes * CHUNK / row.len);
        let name = match weights {
            BlockType::Q8_0 => "q8".into(),
            BlockType::Q4_0 => "q4".into(),
            _ => packed_name(weights),
        };
        let halves = if row.run() < CHUNK { 2 } else { 1 };
        let (minimums, sums) = (if row.has_minimum() { 2 } else { 1 }, row.has_minimum() || weights.bias() != 0);
        let unit = ROWS * UNIT / CHUNK * (low + high);
        Form { name, unit, line: halves * minimums, sums: if sums { halves } else { 0 } }
    }
}

/// A division of the work: workgroups of a cluster, clusters, units in a ring, bytes of shared memory.
struct Plan {
    splits: usize,
    teams: usize,
    stages: usize,
    shared: usize,
}

impl Plan {
    /// Shares rows among as few workgroups as shared memory allows, and among more where tiles are few.
    fn of(form: &Form, tiles: usize, k: usize, tokens: usize, target: Target) -> Option<Plan> {
        let (places, units) = (target.multiprocessors as usize, k / UNIT);
        let plan = |splits: usize| {
            let teams = (places / splits).max(tiles.div_ceil(TILES)).min(tiles);
            let chunks = units.div_ceil(splits) * UNIT / CHUNK;
            let activations = chunks * tokens * (CHUNK + 4 + 4 * form.sums);
            let lines = WARPS * ROWS * UNIT / CHUNK * form.line * 4;
            // Beside the warps' sums of their tiles.
            let beside = activations + lines + (WARPS + tiles.div_ceil(teams)) * ROWS * tokens * 4;
            let stages = (SHARED.checked_sub(beside)? / (WARPS * form.unit)).min(STAGES[1]);
            let shared = beside + WARPS * stages * form.unit;
            (stages >= STAGES[0]).then_some(Plan { splits, teams, stages, shared })
        };
        let mut plans = [1, 2, 4, 8].into_iter().filter(|splits| *splits <= units).filter_map(plan).peekable();
        let fits = |plan: &Plan| tiles * plan.splits <= places;
        let least = plans.next()?;
        Some(plans.take_while(fits).last().unwrap_or(least))
    }
}

/// Whether there are kernels for these weights and [`TOKENS`] tokens.
pub fn has_more(weights: DType) -> bool {
    weights.packed().is_some() && !weights.is_ternary() && !weights.has_float_codes()
}

/// Whether the kernel serves products of these activations with rows of `k` elements.
pub fn serves(x: DType, weights: DType, k: usize, target: Target) -> bool {
    x == (DType::I8Groups { group: 32 })
        && matches!(weights, DType::Planes(_))
        && !weights.is_ternary()
        && k > 0
        && k.is_multiple_of(UNIT)
        && target.is(90)
        && target.max_shared as usize >= SHARED
}

/// The native kernel for a product of matrices of one type.
pub(super) fn find(product: &Product, target: Target) -> Option<NativeKernel> {
    let (k, most) = (product.k, product.tokens.max());
    let format = |packed: &Option<(BlockType, usize)>| packed.map_or(product.w, |(packed, _)| DType::Planes(packed));
    let weights = format(product.packed.first()?);
    let same = product.packed.iter().all(|packed| format(packed) == weights);
    let served = serves(product.x, weights, k, target) && most <= TOKENS && same && !product.narrow;
    let DType::Planes(weights) = weights else { return None };
    if !served || !product.fits_tiles() {
        return None;
    }
    let form = Form::of(weights);
    let tiles = match product.gated() {
        true => product.rows[0] / (ROWS / 2),
        false => product.rows.iter().map(|m| m.div_ceil(ROWS)).sum(),
    };
    let tokens = if most <= OF_ALL { OF_ALL } else { TOKENS };
    if tokens > OF_ALL && !has_more(DType::Planes(weights)) {
        return None;
    }
    let plan = Plan::of(&form, tiles, k, tokens, target)?;
    let planes = |i: usize| match product.packed.get(i) {
        Some(Some((packed, at))) => Planes::at(*packed, *at),
        _ => {
            let [low, records] = product.matrix(i);
            Planes { low, high: Memory::Null, records }
        }
    };
    let [first, second, third] = [0, 1, 2].map(planes);
    let args = arguments!(Codes of product; {
        x: product.x_args[0],
        x_scales: product.x_args[1],
        w0: first.low,
        h0: first.high,
        s0: first.records,
        w1: second.low,
        h1: second.high,
        s1: second.records,
        w2: third.low,
        h2: third.high,
        s2: third.records,
        splits: number(plan.splits)?,
        stages: number(plan.stages)?,
    });
    let launch = launch(args, format!("codes_{}_{tokens}", form.name), [plan.teams * plan.splits, 1], WARPS * 32)?;
    Some(single(KernelLaunch { shared: number(plan.shared)?, cluster: number(plan.splits)?, ..launch }))
}
