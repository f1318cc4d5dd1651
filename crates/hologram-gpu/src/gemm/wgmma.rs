//! Products on the tensor cores of compute capability 9.0: `kernels/cuda/gemm_wgmma.cu`, and for packed weights, which
//! are widened in registers, `gemm_wide.cu`.

use hologram_device::{BlockType, DType};

use super::Product;
use crate::kernels::cuda::gemm_exact::Exact;
use crate::kernels::cuda::gemm_float8::{Float8, Wide as WideFloat8};
use crate::kernels::cuda::gemm_wgmma::{self as text, Multiply};
use crate::kernels::cuda::gemm_wide::Wide;
use crate::launch::{Planes, launch, number, packed_name, single};
use crate::{KernelArgs, KernelLaunch, Memory, NativeKernel, Target, TensorMap};

/// Shared memory of a workgroup, and the part that it needs besides its stages: alignment and barriers.
const SHARED: usize = text::MOST_SHARED as usize;
const BESIDE: usize = text::BESIDE as usize;
/// Bytes of a group's results before they are stored.
const RESULTS: usize = (text::CHUNK * text::STRIDE) as usize * 4;
/// Elements of a row in a part of a stage, and parts of the stages of tiles of [`LONG`] groups.
const ELEMENTS: usize = 64;
const PARTS: usize = 4;
const LONG: usize = 4;
/// The most bytes of a row in a tile of the copy engine.
const ACROSS: usize = 128;

/// A tile: groups of 64 rows, and tokens; and the number of workgroups that share it by splitting the row length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    pub groups: usize,
    pub tokens: usize,
    pub splits: usize,
}

impl Tile {
    /// Bytes of a stage whose parts of rows have this many bytes of codes, and this many beside them: `Layout` in
    /// `gemm_wgmma.h`.
    pub fn stage(&self, codes: usize, piece: usize) -> usize {
        let (parts, rows) = (self.parts(), self.groups * 64);
        (self.tokens * 128 + rows * codes) * parts + (rows * piece * parts).next_multiple_of(1024)
    }

    /// Parts of a stage, of [`ELEMENTS`] each.
    fn parts(&self) -> usize {
        if self.groups == LONG { PARTS } else { 1 }
    }

    /// Whether a device has what the kernels need.
    pub fn fit(target: Target) -> bool {
        target.is(90) && target.max_shared as usize >= SHARED
    }

    /// A launch with as many workgroups as the tiles need, and shared memory for stages of `stage` bytes.
    pub fn launch(
        self,
        args: impl KernelArgs,
        entry: String,
        stage: usize,
        tiles: usize,
        target: Target,
    ) -> Option<KernelLaunch> {
        let stages = ((SHARED - BESIDE - self.groups * RESULTS) / stage).min(text::MOST_STAGES as usize);
        // More than half of a multiprocessor's memory, so that each workgroup of an early launch gets a multiprocessor
        // of its own.
        let shared = (stages * stage + self.groups * RESULTS + BESIDE).max(SHARED / 2 + 1);
        let workgroups = if self.splits > 1 { tiles * self.splits } else { tiles.min(target.multiprocessors as usize) };
        let launch = launch(args, entry, [workgroups.max(self.splits), 1], 128 * (self.groups + 1))?;
        Some(KernelLaunch { shared: number(shared)?, cluster: number(self.splits)?, ..launch })
    }
}

/// The native kernel for a product.
pub(super) fn find(product: &Product, target: Target) -> Option<NativeKernel> {
    let k = product.k;
    let name = match (product.x, product.w) {
        (DType::BF16, DType::BF16) if k.is_multiple_of(8) => "bf16",
        (DType::BF16, DType::F16) if k.is_multiple_of(8) => "f16",
        (DType::BF16, DType::Q8Planes) if k.is_multiple_of(64) => "q8",
        (DType::BF16, DType::Q4Planes) if k.is_multiple_of(64) => "q4",
        (DType::I8Groups { group }, DType::T2Planes) if group == 256 || group as usize == k => "t2",
        _ => return None,
    };
    // With codes a stage has twice the elements.
    let [row_bytes, piece] = if name == "t2" { [32, 0] } else { stage_bytes(product.w)? };
    if !Tile::fit(target) || !product.fits_tiles() {
        return None;
    }
    let tile = choose(product, target.multiprocessors as usize);
    let (stage, across) = (tile.stage(row_bytes, piece), (row_bytes * tile.parts()).min(ACROSS));
    let (x_element, w_element) = if product.plain() { (2, 2) } else { (2 - usize::from(name == "t2"), 1) };
    let [elements, x_scales] = product.x_args;
    let rows = if product.gated() { 32 } else { 64 };
    let weights = |i: usize| {
        // The first matrix stands in for a missing one; it is not read.
        let i = if i < product.rows.len() { i } else { 0 };
        map(product.w_args[i][0], w_element, product.row_bytes(), product.rows[i], [across, rows])
    };
    let args = arguments!(Multiply of product; {
        x: map(elements, x_element, k * x_element, product.tokens.max(), [128, tile.tokens])?,
        w0: weights(0)?,
        w1: weights(1)?,
        w2: weights(2)?,
        x_scales,
        s0: product.matrix(0)[1],
        s1: product.matrix(1)[1],
        s2: product.matrix(2)[1],
        group: number(product.activation_group())?,
        narrow: u32::from(product.narrow),
        splits: number(tile.splits)?,
    });
    let entry = format!("wgmma_{name}_{}_{}", tile.groups, tile.tokens);
    placed(product, tile, stage, args, entry, target)
}

/// The native kernel for a product of matrices of one packed type, which it widens to `bf16` itself.
pub(super) fn find_packed(product: &Product, target: Target) -> Option<NativeKernel> {
    let served = Tile::fit(target) && product.fits_tiles();
    if served && let DType::F8Groups { group } = product.x {
        return find_float8(product, group as usize, target);
    }
    if !served || product.x != DType::BF16 || !product.k.is_multiple_of(ELEMENTS) {
        return None;
    }
    let ((weights, planes), k) = (product.planes()?, product.k);
    let tile = choose(product, target.multiprocessors as usize);
    let [low, high] = stage_bytes(DType::Planes(weights))?;
    let exact = tile.groups == LONG;
    // With the sums of activations.
    let stage = tile.stage(low, high) + if exact { tile.tokens * 128 } else { 0 };
    let rows = if product.gated() { 32 } else { 64 };
    let plane = |i: usize, of: fn(&Planes) -> Memory, bytes: usize| {
        let i = if i < product.rows.len() { i } else { 0 };
        let across = (bytes * tile.parts()).min(ACROSS);
        map(of(&planes[i]), 1, k / ELEMENTS * bytes, product.rows[i], [across, rows])
    };
    let codes = |i| plane(i, |plane| plane.low, low);
    let x = map(product.x_args[0], 2, k * 2, product.tokens.max(), [128, tile.tokens])?;
    let (codes, splits) = ([codes(0)?, codes(1)?, codes(2)?], number(tile.splits)?);
    let kind = if exact { "exact" } else { "wide" };
    let entry = format!("{kind}_{}_{}_{}", packed_name(weights), tile.groups, tile.tokens);
    if exact {
        // Types without a high plane have the low one in its place, which is not read.
        let high = |i| if high > 0 { plane(i, |plane| plane.high, high) } else { plane(i, |plane| plane.low, low) };
        let [w0, w1, w2] = codes;
        let args = arguments!(Exact of product; {
            x,
            w0,
            w1,
            w2,
            h0: high(0)?,
            h1: high(1)?,
            h2: high(2)?,
            s0: planes[0].records,
            s1: planes[1].records,
            s2: planes[2].records,
            narrow: u32::from(product.narrow),
            splits,
        });
        return placed(product, tile, stage, args, entry, target);
    }
    // The two images declare the same arguments.
    macro_rules! args {
        ($Args:ident) => {{
            let [w0, w1, w2] = codes;
            arguments!($Args of product; {
                x,
                w0,
                w1,
                w2,
                h0: planes[0].high,
                h1: planes[1].high,
                h2: planes[2].high,
                s0: planes[0].records,
                s1: planes[1].records,
                s2: planes[2].records,
                narrow: u32::from(product.narrow),
                splits,
            })
        }};
    }
    if weights == BlockType::F8_E4M3 {
        return placed(product, tile, stage, args!(WideFloat8), entry, target);
    }
    placed(product, tile, stage, args!(Wide), entry, target)
}

/// The native kernel for floats of 8 bits with a scale per token, and matrices of them.
fn find_float8(product: &Product, group: usize, target: Target) -> Option<NativeKernel> {
    let ((weights, planes), k) = (product.planes()?, product.k);
    if weights != BlockType::F8_E4M3 || group != k {
        return None;
    }
    let tile = choose(product, target.multiprocessors as usize);
    let stage = tile.stage(128, 0);
    let rows = if product.gated() { 32 } else { 64 };
    let codes = |i: usize| {
        let i = if i < product.rows.len() { i } else { 0 };
        map(planes[i].low, 1, k, product.rows[i], [128, rows])
    };
    let args = arguments!(Float8 of product; {
        x: map(product.x_args[0], 1, k, product.tokens.max(), [128, tile.tokens])?,
        w0: codes(0)?,
        w1: codes(1)?,
        w2: codes(2)?,
        x_scales: product.x_args[1],
        s0: planes[0].records,
        s1: planes[1].records,
        s2: planes[2].records,
        narrow: u32::from(product.narrow),
        splits: number(tile.splits)?,
    });
    placed(product, tile, stage, args, format!("float8_{}_{}", tile.groups, tile.tokens), target)
}

/// Bytes of a row's 64 elements that meet `bf16`: in the plane that tiles are made of, and beside it. `None` for weights
/// without a kernel.
pub fn stage_bytes(weights: DType) -> Option<[usize; 2]> {
    Some(match weights {
        DType::BF16 | DType::F16 => [128, 0],
        DType::Q8Planes => [64, 4],
        DType::Q4Planes => [32, 4],
        DType::Planes(packed) if !weights.is_ternary() => {
            let [low, high, _] = packed.plane_bytes().map(|bytes| bytes * ELEMENTS / packed.row().len);
            [low, high]
        }
        _ => return None,
    })
}

/// A matrix of rows of `row` bytes for the copy engine, in tiles of bytes of a row and rows.
pub fn map(memory: Memory, element: usize, row: usize, rows: usize, tile: [usize; 2]) -> Option<TensorMap> {
    let bytes = u32::try_from(tile[0]).ok()?;
    Some(TensorMap {
        memory,
        element: element as u32,
        dims: vec![(row / element) as u64, rows as u64],
        strides: vec![row as u64],
        tile: vec![bytes / element as u32, u32::try_from(tile[1]).ok()?],
        swizzle: if bytes < 32 { 0 } else { bytes },
    })
}

/// The launch for a product.
fn placed(
    product: &Product,
    tile: Tile,
    stage: usize,
    args: impl KernelArgs,
    entry: String,
    target: Target,
) -> Option<NativeKernel> {
    Some(single(tile.launch(args, entry, stage, tiles(product, tile), target)?))
}

fn tiles(product: &Product, tile: Tile) -> usize {
    product.tokens.max().div_ceil(tile.tokens) * product.groups().div_ceil(tile.groups)
}

/// Whether `gemm_exact.cu` has a kernel for a type: `bf16` holds its codes, or its table's values, with what stands for
/// 0, and codes have four bits at least. `is_exact` in `gemm_exact.h` says the same; a kernel that is empty there gives
/// no results, which hologram-llm's `products_cuda` would see.
fn has_exact_codes(weights: BlockType) -> bool {
    !DType::Block(weights).has_float_codes()
        && weights.low_bits() == 4
        && weights.table().is_none_or(|table| table.iter().all(|value| (-64..64).contains(value)))
}

/// The fastest tile by [`estimate`].
pub(super) fn choose(product: &Product, multiprocessors: usize) -> Tile {
    const TILES: [(usize, usize); 8] =
        [(2, 256), (3, 128), (2, 128), (2, 64), (2, 32), (1, 32), (LONG, 64), (LONG, 32)];
    const WIDE: [(usize, usize); 5] = [(2, 256), (2, 64), (3, 64), (3, 32), (2, 32)];
    let decoded = matches!(product.w, DType::Q8Planes | DType::Q4Planes) && product.tokens.max() <= 32;
    let packed = product.packed_type().is_some();
    let floats = product.x.has_float_codes();
    let whole = product.k.is_multiple_of(PARTS * ELEMENTS);
    let exact = product.packed_type().is_some_and(|of| whole && has_exact_codes(of));
    let served = |(groups, tokens): &(usize, usize)| match (groups, tokens) {
        _ if floats => matches!((groups, tokens), (2, 64 | 128)),
        (&LONG, tokens) if packed => exact && *tokens == 32,
        (&LONG, tokens) => product.w == DType::Q4Planes && whole && product.tokens.max() <= *tokens,
        (2, 64) if packed => product.packed_type() != Some(BlockType::F8_E4M3),
        (3, 32) if packed => product.packed_type() == Some(BlockType::F8_E4M3),
        _ if packed => WIDE.contains(&(*groups, *tokens)),
        (3, 64 | 32) => false,
        (2, 128 | 32) => true,
        (1, _) => decoded,
        _ => product.w != DType::T2Planes,
    };
    let all = TILES
        .into_iter()
        .chain(WIDE)
        .filter(served)
        .flat_map(|(groups, tokens)| [1, 2, 3, 4, 5, 6, 8].map(|splits| Tile { groups, tokens, splits }))
        .filter(|tile| packed || tile.groups == LONG || tile.splits.is_power_of_two());
    // Small tiles only where every multiprocessor gets at most one, which clusters of more than two do not ensure.
    let alone = |tile: &Tile| tile.splits <= 2 && tiles(product, *tile) * tile.splits <= multiprocessors;
    let all = all.filter(|tile| tile.groups > 1 || alone(tile));
    let best = all.min_by_key(|tile| estimate(product, *tile, multiprocessors));
    best.unwrap_or(Tile { groups: 2, tokens: 128, splits: 1 })
}

/// Nanoseconds on an NVIDIA H200, fitted to measurements at 16 to 2048 tokens: the time of a stage of 128 bytes of
/// activations per token, times the stages that workgroups compute one after the other.
fn estimate(product: &Product, tile: Tile, multiprocessors: usize) -> usize {
    let weights = if product.plain() { DType::BF16 } else { product.w };
    let packed = product.packed_type().is_some();
    let floats = product.x.has_float_codes();
    let (stage, ends) = match (weights, tile.groups, tile.tokens) {
        _ if floats && tile.tokens == 128 => (420, 1700),
        _ if floats => (260, 1200),
        _ if packed && tile.tokens == 256 => (850, 4000),
        (DType::Q4Planes, LONG, 32) => (500, 800),
        (DType::Q4Planes, LONG, _) => (640, 1200),
        (_, LONG, _) => (570, 1000),
        (_, 2, 64) if packed => (500, 1500),
        _ if packed && tile.tokens == 64 => (680, 1500),
        _ if packed && tile.groups == 3 => (570, 1200),
        _ if packed => (440, 1000),
        (DType::Q8Planes, 1, _) => (305, 800),
        (_, 1, _) => (270, 800),
        (DType::BF16, _, 256) => (700, 4000),
        (DType::BF16, 3, _) => (490, 3000),
        (DType::BF16, _, 128) => (370, 1700),
        (DType::BF16, _, 64) => (225, 1200),
        (DType::BF16, ..) => (200, 800),
        (DType::T2Planes, _, 128) => (680, 2000),
        (DType::T2Planes, ..) => (465, 800),
        (_, _, 256) => (740, 4000),
        (_, 3, _) => (690, 3000),
        (_, _, 128) => (500, 1700),
        (_, _, 64) => (380, 1200),
        _ => (350, 800),
    };
    let stage_elements = if floats || product.w == DType::T2Planes { 128 } else { 64 };
    // Factors of packed weights are taken four stages at a time.
    let unit = if packed { 4 } else { tile.parts() };
    let stages = product.k.div_ceil(stage_elements * unit).div_ceil(tile.splits) * unit;
    // Clusters of more than two fit fewer times; each has a start-up and a final addition.
    let (places, sharing) = match tile.splits {
        1 => (multiprocessors, 0),
        2 => (multiprocessors / 2 * 2, 2500),
        3 => (multiprocessors * 15 / 16, 3300),
        4 => (multiprocessors * 7 / 8, 4000),
        5 => (multiprocessors * 5 / 6, 4600),
        6 => (multiprocessors * 15 / 16, 5200),
        _ => (multiprocessors * 3 / 4, 7000),
    };
    let waves = (tiles(product, tile) * tile.splits).div_ceil(places.max(1));
    waves * (stages * stage + ends + sharing)
}
