//! Products of one token in 8-bit arithmetic (`matvec_i8.k`): most of a decoding step of a quantised model.

use super::plan::{Activations, Work};
use super::{After, NO_NORM, Products};
use std::sync::Arc;

use hologram_device::Gate;

use crate::kernels::matvec_i8::{MatvecI8, RING_CODES, RING_T2};
use crate::launch::{launch_of, number, single};
use crate::{KernelLaunch, Memory, NativeKernel, Range, StackPhase, Target};

/// Threads of a workgroup.
pub(super) const THREADS: usize = crate::kernels::matvec_i8::THREADS as usize;
/// The most bytes that a launch prefetches for the next one: about as many as the memory delivers in the gap between
/// them.
pub(super) const AHEAD_BYTES: usize = 10 << 20;
/// Ranges of bytes of a launch's matrices: codes and scales of each.
pub(super) const RANGES: usize = 6;

/// The division of rows, and of the blocks along them, among workgroups and their SIMD-groups.
pub(super) struct Shares {
    pub workgroups: usize,
    /// Tiles computed at a time, and SIMD-groups per tile.
    pub teams: usize,
    pub slices: usize,
    /// Bytes of shared memory.
    pub shared: usize,
    /// What a SIMD-group does, in quarters of a round of its ring; the end of a tile takes one.
    pub time: usize,
}

impl Shares {
    /// The division of this many rows of this many blocks, `ring` of which a SIMD-group has on their way, with this many
    /// bytes of activations; `None` if they do not fit.
    pub fn of(
        rows: usize,
        (blocks, ring): (usize, usize),
        gated: bool,
        activations: usize,
        target: Target,
    ) -> Option<Shares> {
        let simds = THREADS / 32;
        // One workgroup per multiprocessor, or the least multiple for which their sums fit.
        let mut counts = std::iter::successors(Some(target.multiprocessors as usize), |n| (*n < rows).then_some(2 * n));
        let found = counts.find_map(|most| {
            let workgroups = rows.min(most).max(1);
            let tiles = rows.div_ceil(workgroups).div_ceil(if gated { 8 } else { 16 });
            let shares = (1..=tiles.min(simds)).rev().map(|teams| {
                let slices = simds / teams;
                // A tile more than there are teams takes as long as all of them before.
                let time = tiles.div_ceil(teams) * (4 * blocks.div_ceil(slices).div_ceil(ring) + 1);
                Shares { workgroups, teams, slices, shared: activations + 8 * simds + slices * tiles * 64, time }
            });
            shares.filter(|s| s.shared <= target.max_shared as usize).min_by_key(|s| s.time)
        })?;
        // More than half of a multiprocessor's memory: otherwise two workgroups of an early launch could share a
        // multiprocessor while another had none. Apple GPUs have no early launches.
        let alone = if target.is_apple() { 0 } else { target.max_shared as usize / 2 + 1 };
        Some(Shares { shared: found.shared.max(alone), ..found })
    }

    /// As kernels take them: rows of a workgroup, how many workgroups have one more, teams, slices, and ⌊256 / teams⌋ + 1,
    /// by which kernels divide.
    pub fn numbers(&self, rows: usize) -> Option<[u32; 5]> {
        let (each, over) = (rows / self.workgroups, rows % self.workgroups);
        let [each, over, teams, slices, magic] =
            [each, over, self.teams, self.slices, 256 / self.teams + 1].map(number);
        Some([each?, over?, teams?, slices?, magic?])
    }
}

/// [`Shares`] with the fours of activations per thread.
struct Tiles {
    shares: Shares,
    held: usize,
}

impl Tiles {
    /// `None` if the kernel does not serve the work.
    fn of(work: &Work, target: Target) -> Option<Tiles> {
        let Activations::I8 { group } = work.activations else { return None };
        let ternary = work.weights.name == "t2";
        // A block is 4 or 8 chunks along a row; 256 or 32 elements share a scale.
        let (lanes, scale) = if ternary { (4, 256) } else { (8, 32) };
        let block = lanes * work.weights.chunk;
        let longest = match (ternary, work.norm) {
            (true, _) => 8_192,
            (false, true) => 4_096,
            (false, false) => 16_384,
        };
        let served = work.tokens == 1
            && !work.ready
            && work.k.is_multiple_of(block)
            && work.k <= longest
            && (!ternary || group as usize == work.k);
        if !served {
            return None;
        }
        let held = match (work.k <= 4_096, ternary) {
            (true, _) => 2,
            (false, true) => 4,
            (false, false) => 8,
        };
        let activations = if ternary { work.k / 128 * 160 } else { work.k };
        let activations = activations + (work.k / scale).div_ceil(2) * 16;
        let blocks = (work.k / block, if ternary { RING_T2 } else { RING_CODES } as usize);
        Some(Tiles { shares: Shares::of(work.rows, blocks, work.gated, activations, target)?, held })
    }
}

impl Products<'_> {
    /// The kernel for one token and these numbers of rows; `step`: the slot, and the step block with the number of
    /// tokens.
    pub(super) fn int8(
        &self,
        work: &Work,
        rows: [usize; 3],
        step: (u32, Memory),
        target: Target,
    ) -> Option<NativeKernel> {
        if matches!(self.after, After::SwigluBf16 | After::Relu2Bf16) {
            return None;
        }
        let Tiles { shares, held } = Tiles::of(work, target)?;
        let [each, over, teams, slices, magic] = shares.numbers(work.rows)?;
        let matrix = |i: usize, view| Memory::optional(self.weights.get(i).map(|(_, at)| at + view));
        let result = |i: usize| Memory::optional(self.outputs.get(i).map(|(_, at)| *at));
        let args = Arc::new(MatvecI8 {
            x: Memory::Binding(self.x.1),
            norm: Memory::optional(self.norm.map(|((_, at), _)| at)),
            w0: matrix(0, 0),
            w1: matrix(1, 0),
            w2: matrix(2, 0),
            s0: matrix(0, 1),
            s1: matrix(1, 1),
            s2: matrix(2, 1),
            y0: result(0),
            y1: result(1),
            y2: result(2),
            residual: Memory::optional(self.residual.map(|(_, at)| at)),
            step: step.1,
            slot: step.0,
            k: number(work.k)?,
            m0: number(rows[0])?,
            m1: number(rows[1])?,
            each,
            over,
            teams,
            slices,
            magic,
            after: self.after as u32,
            eps: self.norm.map_or(NO_NORM, |(_, eps)| eps),
            least: self.converted.1,
            per: 1.0 / work.k as f32,
            reads: self.reads(work, rows, target.multiprocessors as usize),
        });
        let form = if work.gated { "gate" } else { "rows" };
        let entry = format!("{}_{form}_h{held}", work.weights.name);
        let gate = work.gated.then_some(if self.after == After::Relu2 { Gate::Relu2 } else { Gate::Swiglu });
        let phase = StackPhase::Ternary { gate, args: args.clone() };
        let launch = launch_of(args, entry, [shares.workgroups, 1], THREADS)?;
        let phase = Some(phase).filter(|_| work.weights.name == "t2");
        Some(NativeKernel { phase, ..single(KernelLaunch { shared: number(shares.shared)?, ..launch }) })
    }

    /// The ranges that the launch before may prefetch, in the form of `stream.h`: codes and scales of each matrix, all
    /// or the first part of each of `workgroups` shares.
    fn reads(&self, work: &Work, rows: [usize; 3], workgroups: usize) -> [Range; RANGES] {
        let row = work.k / work.weights.chunk * 16;
        let scales = work.k / if work.weights.name == "t2" { 256 } else { 32 } * 2;
        let all = rows.iter().sum::<usize>() * (row + scales);
        std::array::from_fn(|i| {
            let (matrix, view) = (i / 2, i % 2);
            let at = self.weights.get(matrix).map(|(_, at)| Memory::Binding(at + view));
            range(at, rows[matrix] * [row, scales][view], all, workgroups)
        })
    }
}

/// The range of a matrix's bytes that the launch before may prefetch; `all`: the bytes of all matrices.
pub(super) fn range(at: Option<Memory>, bytes: usize, all: usize, workgroups: usize) -> Range {
    // Whole cache lines of the L2.
    let stride = bytes.div_ceil(workgroups).next_multiple_of(128);
    let len = stride.min((stride as f64 * AHEAD_BYTES as f64 / all as f64) as usize);
    match (at, number(bytes), number(stride), number(len)) {
        (Some(at), Some(total), Some(stride), Some(len)) => Range { at, total, stride, len },
        _ => Range::NONE,
    }
}
