//! Products of a few tokens with packed weights (`matvec_packed.k`).

use super::int8::{AHEAD_BYTES, ARGUMENTS, Shares, THREADS, range};
use super::{After, MOST_ELEMENTS, MOST_ROWS, NO_NORM, Products, QUANTISED};
use crate::gpu::launch::{packed_args, packed_name, single};
use crate::gpu::{Ahead, Arg, KernelLaunch, NativeKernel, Target};
use crate::{Extent, Format, Packed};

pub(super) const IMAGE: &str = "matvec_packed";
/// Elements of a row that a workgroup holds at once, as a norm needs them.
const HELD: usize = 4_096;
/// Types that have no kernel for a gate.
const UNGATED: [Packed; 4] = [Packed::Q4_1, Packed::Q5_1, Packed::IQ4_NL, Packed::Q2_K];

impl Products<'_> {
    /// The kernel for up to `most` tokens: word `slot` of `step`.
    pub(super) fn packed(&self, packed: Packed, most: usize, step: (u32, Arg), target: Target) -> Option<NativeKernel> {
        let (x, at) = self.x;
        let (converted, floor) = self.converted;
        let [tokens, Extent::Fixed(k)] = x.shape[..] else { return None };
        // Quantised here, or before.
        let ready = std::ptr::eq(x, converted);
        let gated = matches!(self.after, After::Swiglu | After::Relu2);
        let f32 = |t: &crate::TensorSpec, shape: &[Extent]| t.format == Format::F32 && t.shape == shape;
        let served = converted.format == (Format::I8Groups { group: 32 })
            && k > 0
            && k.is_multiple_of(32)
            && (ready && self.norm.is_none() || x.format == Format::F32)
            && self.norm.is_none_or(|((w, _), _)| k <= HELD && f32(w, &[Extent::Fixed(k)]))
            && (!gated || k <= HELD && !UNGATED.contains(&packed))
            && !matches!(self.after, After::SwigluBf16 | After::Relu2Bf16);
        if !served {
            return None;
        }
        let mut rows = [0; 3];
        for (i, ((w, _), m)) in self.weights.iter().zip(&mut rows).enumerate() {
            let [Extent::Fixed(n), Extent::Fixed(l)] = w.shape[..] else { return None };
            let output = self.outputs.get(i).or(self.outputs.first())?.0;
            if l != k || n == 0 || w.format != Format::Planes(packed) || !f32(output, &[tokens, Extent::Fixed(n)]) {
                return None;
            }
            *m = n;
        }
        let total: usize = if gated { rows[0] } else { rows.iter().sum() };
        if total > MOST_ROWS || total.checked_mul(k)? > MOST_ELEMENTS || k.checked_mul(most)? > MOST_ROWS {
            return None;
        }
        let Shares { workgroups, teams, slices, shared } =
            Shares::of(total, gated, k + (k / 32).div_ceil(2) * 16, target)?;
        let optional = |place: Option<usize>| place.map_or(Arg::Null, Arg::Binding);
        let planes = |i: usize| match self.weights.get(i) {
            Some((_, at)) => packed_args(packed, Arg::Binding, *at),
            None => [Arg::Null, Arg::Null, Arg::Null],
        };
        let number = |n: usize| u32::try_from(n).ok().map(Arg::U32);
        let mut args = vec![Arg::Binding(at), optional(self.norm.map(|((_, at), _)| at))];
        args.extend((0..3).map(|i| planes(i)[0].clone()));
        args.extend((0..3).map(|i| planes(i)[2].clone()));
        args.extend((0..3).map(|i| optional(self.outputs.get(i).map(|(_, at)| *at))));
        args.extend([optional(self.residual.map(|(_, at)| at)), step.1, Arg::U32(step.0)]);
        let (each, over) = (total / workgroups, total % workgroups);
        for n in [k, rows[0], rows[1], each, over, teams, slices, 256 / teams + 1, self.after as usize] {
            args.push(number(n)?);
        }
        let no_norm = if ready { QUANTISED } else { NO_NORM };
        args.extend([self.norm.map_or(no_norm, |(_, eps)| eps), floor, 1.0 / k as f32].map(Arg::F32));
        debug_assert_eq!(args.len(), ARGUMENTS);
        args.extend((0..3).map(|i| planes(i)[1].clone()));
        args.extend([optional(ready.then_some(at + 1)), number(rows[2])?]);
        let next = args.len();
        args.extend((0..6).flat_map(|_| range(Arg::Null, 0, 0, 0)));
        let form = match gated {
            true => "gate",
            false if packed == Packed::Q6_K && k > HELD => "long",
            false => "rows",
        };
        Some(single(KernelLaunch {
            image: IMAGE,
            entry: format!("{}_{form}", packed_name(packed)),
            grid: [u32::try_from(workgroups).ok()?, u32::try_from(most).ok()?, 1],
            block: [THREADS as u32, 1, 1],
            shared: u32::try_from(shared).ok()?,
            cluster: 1,
            early: true,
            ahead: Some(Ahead { reads: self.packed_reads(packed, k, rows, target.multiprocessors as usize), next }),
            args,
        }))
    }

    /// What the launch before may fetch: low planes and records, as `int8` says it of codes and scales.
    fn packed_reads(&self, packed: Packed, k: usize, rows: [usize; 3], workgroups: usize) -> Vec<Arg> {
        let of_row = packed.plane_bytes().map(|n| n * k / packed.blocks().block_len());
        let all = rows.iter().sum::<usize>() * of_row.iter().sum::<usize>();
        let mut reads = Vec::new();
        for (i, rows) in rows.into_iter().enumerate() {
            for plane in [0, 2] {
                let bytes = rows * of_row[plane];
                // Lines of the L2.
                let stride = bytes.div_ceil(workgroups).next_multiple_of(128);
                let len = stride.min((stride as f64 * AHEAD_BYTES as f64 / all as f64) as usize);
                let binding = self.weights.get(i).map(|(_, at)| packed_args(packed, Arg::Binding, *at)[plane].clone());
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
