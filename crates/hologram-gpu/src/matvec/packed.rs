//! Products of a few tokens with packed weights (`matvec_packed.k`).

use hologram_device::{BlockType, DType, Extent};

use super::int8::{RANGES, Shares, THREADS, range};
use super::{After, MOST_ELEMENTS, MOST_ROWS, NO_NORM, Products, QUANTISED};
use crate::kernels::matvec_packed::MatvecPacked;
use crate::launch::{Planes, launch, number, packed_name, single};
use crate::{KernelArgs, KernelLaunch, Memory, NativeKernel, Range, Target};

/// Elements of a row that a workgroup keeps at once. Longer rows go in rounds.
const HELD: usize = 4_096;
/// Elements of a row in a block, and the blocks that a SIMD-group has on their way (of some types more): `elements_of`
/// and `ring_len` in `matvec_i8.h`.
const BLOCK: usize = 256;
const RING: usize = 2;
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
        let (x, at) = self.x;
        let (converted, floor) = self.converted;
        let [tokens, Extent::Fixed(k)] = x.shape[..] else { return None };
        // Whether the activations are already quantised.
        let ready = std::ptr::eq(x, converted);
        let gated = matches!(self.after, After::Swiglu | After::Relu2);
        let (long, scarce) = (k > HELD, packed == BlockType::Q6_K);
        // Long rows with a norm have kernels of their own, and those of a type whose registers are scarce, which has none
        // for norms and gates of them.
        let apart = long && (self.norm.is_some() || scarce && !(gated && ready));
        let f32 = |t: &hologram_device::TensorSpec, shape: &[Extent]| t.format == DType::F32 && t.shape == shape;
        let served = converted.format == (DType::I8Groups { group: 32 })
            && k > 0
            && k.is_multiple_of(32)
            && (ready && self.norm.is_none() || x.format == DType::F32)
            && self.norm.is_none_or(|((w, _), _)| f32(w, &[Extent::Fixed(k)]))
            && !(long && scarce && self.norm.is_some())
            && (!gated || !UNGATED.contains(&packed))
            && !matches!(self.after, After::SwigluBf16 | After::Relu2Bf16);
        if !served {
            return None;
        }
        let mut rows = [0; 3];
        for (i, ((w, _), m)) in self.weights.iter().zip(&mut rows).enumerate() {
            let [Extent::Fixed(n), Extent::Fixed(l)] = w.shape[..] else { return None };
            let output = self.outputs.get(i).or(self.outputs.first())?.0;
            if l != k || n == 0 || w.format != DType::Planes(packed) || !f32(output, &[tokens, Extent::Fixed(n)]) {
                return None;
            }
            *m = n;
        }
        let total: usize = if gated { rows[0] } else { rows.iter().sum() };
        if total > MOST_ROWS || total.checked_mul(k)? > MOST_ELEMENTS || k.checked_mul(most)? > MOST_ROWS {
            return None;
        }
        let Shares { workgroups, teams, slices, shared } =
            Shares::of(total, (k.div_ceil(BLOCK), RING), gated, k + (k / 32).div_ceil(2) * 16 + ZEROS, target)?;
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
            each: number(total / workgroups)?,
            over: number(total % workgroups)?,
            teams: number(teams)?,
            slices: number(slices)?,
            magic: number(256 / teams + 1)?,
            after: self.after as u32,
            eps: self.norm.map_or(no_norm, |(_, eps)| eps),
            least: floor,
            per: 1.0 / k as f32,
            h0: first.high,
            h1: second.high,
            h2: third.high,
            x_scales: Memory::optional(ready.then_some(at + 1)),
            m2: number(rows[2])?,
            reads: self.packed_reads(packed, k, rows, target.multiprocessors as usize),
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
        let launch = launch(args, entry, [workgroups, most], THREADS)?;
        Some(single(KernelLaunch { shared: number(shared)?, ..launch }))
    }

    /// The ranges that the launch before may prefetch: low planes and records, as codes and scales in `int8`.
    fn packed_reads(&self, packed: BlockType, k: usize, rows: [usize; 3], workgroups: usize) -> [Range; RANGES] {
        let of_row = packed.plane_bytes().map(|n| n * k / packed.row().len);
        let all = rows.iter().sum::<usize>() * of_row.iter().sum::<usize>();
        std::array::from_fn(|i| {
            let (matrix, records) = (i / 2, i % 2 == 1);
            let planes = self.weights.get(matrix).map(|(_, at)| Planes::at(packed, *at));
            let at = planes.map(|p| if records { p.records } else { p.low });
            range(at, rows[matrix] * of_row[if records { 2 } else { 0 }], all, workgroups)
        })
    }
}
