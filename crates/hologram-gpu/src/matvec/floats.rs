//! Products of a few tokens' `f32` activations with weights in planes of codes, on Apple GPUs
//! (`kernels/metal/matvec_floats.metal`).

use hologram_device::{DType, Extent, TensorSpec};

use super::packed::UNGATED;
use super::{After, NO_NORM, Products, fits};
use crate::kernels::metal::matvec_floats::{Floats, ROWS, THREADS};
use crate::launch::{Count, Planes, launch, number, packed_name, single};
use crate::{Memory, NativeKernel, Target};

/// Workgroups that a core holds at a time: 24 SIMD-groups, with the registers that each has.
const PER_CORE: usize = 6;

/// A matrix's planes.
fn planes(format: DType, at: usize) -> Option<(String, Planes)> {
    let codes = |at: usize| {
        let [low, records] = [at, at + 1].map(Memory::Binding);
        Planes { low, high: Memory::Null, records }
    };
    match format {
        DType::Q8Planes => Some(("q8".into(), codes(at))),
        DType::Q4Planes => Some(("q4".into(), codes(at))),
        _ => format
            .packed()
            .filter(|_| !format.has_float_codes())
            .map(|packed| (packed_name(packed), Planes::at(packed, at))),
    }
}

impl Products<'_> {
    /// The kernel for up to `most` tokens, whose matrices have one format; `step`: the slot of their number, and the
    /// step block.
    pub(super) fn floats(&self, most: usize, step: (u32, Memory), target: Target) -> Option<NativeKernel> {
        let (x, at) = self.x;
        let [tokens, Extent::Fixed(k)] = x.shape[..] else { return None };
        let format = self.weights.first()?.0.format;
        let gated = matches!(self.after, After::Swiglu | After::Relu2);
        let f32 = |t: &TensorSpec, shape: &[Extent]| t.format == DType::F32 && t.shape == shape;
        let served = target.is_apple()
            && x.format == DType::F32
            && self.converted.0.format == DType::F32
            && k > 0
            && k.is_multiple_of(32)
            && self.norm.is_none_or(|((w, _), _)| f32(w, &[Extent::Fixed(k)]))
            && !matches!(self.after, After::SwigluBf16 | After::Relu2Bf16)
            && !(gated && format.packed().is_some_and(|packed| UNGATED.contains(&packed)));
        if !served {
            return None;
        }
        let mut rows = [0; 3];
        for (i, ((w, _), m)) in self.weights.iter().zip(&mut rows).enumerate() {
            let [Extent::Fixed(n), Extent::Fixed(l)] = w.shape[..] else { return None };
            let output = self.outputs.get(i).or(self.outputs.first())?.0;
            if l != k || n == 0 || w.format != format || !f32(output, &[tokens, Extent::Fixed(n)]) {
                return None;
            }
            *m = n;
        }
        let all: usize = rows.iter().sum();
        if !fits(all, k, most) {
            return None;
        }
        let (name, _) = planes(format, 0)?;
        let of = |i: usize| match self.weights.get(i) {
            Some((w, at)) => planes(w.format, *at).map(|(_, planes)| planes),
            None => Some(Planes::NONE),
        };
        let (first, second, third) = (of(0)?, of(1)?, of(2)?);
        // Rows of a SIMD-group at a time; of a gate half of them are of the second matrix.
        let (each, simds) = (if gated { ROWS / 2 } else { ROWS } as usize, THREADS as usize / 32);
        let of_results = if gated { &rows[..1] } else { &rows[..] };
        let tiles: usize = of_results.iter().map(|m| m.div_ceil(each)).sum();
        let workgroups = tiles.div_ceil(simds).min(PER_CORE * target.multiprocessors as usize).max(1);
        let result = |i: usize| Memory::optional(self.outputs.get(i).map(|(_, at)| *at));
        let args = Floats {
            x: Memory::Binding(at),
            norm: Memory::optional(self.norm.map(|((_, at), _)| at)),
            w0: first.low,
            w1: second.low,
            w2: third.low,
            s0: first.records,
            s1: second.records,
            s2: third.records,
            h0: first.high,
            h1: second.high,
            h2: third.high,
            y0: result(0),
            y1: result(1),
            y2: result(2),
            residual: Memory::optional(self.residual.map(|(_, at)| at)),
            tokens: Count::of(&[tokens])?.of_step(step.1),
            m0: number(rows[0])?,
            m1: number(rows[1])?,
            m2: number(rows[2])?,
            k: number(k)?,
            after: self.after as u32,
            workgroups: number(workgroups)?,
            eps: self.norm.map_or(NO_NORM, |(_, eps)| eps),
        };
        let form = if gated { "gate" } else { "rows" };
        Some(single(launch(args, format!("{name}_{form}"), [workgroups, most], THREADS as usize)?))
    }
}
