//! `rope`: rotates pairs of elements of each head by its token's position times the pair's frequency.

use std::sync::Arc;

use hologram_device::{DType, Extent, KernelSpec, Operation, RopeStyle};
use hologram_isa::decompose::{Scalar, cos, sin};

use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};
use crate::native::simd::{Isa, Simd, simd_entry};
use crate::native::{input, room};

struct Rope {
    isa: Isa,
    adjacent: bool,
    tokens: Extent,
    heads: usize,
    d: usize,
    half: usize,
    uses_step: bool,
}

/// The native kernel for `rope`; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x, positions, freqs] = spec.inputs.as_slice() else { return None };
    let ([tokens, Extent::Fixed(heads), Extent::Fixed(d)], [Extent::Fixed(half)]) =
        (x.shape.as_slice(), freqs.shape.as_slice())
    else {
        return None;
    };
    let Operation::Rope { style } = spec.op else { return None };
    let served = spec.in_place.is_none()
        && [x, freqs, &spec.output].iter().all(|t| t.format == DType::F32)
        && positions.format == DType::U32
        && positions.shape.as_slice() == [*tokens]
        && x.shape == spec.output.shape
        && *d > 0
        && 2 * half <= *d;
    let kernel = || Rope {
        isa: Isa::widest(features),
        adjacent: style == RopeStyle::Adjacent,
        tokens: *tokens,
        heads: *heads,
        d: *d,
        half: *half,
        uses_step: spec.uses_step(),
    };
    served.then(|| Arc::new(kernel()) as Arc<dyn NativeKernel>)
}

/// Tokens that a worker claims at a time.
const TOKENS: usize = 4;

impl NativeKernel for Rope {
    /// Cosines and sines of a token.
    fn worker_scratch(&self) -> usize {
        2 * self.half * 4
    }

    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let tokens = self.tokens.value(if self.uses_step { args.step() } else { &[] });
        let token_len = self.heads * self.d;
        let x = input::<f32>(args, 0, tokens * token_len)?;
        let positions = input::<u32>(args, 1, tokens)?;
        let freqs = input::<f32>(args, 2, self.half)?;
        room::<f32>(args, 3, tokens * token_len)?;
        let out = args.output::<f32>(3);
        let scratch = std::mem::take(&mut worker.scratch);
        // SAFETY: any bytes are an `f32`; the memory is aligned to 64 bytes.
        let (_, table, _) = unsafe { scratch.align_to_mut::<f32>() };
        let (cosines, rest) = table.split_at_mut(self.half);
        let sines = &mut rest[..self.half];
        while let Some(piece) = worker.next(tokens.div_ceil(TOKENS)) {
            for (token, position) in positions.iter().enumerate().skip(piece * TOKENS).take(TOKENS) {
                angles(self.isa, *position, freqs, cosines, sines);
                let elements = token * token_len..(token + 1) * token_len;
                // SAFETY: each token is claimed by one worker.
                let (x, out) = (&x[elements.clone()], unsafe { out.part(elements) });
                if self.adjacent {
                    rotate_adjacent(self.isa, x, out, self.d, cosines, sines);
                } else {
                    rotate_halves(self.isa, x, out, self.d, cosines, sines);
                }
            }
        }
        Ok(())
    }
}

simd_entry! {
    /// Cosine and sine of a position times each frequency.
    fn angles(position: u32, freqs: &[f32], cosines: &mut [f32], sines: &mut [f32]) = angles_with
}

simd_entry! {
    /// Rotates elements 2i and 2i + 1 of each head.
    fn rotate_adjacent(x: &[f32], out: &mut [f32], d: usize, cosines: &[f32], sines: &[f32]) = rotate_adjacent_with
}

simd_entry! {
    /// Rotates elements i and i + r/2 of each head.
    fn rotate_halves(x: &[f32], out: &mut [f32], d: usize, cosines: &[f32], sines: &[f32]) = rotate_halves_with
}

#[inline(always)]
fn angles_with<S: Simd>(_: S, position: u32, freqs: &[f32], cosines: &mut [f32], sines: &mut [f32]) {
    for ((c, s), freq) in cosines.iter_mut().zip(sines).zip(freqs) {
        let angle = position as f32 * freq;
        (*c, *s) = (cos(&Scalar, angle), sin(&Scalar, angle));
    }
}

#[inline(always)]
fn rotate_adjacent_with<S: Simd>(_: S, x: &[f32], out: &mut [f32], d: usize, cosines: &[f32], sines: &[f32]) {
    let width = 2 * cosines.len();
    for (x, out) in x.chunks_exact(d).zip(out.chunks_exact_mut(d)) {
        let pairs = x[..width].as_chunks::<2>().0.iter().zip(out[..width].as_chunks_mut::<2>().0);
        for (([x0, x1], y), (c, s)) in pairs.zip(cosines.iter().zip(sines)) {
            *y = [x0 * c - x1 * s, x0 * s + x1 * c];
        }
        out[width..].copy_from_slice(&x[width..]);
    }
}

#[inline(always)]
fn rotate_halves_with<S: Simd>(_: S, x: &[f32], out: &mut [f32], d: usize, cosines: &[f32], sines: &[f32]) {
    let half = cosines.len();
    for (x, out) in x.chunks_exact(d).zip(out.chunks_exact_mut(d)) {
        let ((x0, x), (y0, out)) = (x.split_at(half), out.split_at_mut(half));
        let ((x1, x), (y1, out)) = (x.split_at(half), out.split_at_mut(half));
        for i in 0..half {
            y0[i] = x0[i] * cosines[i] - x1[i] * sines[i];
            y1[i] = x0[i] * sines[i] + x1[i] * cosines[i];
        }
        out.copy_from_slice(x);
    }
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;
    use crate::testing::{Memory, Random, feature_sets, launch};
    use hologram_device::TensorSpec;

    pub(crate) fn agrees_with_the_definition() {
        // Style, heads, head size, rotary width.
        for (style, heads, d, width) in [(0, 4, 64, 64), (1, 3, 80, 80), (0, 1, 32, 20), (1, 2, 128, 64), (1, 1, 6, 2)]
        {
            let half = width / 2;
            let tokens = Extent::step(0, 8);
            let x = TensorSpec { format: DType::F32, shape: vec![tokens, Extent::Fixed(heads), Extent::Fixed(d)] };
            let spec = KernelSpec {
                op: Operation::Rope { style: [RopeStyle::Adjacent, RopeStyle::HalfSplit][style] },
                inputs: vec![
                    x.clone(),
                    TensorSpec { format: DType::U32, shape: vec![tokens] },
                    TensorSpec { format: DType::F32, shape: vec![Extent::Fixed(half)] },
                ],
                output: x,
                in_place: None,
            };
            let values = Random(9).floats(8 * heads * d);
            let positions = [0u32, 1, 299, 4096, 131_071, 7, 7, 7];
            let freqs: Vec<f32> = (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect();
            for features in feature_sets() {
                let out = Memory::filled(values.len() * 4, 0xff);
                let mut memory =
                    [Memory::of(&values), Memory::of(&positions), Memory::of(&freqs), out, Memory::of(&[5u32])];
                launch(&*find(&spec, features).expect("served"), &mut memory, 2).expect("runs");
                let out = memory[3].elements::<f32>();
                for (row, (x, y)) in values.chunks(d).zip(out.chunks(d)).enumerate() {
                    if row / heads >= 5 {
                        assert!(y.iter().all(|y| y.is_nan()), "wrote behind the run's tokens");
                        continue;
                    }
                    for (i, freq) in freqs.iter().enumerate() {
                        let (i0, i1) = if style == 0 { (2 * i, 2 * i + 1) } else { (i, i + half) };
                        let (sin, cos) = f64::from(positions[row / heads] as f32 * freq).sin_cos();
                        let (x0, x1) = (f64::from(x[i0]), f64::from(x[i1]));
                        let want = [x0 * cos - x1 * sin, x0 * sin + x1 * cos];
                        for (got, want) in [y[i0], y[i1]].into_iter().zip(want) {
                            let off = (f64::from(got) - want).abs();
                            assert!(
                                off <= 3e-7 * x0.hypot(x1),
                                "{features:?} {style} row {row} pair {i}: off by {off}"
                            );
                        }
                    }
                    assert_eq!(x[width..], y[width..], "elements behind the rotary width change");
                }
            }
        }
    }
}
