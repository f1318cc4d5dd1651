//! `conv_state` and `causal_conv`: state [slots, w - 1, c], x [n, c], weights [c, w], runs of tokens u32 [n], and runs
//! u32 [r, 4].

use std::ops::Range;
use std::sync::Arc;

use hologram_device::{DType, Extent, KernelSpec, Operation};

use super::simd::{Isa, Simd, simd_entry};
use super::{input, room};
use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};

#[derive(Clone, Copy)]
struct Sizes {
    slots: usize,
    /// Inputs of a slot.
    before: usize,
    c: usize,
    tokens: Extent,
    runs: Extent,
    uses_step: bool,
}

/// Makes the state.
struct Keep(Sizes);

/// Makes the results.
struct Convolve {
    isa: Isa,
    sizes: Sizes,
}

/// Channels and tokens that a worker claims at a time.
const CHANNELS: usize = 512;
const TOKENS: usize = 32;

/// The native kernel for both; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let (state, of_runs) = match spec.op {
        Operation::ConvState => (true, 2),
        Operation::CausalConv => (false, 4),
        _ => return None,
    };
    if spec.inputs.len() != of_runs + 1 || spec.in_place != state.then_some(0) {
        return None;
    }
    let types = spec.inputs.iter().enumerate().all(|(i, t)| (t.format == DType::F32) == (i < 3.min(of_runs)));
    let ([Extent::Fixed(slots), Extent::Fixed(before), Extent::Fixed(c)], [tokens, _], [runs, _]) =
        (&spec.inputs[0].shape[..], &spec.inputs[1].shape[..], &spec.inputs[of_runs].shape[..])
    else {
        return None;
    };
    let sizes =
        Sizes { slots: *slots, before: *before, c: *c, tokens: *tokens, runs: *runs, uses_step: spec.uses_step() };
    types.then(|| match state {
        true => Arc::new(Keep(sizes)) as Arc<dyn NativeKernel>,
        false => Arc::new(Convolve { isa: Isa::widest(features), sizes }),
    })
}

/// A run of tokens.
#[derive(Clone, Copy)]
struct Run {
    first: usize,
    count: usize,
    from: usize,
    to: usize,
}

/// Where an input of a run lies.
enum Place {
    /// At this element of the state.
    State(usize),
    /// At this element of x.
    Token(usize),
    /// It is zero.
    Nowhere,
}

impl Sizes {
    /// The tokens and the runs of a step.
    fn counts(&self, args: &Args<'_>) -> [usize; 2] {
        let step = if self.uses_step { args.step() } else { &[] };
        [self.tokens.value(step), self.runs.value(step)]
    }

    fn run(&self, runs: &[u32], index: usize, tokens: usize) -> Result<Run, String> {
        let fields = runs.get(4 * index..4 * index + 4).ok_or_else(|| format!("there is no run {index}"))?;
        let [first, count, from, to] = [0, 1, 2, 3].map(|i| fields[i] as usize);
        match first + count <= tokens {
            true => Ok(Run { first, count, from, to }),
            false => Err(format!("run {index}: tokens {first} to {} of {tokens} do not exist", first + count)),
        }
    }

    /// The first channel of input `place` of a run, of those before it and its own.
    fn place(&self, run: Run, place: usize) -> Place {
        match place.checked_sub(self.before) {
            Some(token) => Place::Token((run.first + token) * self.c),
            None if run.from < self.slots => Place::State((run.from * self.before + place) * self.c),
            None => Place::Nowhere,
        }
    }

    fn channels(&self, part: usize) -> Range<usize> {
        part * CHANNELS..((part + 1) * CHANNELS).min(self.c)
    }
}

impl NativeKernel for Keep {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let sizes = self.0;
        let [n, r] = sizes.counts(args);
        let (x, runs) = (input::<f32>(args, 1, n * sizes.c)?, input::<u32>(args, 2, r * 4)?);
        room::<f32>(args, 0, sizes.slots * sizes.before * sizes.c)?;
        let parts = sizes.c.div_ceil(CHANNELS);
        while let Some(piece) = worker.next(r * parts) {
            let (channels, index) = (sizes.channels(piece % parts), piece / parts);
            let run = sizes.run(runs, index, n)?;
            if run.count == 0 {
                continue;
            }
            if run.to >= sizes.slots {
                return Err(format!("run {index}: there is no slot {} of {}", run.to, sizes.slots));
            }
            let within = |at: usize| at + channels.start..at + channels.end;
            // In order: each input that moves within a slot is read before its place is written.
            for j in 0..sizes.before {
                let to = within((run.to * sizes.before + j) * sizes.c);
                // SAFETY: each piece has its own channels of its run's slot.
                let out = unsafe { args.output::<f32>(0).part(to) };
                match sizes.place(run, run.count + j) {
                    Place::Token(at) => out.copy_from_slice(&x[within(at)]),
                    // SAFETY: another row than `out`, which no other piece writes.
                    Place::State(at) => out.copy_from_slice(unsafe { args.output::<f32>(0).part(within(at)) }),
                    Place::Nowhere => out.fill(0.0),
                }
            }
        }
        Ok(())
    }
}

impl NativeKernel for Convolve {
    /// The weights of a piece, the channels of each input in a row.
    fn worker_scratch(&self) -> usize {
        (self.sizes.before + 1) * CHANNELS * size_of::<f32>()
    }

    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let sizes = self.sizes;
        let Sizes { slots, before, c, .. } = sizes;
        let [n, r] = sizes.counts(args);
        let state = input::<f32>(args, 0, slots * before * c)?;
        let (x, weights) = (input::<f32>(args, 1, n * c)?, input::<f32>(args, 2, c * (before + 1))?);
        let (of_tokens, runs) = (input::<u32>(args, 3, n)?, input::<u32>(args, 4, r * 4)?);
        room::<f32>(args, 5, n * c)?;
        let (parts, width) = (c.div_ceil(CHANNELS), before + 1);
        while let Some(piece) = worker.next(n.div_ceil(TOKENS) * parts) {
            let (channels, block) = (sizes.channels(piece % parts), piece / parts);
            let len = channels.len();
            let scratch = worker.scratch.as_mut_ptr().cast::<f32>();
            // SAFETY: scratch memory is 64-byte aligned, has room for the weights of CHANNELS, and is this worker's.
            let turned = unsafe { std::slice::from_raw_parts_mut(scratch, width * len) };
            for (i, channel) in channels.clone().enumerate() {
                (0..width).for_each(|j| turned[j * len + i] = weights[channel * width + j]);
            }
            for (token, run) in (0..n).zip(of_tokens).skip(block * TOKENS).take(TOKENS) {
                let run = sizes.run(runs, *run as usize, n)?;
                if !(run.first..run.first + run.count).contains(&token) {
                    return Err(format!("token {token} is not in its run"));
                }
                let within = |at: usize| at + channels.start..at + channels.end;
                // SAFETY: each piece has its own tokens and channels.
                let out = unsafe { args.output::<f32>(5).part(within(token * c)) };
                out.fill(0.0);
                for (j, weights) in turned.chunks_exact(len).enumerate() {
                    match sizes.place(run, token - run.first + j) {
                        Place::Token(at) => add(self.isa, out, &x[within(at)], weights),
                        Place::State(at) => add(self.isa, out, &state[within(at)], weights),
                        Place::Nowhere => {}
                    }
                }
            }
        }
        Ok(())
    }
}

simd_entry! {
    /// Adds the products of inputs and weights.
    fn add(out: &mut [f32], x: &[f32], weights: &[f32]) = add_with
}

#[inline(always)]
fn add_with<S: Simd>(s: S, out: &mut [f32], x: &[f32], weights: &[f32]) {
    let n = out.len().min(x.len()).min(weights.len());
    let whole = n / S::LANES * S::LANES;
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: all have n elements.
        unsafe {
            let sum = s.fma(s.load(x.as_ptr().add(at)), s.load(weights.as_ptr().add(at)), s.load(out.as_ptr().add(at)));
            s.store(out.as_mut_ptr().add(at), sum);
        }
    }
    for i in whole..n {
        out[i] = x[i].mul_add(weights[i], out[i]);
    }
}
