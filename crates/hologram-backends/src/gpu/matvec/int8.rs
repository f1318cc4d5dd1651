//! Products of one token in 8-bit arithmetic (`matvec_i8.k`): what a decoding step of a quantised model mostly is.

use super::plan::{Activations, Work};
use super::{After, NO_NORM, Products};
use crate::gpu::launch::single;
use crate::gpu::{Ahead, Arg, KernelLaunch, NativeKernel, Target};

pub(super) const IMAGE: &str = "matvec_i8";
pub(super) const THREADS: usize = 512;
/// Bytes that a launch fetches at most for the next one: what the memory delivers in about the time in which a launch reads nothing.
pub(super) const AHEAD_BYTES: usize = 10 << 20;
/// Arguments before those that tell what to fetch.
pub(super) const ARGUMENTS: usize = 26;

/// How rows and the blocks along them are shared by workgroups and their SIMD-groups.
pub(super) struct Shares {
    pub workgroups: usize,
    /// Tiles that are worked on together, SIMD-groups of each.
    pub teams: usize,
    pub slices: usize,
    /// Bytes of shared memory.
    pub shared: usize,
}

impl Shares {
    /// Of so many rows, with so many bytes for activations; `None` where they do not fit.
    pub fn of(rows: usize, gated: bool, activations: usize, target: Target) -> Option<Shares> {
        let simds = THREADS / 32;
        // A workgroup for each multiprocessor, or as many times more as it takes that their sums fit.
        let counts = std::iter::successors(Some(target.multiprocessors as usize), |n| (*n < rows).then_some(2 * n));
        let shares = counts.map(|most| {
            let workgroups = rows.min(most).max(1);
            let tiles = rows.div_ceil(workgroups).div_ceil(if gated { 8 } else { 16 });
            let teams = tiles.min(simds);
            let slices = simds / teams;
            Shares { workgroups, teams, slices, shared: activations + 8 * simds + slices * tiles * 64 }
        });
        let found = shares.into_iter().find(|s| s.shared <= target.max_shared as usize)?;
        // More than half of a multiprocessor's memory: of a launch that starts early two workgroups would share one multiprocessor while
        // another had none. On Apple GPUs none starts early.
        let alone = if target.is_apple() { 0 } else { target.max_shared as usize / 2 + 1 };
        Some(Shares { shared: found.shared.max(alone), ..found })
    }
}

/// [`Shares`] with the fours of activations of a thread.
struct Tiles {
    shares: Shares,
    held: usize,
}

impl Tiles {
    /// `None` for what the kernel does not serve.
    fn of(work: &Work, target: Target) -> Option<Tiles> {
        let Activations::I8 { group } = work.activations else { return None };
        let ternary = work.weights.name == "t2";
        // A block is 4 or 8 chunks along a row; a scale belongs to 256 or 32 elements.
        let (lanes, scale) = if ternary { (4, 256) } else { (8, 32) };
        let longest = match (ternary, work.norm) {
            (true, _) => 8_192,
            (false, true) => 4_096,
            (false, false) => 16_384,
        };
        let served = work.tokens == 1
            && !work.ready
            && work.k.is_multiple_of(lanes * work.weights.chunk)
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
        Some(Tiles { shares: Shares::of(work.rows, work.gated, activations, target)?, held })
    }
}

impl Products<'_> {
    /// The kernel for one token, of these numbers of rows; `step`: slot and place of the number of tokens.
    pub(super) fn int8(
        &self,
        work: &Work,
        rows: [usize; 3],
        step: (u32, &Arg),
        target: Target,
    ) -> Option<NativeKernel> {
        if matches!(self.after, After::SwigluBf16 | After::Relu2Bf16) {
            return None;
        }
        let Tiles { shares, held } = Tiles::of(work, target)?;
        let optional = |place: Option<usize>| place.map_or(Arg::Null, Arg::Binding);
        let matrix = |i: usize| self.weights.get(i).map(|(_, at)| *at);
        let number = |n: usize| u32::try_from(n).ok().map(Arg::U32);
        let mut args = vec![Arg::Binding(self.x.1), optional(self.norm.map(|((_, at), _)| at))];
        args.extend((0..3).map(|i| optional(matrix(i))));
        args.extend((0..3).map(|i| optional(matrix(i).map(|at| at + 1))));
        args.extend((0..3).map(|i| optional(self.outputs.get(i).map(|(_, at)| *at))));
        args.extend([optional(self.residual.map(|(_, at)| at)), step.1.clone(), Arg::U32(step.0)]);
        let (each, over) = (work.rows / shares.workgroups, work.rows % shares.workgroups);
        for n in [work.k, rows[0], rows[1], each, over, shares.teams, shares.slices, 256 / shares.teams + 1] {
            args.push(number(n)?);
        }
        args.push(Arg::U32(self.after as u32));
        args.extend([Arg::F32(self.norm.map_or(NO_NORM, |(_, eps)| eps)), Arg::F32(self.converted.1)]);
        args.push(Arg::F32(1.0 / work.k as f32));
        debug_assert_eq!(args.len(), ARGUMENTS);
        let reads = self.reads(work, rows, target.multiprocessors as usize);
        args.extend((0..6).flat_map(|_| range(Arg::Null, 0, 0, 0)));
        let form = if work.gated { "gate" } else { "rows" };
        Some(single(KernelLaunch {
            image: IMAGE,
            entry: format!("{}_{form}_h{}", work.weights.name, held),
            grid: [u32::try_from(shares.workgroups).ok()?, 1, 1],
            block: [THREADS as u32, 1, 1],
            shared: u32::try_from(shares.shared).ok()?,
            cluster: 1,
            early: true,
            ahead: Some(Ahead { reads, next: ARGUMENTS }),
            args,
        }))
    }

    /// What the launch before may fetch, as `stream.h` takes it: codes and scales of each matrix, the whole or the first part of each of
    /// `workgroups` shares.
    fn reads(&self, work: &Work, rows: [usize; 3], workgroups: usize) -> Vec<Arg> {
        let row = work.k / work.weights.chunk * 16;
        let scales = work.k / if work.weights.name == "t2" { 256 } else { 32 } * 2;
        let all = rows.iter().sum::<usize>() * (row + scales);
        let mut reads = Vec::new();
        for (i, rows) in rows.into_iter().enumerate() {
            for (view, bytes) in [(0, rows * row), (1, rows * scales)] {
                // Lines of the L2.
                let stride = bytes.div_ceil(workgroups).next_multiple_of(128);
                let len = stride.min((stride as f64 * AHEAD_BYTES as f64 / all as f64) as usize);
                let binding = self.weights.get(i).map(|(_, at)| Arg::Binding(at + view));
                let numbers = u32::try_from(bytes).ok().zip(u32::try_from(stride).ok()).zip(u32::try_from(len).ok());
                reads.extend(match (binding, numbers) {
                    (Some(binding), Some(((total, stride), len))) => range(binding, total, stride, len),
                    _ => range(Arg::Null, 0, 0, 0),
                });
            }
        }
        reads
    }
}

pub(super) fn range(at: Arg, total: u32, stride: u32, len: u32) -> [Arg; 4] {
    [at, Arg::U32(total), Arg::U32(stride), Arg::U32(len)]
}
