//! Rotary position embedding: rotates pairs of elements of each head by an angle that grows with the position (Su et
//! al., 2021, arXiv:2104.09864).

use hologram_backends::{DType, KernelSpec, Operation, RopeStyle};
use hologram_isa::Type;

use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::{CoreError, Result};
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// The operation; `x` is `f32 [n, h, d]`, `positions` `u32 [n]`, `freqs` `f32 [r/2]`.
#[derive(Debug)]
struct Rope {
    style: RopeStyle,
}

impl Graph {
    /// Rotates the pairs of each head of `x` (`f32 [n, h, d]`) by `positions` (`u32 [n]`) times `freqs` (`f32 [r/2]`,
    /// radians per position). Elements from the rotary width r on are unchanged.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn rope(&mut self, x: NodeId, positions: NodeId, freqs: NodeId, style: RopeStyle) -> Result<NodeId> {
        self.apply(Rope { style }, &[x, positions, freqs])
    }
}

const THREADS: u32 = 256;

impl Rope {
    /// The elements of pair `i` of `half` pairs.
    fn pair(&self, i: usize, half: usize) -> (usize, usize) {
        match self.style {
            RopeStyle::Adjacent => (2 * i, 2 * i + 1),
            RopeStyle::HalfSplit => (i, i + half),
        }
    }
}

impl Op for Rope {
    fn operation(&self) -> Operation {
        Operation::Rope { style: self.style }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [x, positions, freqs] = inputs else { return Err("takes x, positions and frequencies".into()) };
        if x.format != DType::F32 || positions.format != DType::U32 || freqs.format != DType::F32 {
            return Err("takes f32 x, u32 positions and f32 frequencies".into());
        }
        match (x.shape.as_slice(), positions.shape.as_slice(), freqs.shape.as_slice()) {
            ([n, Dim::Fixed(_), Dim::Fixed(d)], [p], [Dim::Fixed(half)]) if n == p => {
                if *half == 0 || 2 * half > *d {
                    return Err(format!("{half} frequencies do not fit heads of {d} elements").into());
                }
                Ok((*x).clone())
            }
            _ => Err("takes x [n, h, d], positions [n] and frequencies [r/2]".into()),
        }
    }

    /// One thread per pair, and per element that is unchanged.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let d = spec.output.row_len() as u32;
        let heads = spec.output.shape.get(1).map_or(1, |e| e.max()) as u32;
        let half = spec.inputs[2].row_len() as u32;
        let of_row = d - half;
        let mut k = Kernel::new(spec, THREADS);
        let rows = k.rows(&spec.output);
        let (x, positions, freqs, out) =
            (k.inputs[0].clone(), k.inputs[1].clone(), k.inputs[2].clone(), k.output.clone());
        let b = &mut k.b;
        let total = b.mul(rows, of_row);
        let thread = b.global_x();
        let inside = b.lt(thread, total);
        b.if_(inside, |b| {
            let row = b.div(thread, of_row);
            let i = b.rem(thread, of_row);
            let start = b.mul(row, d);
            let rotated = b.lt(i, half);
            b.if_else(
                rotated,
                |b| {
                    let token = b.div(row, heads);
                    let position = b.load(positions.views[0], token);
                    let position = b.cvt(Type::F32, position);
                    let freq = freqs.load(b, i);
                    let angle = b.mul(position, freq);
                    let (sin, cos) = (b.sin(angle), b.cos(angle));
                    let (first, distance) = match self.style {
                        RopeStyle::Adjacent => (b.shl(i, 1u32), 1),
                        RopeStyle::HalfSplit => (i, half),
                    };
                    let at0 = b.add(start, first);
                    let at1 = b.add(at0, distance);
                    let (x0, x1) = (x.load(b, at0), x.load(b, at1));
                    let (p, q) = (b.mul(x0, cos), b.mul(x1, sin));
                    let y0 = b.sub(p, q);
                    let (p, q) = (b.mul(x0, sin), b.mul(x1, cos));
                    let y1 = b.add(p, q);
                    out.store(b, at0, y0);
                    out.store(b, at1, y1);
                },
                |b| {
                    let at = b.add(start, i);
                    let at = b.add(at, half);
                    let v = x.load(b, at);
                    out.store(b, at, v);
                },
            );
        });
        let max = spec.output.max_rows() * of_row as usize;
        k.finish(max.div_ceil(THREADS as usize))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let [_, positions, freqs] = [0, 1, 2].map(|k| call.inputs[k]);
        if call.wanted[2] {
            return Err(CoreError::Graph("rope has no derivative by its frequencies; Graph::detach them".into()));
        }
        let back = g.neg(freqs)?;
        Ok(vec![Some(g.rope(call.grad, positions, back, self.style)?), None, None])
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x, positions, freqs] = inputs else { return Reference::default() };
        let (d, half) = (x.row_len(), freqs.values.len());
        let heads = x.shape.get(1).copied().unwrap_or(1);
        let mut out = Reference::default();
        for (row, values) in x.values.chunks(d).enumerate() {
            let mut y: Vec<(f64, f64)> = values.iter().map(|v| (*v, 0.0)).collect();
            for (i, freq) in freqs.values.iter().enumerate() {
                // The angle is defined as a product in f32; the rest is exact here.
                let angle = f64::from(positions.values[row / heads] as f32 * *freq as f32);
                let (sin, cos) = angle.sin_cos();
                let (i0, i1) = self.pair(i, half);
                let (x0, x1) = (values[i0], values[i1]);
                // Sine and cosine are within 2 ulp; products and sum are correctly rounded.
                let bound = |p: f64, q: f64| 3.0 * (p.abs() + q.abs()) * f64::from(f32::EPSILON);
                y[i0] = (x0 * cos - x1 * sin, bound(x0 * cos, x1 * sin));
                y[i1] = (x0 * sin + x1 * cos, bound(x0 * sin, x1 * cos));
            }
            for (value, bound) in y {
                out.push(value, bound);
            }
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for style in [RopeStyle::Adjacent, RopeStyle::HalfSplit] {
        for (n, max, h, d, r) in
            [(1, 1, 1, 2, 2), (0, 3, 2, 8, 8), (3, 5, 3, 64, 64), (5, 5, 2, 128, 128), (4, 4, 2, 80, 32)]
        {
            let freqs = (0..r / 2).map(|i| 10000f32.powf(-2.0 * i as f32 / r as f32)).collect();
            cases.push(
                Case::new(Rope { style }, &[(max, n)])
                    .input(CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(h), Dim::Fixed(d)]))
                    .input(CaseInput::below(8192, &[Dim::Extent(0)]))
                    .input(CaseInput { format: DType::F32, shape: vec![Dim::Fixed(r / 2)], fill: Fill::Values(freqs) }),
            );
        }
    }
    cases
}
