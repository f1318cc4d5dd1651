//! Products of a few tokens with packed weights (`matvec_packed.k`).

use hologram_device::{BlockType, DType, Extent, TensorSpec};

use super::int8::{RANGES, Shares, THREADS, range};
use super::{After, Bound, NO_NORM, Products, QUANTISED, fits};
use crate::kernels::matvec_i8::{PACKED_BLOCK, RING_PACKED};
use crate::kernels::matvec_packed::MatvecPacked;
use crate::launch::{MATRICES, Planes, launch, number, packed_name, single};
use crate::{KernelArgs, KernelLaunch, Memory, NativeKernel, Range, Target};

/// Elements of a row that a workgroup keeps at once. Longer rows go in rounds.
pub(super) const HELD: usize = 4_096;
/// Bytes that are 0 in shared memory, which products with tables read: `zeros_after` in `table_tile.h`.
pub(crate) const ZEROS: usize = 16;
/// Types without a kernel for a gate.
pub(super) const UNGATED: [BlockType; 8] = [
    BlockType::Q4_1,
    BlockType::Q5_1,
    BlockType::IQ4_NL,
    BlockType::Q2_K,
    BlockType::NVFP4,
    BlockType::IQ2_N,
    BlockType::IQ3_XXS_N,
    BlockType::IQ3_S_N,
];

impl Products<'_> {
    /// The kernel for up to `most` tokens; their number is word `slot` of `step`.
    pub(super) fn packed(
        &self,
        packed: BlockType,
        most: usize,
        step: (u32, Memory),
        target: Target,
    ) -> Option<NativeKernel> {
        let ((x, at), (_, floor)) = (self.x, self.converted);
        let [_, Extent::Fixed(k)] = x.shape[..] else { return None };
        let ready = self.is_ready();
        let gated = matches!(self.after, After::Swiglu | After::Relu2);
        let (long, scarce) = (k > HELD, packed == BlockType::Q6_K);
        // Long rows with a norm have kernels of their own, and those of a type whose registers are scarce, which has none
        // for norms and gates of them.
        let apart = long && (self.norm.is_some() || scarce && !(gated && ready));
        let missing = long && scarce && self.norm.is_some() || gated && UNGATED.contains(&packed);
        if missing || matches!(self.after, After::SwigluBf16 | After::Relu2Bf16) {
            return None;
        }
        let mut rows = [0; MATRICES];
        for ((m, n), (w, _)) in rows.iter_mut().zip(self.packed_rows()?).zip(&self.weights) {
            if w.format != DType::Planes(packed) {
                return None;
            }
            *m = n;
        }
        let total: usize = if gated { rows[0] } else { rows.iter().sum() };
        if !fits(total, k, most) {
            return None;
        }
        let shares = shares(total, k, gated, target)?;
        let [each, over, teams, slices, magic] = shares.numbers(total)?;
        let planes = |i: usize| self.weights.get(i).map_or(Planes::NONE, |(_, at)| Planes::at(packed, *at));
        let [first, second, third] = [0, 1, 2].map(planes);
        let result = |i: usize| Memory::optional(self.outputs.get(i).map(|(_, at)| *at));
        let no_norm = if ready { QUANTISED } else { NO_NORM };
        let args = MatvecPacked {
            x: Memory::Binding(at),
            norm: Memory::optional(self.norm.map(|((_, at), _)| at)),
            w0: first.low,
            w1: second.low,
            w2: third.low,
            s0: first.records,
            s1: second.records,
            s2: third.records,
            y0: result(0),
            y1: result(1),
            y2: result(2),
            residual: Memory::optional(self.residual.map(|(_, at)| at)),
            step: step.1,
            slot: step.0,
            k: number(k)?,
            m0: number(rows[0])?,
            m1: number(rows[1])?,
            each,
            over,
            teams,
            slices,
            magic,
            after: self.after as u32,
            eps: self.norm.map_or(no_norm, |(_, eps)| eps),
            least: floor,
            per: 1.0 / k as f32,
            h0: first.high,
            h1: second.high,
            h2: third.high,
            x_scales: Memory::optional(ready.then_some(at + 1)),
            m2: number(rows[2])?,
            reads: first_reads(&self.packed_reads(k, target.multiprocessors as usize)),
        };
        let form = match (gated, apart) {
            (true, true) => "long_gate",
            (true, false) => "gate",
            (false, true) => "long",
            (false, false) => "rows",
        };
        let entry = format!("{}_{form}", packed_name(packed));
        if !args.entries().contains(&&*entry) {
            return None;
        }
        let launch = launch(args, entry, [shares.workgroups, most], THREADS)?;
        Some(single(KernelLaunch { shared: number(shares.shared)?, ..launch }))
    }

    /// Whether the activations are already quantised.
    pub(super) fn is_ready(&self) -> bool {
        std::ptr::eq(self.x.0, self.converted.0)
    }

    /// The rows of each matrix; `None` for activations and results that the kernels of packed weights do not have.
    pub(super) fn packed_rows(&self) -> Option<Vec<usize>> {
        let (x, converted) = (self.x.0, self.converted.0);
        let [tokens, Extent::Fixed(k)] = x.shape[..] else { return None };
        let f32 = |t: &TensorSpec, shape: &[Extent]| t.format == DType::F32 && t.shape == shape;
        let served = converted.format == (DType::I8Groups { group: 32 })
            && k > 0
            && k.is_multiple_of(32)
            && (self.is_ready() && self.norm.is_none() || x.format == DType::F32)
            && self.norm.is_none_or(|((w, _), _)| f32(w, &[Extent::Fixed(k)]));
        let rows = |(i, (w, _)): (usize, &Bound<'_>)| {
            let [Extent::Fixed(n), Extent::Fixed(l)] = w.shape[..] else { return None };
            let output = self.outputs.get(i).or(self.outputs.first())?.0;
            (l == k && n > 0 && f32(output, &[tokens, Extent::Fixed(n)])).then_some(n)
        };
        if served { self.weights.iter().enumerate().map(rows).collect() } else { None }
    }

    /// The ranges that the launch before may prefetch, of each matrix: low planes and records, as codes and scales in
    /// `int8`.
    pub(super) fn packed_reads(&self, k: usize, workgroups: usize) -> Vec<Range> {
        // The memory and the bytes of each.
        let planes = |(w, at): &Bound<'_>| {
            let packed = w.format.packed()?;
            let (planes, elements) = (Planes::at(packed, *at), w.max_rows() * k);
            let [low, high, records] = packed.plane_bytes().map(|n| n * elements / packed.row().len);
            Some(([(planes.low, low), (planes.records, records)], low + high + records))
        };
        let of_each: Vec<_> = self.weights.iter().filter_map(planes).collect();
        let all = of_each.iter().map(|(_, bytes)| bytes).sum();
        let ranges = of_each.into_iter().flat_map(|(planes, _)| planes);
        ranges.map(|(at, bytes)| range(Some(at), bytes, all, workgroups)).collect()
    }
}

/// The division of rows of packed weights.
pub(super) fn shares(rows: usize, k: usize, gated: bool, target: Target) -> Option<Shares> {
    let blocks = (k.div_ceil(PACKED_BLOCK as usize), RING_PACKED as usize);
    Shares::of(rows, blocks, gated, k + (k / 32).div_ceil(2) * 16 + ZEROS, target)
}

/// As many ranges as a launch tells the one before.
pub(super) fn first_reads(all: &[Range]) -> [Range; RANGES] {
    std::array::from_fn(|i| all.get(i).copied().unwrap_or(Range::NONE))
}
