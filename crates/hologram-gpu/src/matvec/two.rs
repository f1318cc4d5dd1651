//! Products of one token with packed weights of two types in one launch (`kernels/cuda/matvec_two.cu`).

use hologram_device::{BlockType, Extent};

use super::int8::{Shares, THREADS};
use super::packed::{HELD, first_reads, shares};
use super::{After, NO_NORM, Products, QUANTISED, fits};
use crate::kernels::cuda::matvec_two::MatvecTwo;
use crate::launch::{MATRICES, Planes, launch, number, packed_name, single};
use crate::{KernelArgs, KernelLaunch, Memory, NativeKernel, Target};

/// The matrices of one type.
struct OfType {
    packed: BlockType,
    /// Their indices, and their rows.
    matrices: Vec<usize>,
    rows: [usize; MATRICES],
}

impl OfType {
    fn rows(&self) -> usize {
        self.rows.iter().sum()
    }
}

impl Products<'_> {
    /// The launch for matrices of two types; `None` if there is no kernel for these.
    pub(super) fn two(&self, most: usize, step: (u32, Memory), target: Target) -> Option<NativeKernel> {
        let (x, at) = self.x;
        let [_, Extent::Fixed(k)] = x.shape[..] else { return None };
        if most != 1 || self.after != After::Store || !target.is(90) {
            return None;
        }
        let rows = self.packed_rows()?;
        if !fits(rows.iter().sum(), k, most) {
            return None;
        }
        let mut types: Vec<OfType> = Vec::new();
        for (i, ((w, _), n)) in self.weights.iter().zip(rows).enumerate() {
            let packed = w.format.packed()?;
            let place = match types.iter().position(|of| of.packed == packed) {
                Some(place) => place,
                None => {
                    types.push(OfType { packed, matrices: Vec::new(), rows: [0; MATRICES] });
                    types.len() - 1
                }
            };
            let of = types.get_mut(place)?;
            *of.rows.get_mut(of.matrices.len())? = n;
            of.matrices.push(i);
        }
        types.sort_by_key(|of| packed_name(of.packed));
        let [first, second] = &types[..] else { return None };
        let [a, b] = divide([first, second], k, target)?;
        let [first_each, first_over, first_teams, first_slices, first_magic] = a.numbers(first.rows())?;
        let [second_each, second_over, second_teams, second_slices, second_magic] = b.numbers(second.rows())?;
        let of = |i: usize| self.weights.get(i).and_then(|(w, at)| Some(Planes::at(w.format.packed()?, *at)));
        let planes = |t: &OfType| [0, 1, 2].map(|i| t.matrices.get(i).and_then(|i| of(*i)).unwrap_or(Planes::NONE));
        let results = |t: &OfType| {
            let result = |i: usize| Memory::optional(t.matrices.get(i).and_then(|i| Some(self.outputs.get(*i)?.1)));
            [0, 1, 2].map(result)
        };
        let ([first_w, second_w], [first_y, second_y]) = ([first, second].map(planes), [first, second].map(results));
        let ready = self.is_ready();
        let no_norm = if ready { QUANTISED } else { NO_NORM };
        let mut reads = self.packed_reads(k, target.multiprocessors as usize);
        reads.sort_by_key(|range| std::cmp::Reverse(range.total));
        let args = MatvecTwo {
            x: Memory::Binding(at),
            norm: Memory::optional(self.norm.map(|((_, at), _)| at)),
            x_scales: Memory::optional(ready.then_some(at + 1)),
            step: step.1,
            slot: step.0,
            k: number(k)?,
            eps: self.norm.map_or(no_norm, |(_, eps)| eps),
            least: self.converted.1,
            per: 1.0 / k as f32,
            split: number(a.workgroups)?,
            first_w0: first_w[0].low,
            first_w1: first_w[1].low,
            first_w2: first_w[2].low,
            first_h0: first_w[0].high,
            first_h1: first_w[1].high,
            first_h2: first_w[2].high,
            first_s0: first_w[0].records,
            first_s1: first_w[1].records,
            first_s2: first_w[2].records,
            first_y0: first_y[0],
            first_y1: first_y[1],
            first_y2: first_y[2],
            first_m0: number(first.rows[0])?,
            first_m1: number(first.rows[1])?,
            first_each,
            first_over,
            first_teams,
            first_slices,
            first_magic,
            second_w0: second_w[0].low,
            second_w1: second_w[1].low,
            second_w2: second_w[2].low,
            second_h0: second_w[0].high,
            second_h1: second_w[1].high,
            second_h2: second_w[2].high,
            second_s0: second_w[0].records,
            second_s1: second_w[1].records,
            second_s2: second_w[2].records,
            second_y0: second_y[0],
            second_y1: second_y[1],
            second_y2: second_y[2],
            second_m0: number(second.rows[0])?,
            second_m1: number(second.rows[1])?,
            second_each,
            second_over,
            second_teams,
            second_slices,
            second_magic,
            reads: first_reads(&reads),
        };
        // Rows of Q6_K, whose registers are scarce, that are longer than a workgroup holds have no kernel here.
        let long = k > HELD && !ready;
        if long && self.norm.is_none() && types.iter().any(|of| of.packed == BlockType::Q6_K) {
            return None;
        }
        let form = if long && self.norm.is_some() { "long" } else { "rows" };
        let entry = format!("{}_{}_{form}", packed_name(first.packed), packed_name(second.packed));
        if !args.entries().contains(&&*entry) {
            return None;
        }
        let launch = launch(args, entry, [a.workgroups + b.workgroups, 1], THREADS)?;
        Some(single(KernelLaunch { shared: number(a.shared.max(b.shared))?, ..launch }))
    }
}

/// The multiprocessors' division among two types that balances both what SIMD-groups do and the bytes that are read.
fn divide(types: [&OfType; 2], k: usize, target: Target) -> Option<[Shares; 2]> {
    let all = target.multiprocessors;
    // The share, what a SIMD-group of it does, and what a workgroup reads.
    let of = |of: &OfType, multiprocessors: u32| {
        let found = shares(of.rows(), k, false, Target { multiprocessors, ..target })?;
        let row_bytes = of.packed.plane_bytes().iter().sum::<usize>() * k / of.packed.row().len;
        let (time, bytes) = (found.time * row_bytes, of.rows() * row_bytes / multiprocessors as usize);
        (found.workgroups <= multiprocessors as usize).then_some((found, time, bytes))
    };
    let possible = (1..all).filter_map(|n| {
        let (a, b) = (of(types[0], n)?, of(types[1], all - n)?);
        Some((a.1.max(b.1) as u128 * a.2.max(b.2) as u128, [a.0, b.0]))
    });
    possible.min_by_key(|(cost, _)| *cost).map(|(_, shares)| shares)
}
