//! Products of one token with weights in `F8_E4M3` (`matvec_float8.cu`), on NVIDIA GPUs.

use super::int8::{Shares, THREADS};
use super::plan::{Activations, Work};
use super::{After, NO_NORM, Products};
use crate::kernels::cuda::matvec_float8::MatvecFloat8;
use crate::launch::{launch, number, single};
use crate::{KernelLaunch, Memory, NativeKernel, Target};

/// Elements that share a scale; rows are multiples of it.
const SCALE_LEN: usize = 128;

/// Bytes of a row's activations in shared memory with their scales: `tile_bytes` in `float8_tile.h`, and what follows.
pub(crate) fn row_bytes(k: usize) -> usize {
    k * 4 + 32 + (k / SCALE_LEN).div_ceil(2) * 16
}

/// Fours of activations that a thread holds for a norm of rows of `k` elements; rows without one go in rounds.
fn held(k: usize, norm: bool) -> Option<usize> {
    match (norm, k.div_ceil(4 * THREADS)) {
        (false, _) | (true, ..=2) => Some(2),
        (true, 3..=4) => Some(4),
        (true, _) => None,
    }
}

impl Products<'_> {
    /// The kernel for one token and these numbers of rows; `step`: the slot, and the step block with the number of
    /// tokens.
    pub(super) fn float8(
        &self,
        work: &Work,
        rows: [usize; 3],
        step: (u32, Memory),
        target: Target,
    ) -> Option<NativeKernel> {
        let served = target.has(80)
            && work.weights.name == "f8"
            && work.activations == Activations::F32
            && work.tokens == 1
            && work.k.is_multiple_of(SCALE_LEN)
            && !matches!(self.after, After::SwigluBf16 | After::Relu2Bf16);
        if !served {
            return None;
        }
        let held = held(work.k, work.norm)?;
        let Shares { workgroups, teams, slices, shared } =
            Shares::of(work.rows, work.gated, row_bytes(work.k), target)?;
        let matrix = |i: usize, view| Memory::optional(self.weights.get(i).map(|(_, at)| at + view));
        let result = |i: usize| Memory::optional(self.outputs.get(i).map(|(_, at)| *at));
        let args = MatvecFloat8 {
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
            each: number(work.rows / workgroups)?,
            over: number(work.rows % workgroups)?,
            teams: number(teams)?,
            slices: number(slices)?,
            magic: number(256 / teams + 1)?,
            after: self.after as u32,
            eps: self.norm.map_or(NO_NORM, |(_, eps)| eps),
            per: 1.0 / work.k as f32,
            reads: self.reads(work, rows, target.multiprocessors as usize),
        };
        let form = if work.gated { "gate" } else { "rows" };
        let launch = launch(args, format!("float8_{form}_h{held}"), [workgroups, 1], THREADS)?;
        Some(single(KernelLaunch { shared: number(shared)?, ..launch }))
    }
}
