//! `attention` over a paged cache, alone or after rotary embedding and the cache updates.
//!
//! Few tokens use the kernels of `attention_few.cu` (`f16`) and `attention_codes.cu` (8 and 4 bits), on tensor cores,
//! if they serve the sizes, else those of `attention.h`; both split a token's positions over workgroups. Many tokens
//! use the kernels of `attention_wgmma.cu` or `attention_prefill.cu`, on tensor cores, or of `attention_prefill.metal`,
//! on simdgroup matrices. Heads of 512 and 576 elements have those of `attention_wide.cu`.

mod few;
mod group;
mod many;
mod simdgroup;
#[cfg(test)]
mod tests;
mod wgmma;
mod wide;

use super::kernels::cuda::attention_wgmma::MOST_RUNS;
use super::launch::{Count, Places, all_f32};
use super::{FEW_TOKENS, Memory, NativeKernel, Target, Vendor};
use hologram_device::{AttentionPrecision, DType, Extent, KernelSpec, Operation, TensorSpec};
use hologram_isa::Type;

pub(super) use group::find_group;

/// The most tokens of a step that count as few if each may belong to a sequence of its own.
const FEW_SEQUENCES: usize = 256;

/// The workgroups of all key/value heads that share tiles with many sequences: about as many as a GPU has room for
/// beside those of some hundred tokens. More would cost steps without such tiles: 256 took 11 us of a layer's attention.
const EXTRA: usize = 64;

/// The element type of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cache {
    F32,
    F16,
    /// Floats of a byte.
    Floats,
    /// 8-bit codes with a plane of scales.
    Eight,
    /// Likewise, two codes in a byte.
    Four,
}

/// Sizes of attention.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    tokens: Count,
    /// Whether each token's bits must not depend on the others.
    independent: bool,
    heads: usize,
    kv_heads: usize,
    d: usize,
    blocks: usize,
    /// Log2 of the block size.
    shift: u32,
    /// Sequences (rows) and columns of the block table.
    rows: usize,
    columns: usize,
    /// The cache's elements.
    cache: Cache,
    /// How many positions a token sees, up to its own.
    window: Option<u32>,
    /// Scores s become `cap`·tanh(s / `cap`), with the factor log2(e); 0 for none.
    cap: f32,
}

impl Sizes {
    /// The sizes of q, k, v, positions, sequences and block table, with the output; `None` if no kernel serves them.
    fn of(inputs: [&TensorSpec; 6], output: &TensorSpec) -> Option<Sizes> {
        let [q, k, v, positions, sequences, table] = inputs;
        let [n, Extent::Fixed(heads), Extent::Fixed(d)] = q.shape[..] else { return None };
        let [Extent::Fixed(blocks), Extent::Fixed(kv_heads), Extent::Fixed(block), Extent::Fixed(_)] = k.shape[..]
        else {
            return None;
        };
        let [Extent::Fixed(rows), Extent::Fixed(columns)] = table.shape[..] else { return None };
        let cache = match k.format {
            DType::Plain(Type::F32) => Cache::F32,
            DType::Plain(Type::F16) => Cache::F16,
            DType::F8 => Cache::Floats,
            DType::Q8Planes => Cache::Eight,
            DType::Q4Planes => Cache::Four,
            _ => return None,
        };
        let served = k == v
            && all_f32([q])
            && output == q
            && [positions, sequences, table].iter().all(|t| t.format == DType::U32)
            && positions.shape == [n]
            && sequences.shape == [n]
            && k.shape[3] == Extent::Fixed(d)
            && block.is_power_of_two()
            && [blocks, kv_heads, rows, columns, d].iter().all(|n| *n > 0)
            && heads > 0
            && heads.is_multiple_of(kv_heads)
            && d.is_multiple_of(k.format.block_len().max(8))
            && d <= wide::WIDEST;
        // Kernels use 32 bits for positions, 16-byte chunks of the cache, and elements of q.
        let fits = |sizes: &[usize]| {
            sizes.iter().try_fold(1usize, |n, size| n.checked_mul(*size)).is_some_and(|n| n < 1 << 31)
        };
        let tokens = Count::of(&[n])?;
        let counted =
            fits(&[blocks, kv_heads, block, d / 4]) && fits(&[columns, block]) && fits(&[tokens.max(), heads, d]);
        (served && counted && fits(&[rows, columns])).then_some(Sizes {
            tokens,
            independent: n.is_independent(),
            heads,
            kv_heads,
            d,
            blocks,
            shift: block.trailing_zeros(),
            rows,
            columns,
            cache,
            window: None,
            cap: 0.0,
        })
    }

    /// Whether kernels for few tokens are faster than those for many; each may belong to a sequence of its own.
    fn are_few(&self, pieces: bool) -> bool {
        let tokens = self.tokens.max();
        self.independent || tokens <= FEW_TOKENS || !pieces && tokens <= self.rows.min(FEW_SEQUENCES)
    }

    /// The workgroups of a key/value head, beside those of tiles of `tokens`, that share tiles with many sequences
    /// (`attention_tiles.h`); none for a single sequence.
    fn extra(&self, tokens: usize) -> usize {
        match self.rows > 1 && tokens > MOST_RUNS as usize {
            true => self.rows.min((EXTRA / self.kv_heads).max(1)),
            false => 0,
        }
    }

    /// Sets the window; `None` if no kernel serves it.
    fn seeing(self, window: Option<u32>) -> Option<Sizes> {
        let window = window.filter(|n| (*n as usize) < self.columns << self.shift);
        window.is_none_or(|n| n > 0 && n < 1 << 27).then_some(Sizes { window, ..self })
    }

    /// Sets the cap.
    fn capped(self, cap: Option<f32>) -> Sizes {
        Sizes { cap: cap.map_or(0.0, |cap| cap * std::f32::consts::LOG2_E), ..self }
    }

    /// Heads, key/value heads, elements per head, blocks, sequences and columns of the block table: numbers below
    /// 2³¹.
    fn numbers(&self) -> Numbers {
        let [heads, kv_heads, d, blocks, rows, columns] =
            [self.heads, self.kv_heads, self.d, self.blocks, self.rows, self.columns].map(|n| n as u32);
        Numbers { heads, kv_heads, d, blocks, rows, columns }
    }
}

/// [`Sizes`] as kernels take them.
struct Numbers {
    heads: u32,
    kv_heads: u32,
    d: u32,
    blocks: u32,
    rows: u32,
    columns: u32,
}

/// q, the caches of keys and values, positions, sequences and block table; if there are, the first position that each
/// token sees, and the heads' sinks.
#[derive(Clone, Copy)]
struct Operands {
    q: Memory,
    keys: Memory,
    values: Memory,
    positions: Memory,
    sequences: Memory,
    table: Memory,
    firsts: Option<Memory>,
    sinks: Option<Memory>,
}

impl Operands {
    fn of([q, keys, values, positions, sequences, table]: [Memory; 6]) -> Operands {
        Operands { q, keys, values, positions, sequences, table, firsts: None, sinks: None }
    }
}

/// The native kernel for `attention`.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let [q, k, v, positions, sequences, table, more @ ..] = spec.inputs.as_slice() else { return None };
    let Operation::Attention { scale, precision, window, cap, pieces } = spec.op else { return None };
    let (firsts, sinks) = match more.iter().map(|t| t.format).collect::<Vec<_>>()[..] {
        [] => (None, None),
        [DType::U32] => (Some(6), None),
        [DType::F32] => (None, Some(6)),
        [DType::U32, DType::F32] => (Some(6), Some(7)),
        _ => return None,
    };
    if spec.in_place.is_some() {
        return None;
    }
    let sizes = Sizes::of([q, k, v, positions, sequences, table], &spec.output)?.seeing(window)?;
    let sizes = sizes.capped(cap.map(|cap| cap.get()));
    let scale = scale.get();
    let places = Places::of(spec);
    let input = |i| places.input(i, 0);
    let operands =
        Operands { firsts: firsts.map(input), sinks: sinks.map(input), ..Operands::of([0, 1, 2, 3, 4, 5].map(input)) };
    let scales = match sizes.cache {
        Cache::Eight | Cache::Four => [1, 2].map(|i| places.input(i, 1)),
        Cache::F32 | Cache::F16 | Cache::Floats => [Memory::Null, Memory::Null],
    };
    let few = sizes.are_few(pieces);
    if let Some(kernel) =
        wide::kernel(sizes, operands, &places, scale, few || precision == AttentionPrecision::F32, target)
    {
        return Some(kernel);
    }
    let many = || match target.vendor {
        Vendor::Apple => simdgroup::kernel(sizes, operands, scales, &places, scale),
        Vendor::Nvidia { .. } => {
            let bf16 = precision == AttentionPrecision::BF16;
            let wgmma = if bf16 { wgmma::kernel(sizes, operands, &places, scale, target) } else { None };
            wgmma.or_else(|| many::kernel(sizes, operands, scales, &places, scale, bf16, target))
        }
    };
    let many = if few { None } else { many() };
    many.or_else(|| {
        let out = few::Out { place: places.output(0), narrow: false };
        few::kernel(sizes, operands, few::More::Scales(scales), out, places.step(), scale, target)
    })
}
