//! Products of up to 16 tokens of 8-bit codes with quantised weights, on tensor cores of compute capability 9.0:
//! `kernels/cuda/gemm_codes.cu`.

use hologram_device::{BlockType, DType, Factors};

use super::Product;
use crate::kernels::cuda::gemm_codes::{self as text, Codes};
use crate::launch::{Planes, launch, number, packed_name, single};
use crate::{KernelLaunch, Memory, NativeKernel, Target};

/// The most tokens.
pub const TOKENS: usize = 16;
/// The most tokens of the narrower kernels.
const FEW: usize = 8;
/// The longest rows of which any type's kernels for [`TOKENS`] tokens find room in the shared memory of a cluster. On an
/// NVIDIA H200 16 sequences of 8 billion parameters decode 1.03 (`Q8_0`) to 1.25 times (`Q4_0`) as fast with them as
/// with the kernels for `bf16`.
pub const MOST_WHOLE: usize = 16384;
/// Elements of the chunks that a unit consists of, and of a unit.
const CHUNK: usize = 32;
pub const UNIT: usize = text::CHUNKS as usize * CHUNK;
/// Warps of a workgroup, and rows of a tile.
const WARPS: usize = text::WARPS as usize;
const ROWS: usize = 16;
/// Shared memory of a workgroup.
const SHARED: usize = 227 * 1024;
/// Units in a warp's ring: the fewest, what memory's latency asks for, and the most.
const STAGES: [usize; 3] = [2, 4, text::MOST_STAGES as usize];
/// The most tiles of a workgroup: with more, there are more workgroups than multiprocessors.
const TILES: usize = 64;

/// What the kernel keeps of a type in shared memory, as `Form` in its text, which lists these numbers.
pub(super) struct Form {
    name: String,
    /// Bytes of a unit of 16 rows.
    pub unit: usize,
    /// Bytes of what a warp's records say.
    pub lines: usize,
    /// Bytes of a token's chunk.
    pub activations: usize,
}

impl Form {
    pub fn of(weights: BlockType) -> Form {
        let row = weights.row();
        let [low, high, record] = weights.plane_bytes();
        let of_unit = |bytes: usize| bytes * UNIT / row.len;
        let name = match weights {
            BlockType::Q8_0 => "q8".into(),
            BlockType::Q4_0 => "q4".into(),
            _ => packed_name(weights),
        };
        let records = if of_unit(record).is_multiple_of(16) { of_unit(record) } else { 32 };
        let (halves, minimums) = (1 + usize::from(row.run() < CHUNK), row.has_minimum());
        let integers = minimums && matches!(weights.factors(), Factors::Pairs | Factors::Nibbles);
        let scales = UNIT / CHUNK * 4 * if minimums && !integers { 2 } else { halves };
        let line = match (integers, halves) {
            (false, _) if record == 2 && row.len == CHUNK => 0,
            (false, _) => scales + 16,
            (true, 1) => scales + UNIT / CHUNK * 2 + 32,
            (true, _) => scales + UNIT / CHUNK * 4 + 16,
        };
        let sums = if integers { 8 * halves } else { 0 };
        Form {
            name,
            unit: ROWS * (of_unit(low) + of_unit(high) + records),
            lines: ROWS * line,
            activations: text::ACTIVATIONS as usize + sums,
        }
    }
}

/// A division of the work: workgroups of a cluster, clusters, units in a ring, bytes of shared memory.
#[derive(Clone, Copy)]
struct Plan {
    splits: usize,
    teams: usize,
    stages: usize,
    shared: usize,
}

impl Plan {
    /// Shares rows among as few workgroups as leave room for rings, and among more where tiles are few.
    fn of(form: &Form, tiles: usize, k: usize, tokens: usize, target: Target) -> Option<Plan> {
        let units = k / UNIT;
        let plan = |splits: usize| {
            // Of 132 multiprocessors clusters of 4 find room on 120, of 2 on all.
            let places = target.multiprocessors as usize * if splits > 2 { 10 } else { 11 };
            let teams = (places / 11 / splits).max(tiles.div_ceil(TILES)).min(tiles);
            let chunks = units.div_ceil(splits) * UNIT / CHUNK;
            let activations = tokens * (chunks * form.activations + text::BESIDE as usize);
            // With the warps' sums of their tiles.
            let sums = (WARPS + tiles.div_ceil(teams)) * ROWS * tokens * 4;
            let beside = text::BARRIER as usize + activations + WARPS * form.lines + sums;
            let stages = (SHARED.checked_sub(beside)? / (WARPS * form.unit)).min(STAGES[2]);
            let shared = beside + WARPS * stages * form.unit;
            (stages >= STAGES[0]).then_some(Plan { splits, teams, stages, shared })
        };
        let plans: Vec<Plan> = [1, 2, 4, 8].into_iter().filter(|splits| *splits <= units).filter_map(plan).collect();
        let deepest = plans.iter().map(|plan| plan.stages.min(STAGES[1])).max()?;
        let (at, least) = plans.iter().enumerate().find(|(_, plan)| plan.stages >= deepest)?;
        let fits = |plan: &&Plan| tiles * plan.splits <= target.multiprocessors as usize;
        Some(*plans[at + 1..].iter().take_while(fits).last().unwrap_or(least))
    }
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
    let tokens = if most <= FEW { FEW } else { TOKENS };
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
