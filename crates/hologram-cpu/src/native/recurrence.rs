//! `recurrent_state` and `recurrence`: state [slots, h, v, k], keys [n, g, k], values [n, h, v], decay [n, h],
//! strength [n, h] for the delta rule, runs u32 [r, 4], and queries [n, g, k] for results.

use std::sync::Arc;

use hologram_device::{DType, Extent, KernelSpec, Operation, Recurrence};

use super::simd::{Isa, Simd, simd_entry};
use super::{input, room};
use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};

struct Recur {
    isa: Isa,
    rule: Recurrence,
    /// Whether it makes the state, not results.
    state: bool,
    sizes: Sizes,
    tokens: Extent,
    runs: Extent,
    uses_step: bool,
}

#[derive(Clone, Copy)]
struct Sizes {
    slots: usize,
    h: usize,
    g: usize,
    v: usize,
    k: usize,
}

/// Rows of a head's state that a worker claims at a time.
const ROWS: usize = 32;

/// The native kernel for both; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let (rule, state) = match spec.op {
        Operation::RecurrentState(rule) => (rule, true),
        Operation::Recurrence(rule) => (rule, false),
        _ => return None,
    };
    let of_runs = if rule.delta { 5 } else { 4 };
    if spec.inputs.len() != of_runs + if state { 1 } else { 2 } || spec.in_place != state.then_some(0) {
        return None;
    }
    let floats = spec.inputs.iter().enumerate().all(|(i, t)| i == of_runs || t.format == DType::F32);
    let (
        [Extent::Fixed(slots), Extent::Fixed(h), Extent::Fixed(v), Extent::Fixed(k)],
        [tokens, Extent::Fixed(g), Extent::Fixed(_)],
        [runs, Extent::Fixed(4)],
    ) = (&spec.inputs[0].shape[..], &spec.inputs[1].shape[..], &spec.inputs[of_runs].shape[..])
    else {
        return None;
    };
    (floats && *g > 0 && h.is_multiple_of(*g)).then(|| {
        Arc::new(Recur {
            isa: Isa::widest(features),
            rule,
            state,
            sizes: Sizes { slots: *slots, h: *h, g: *g, v: *v, k: *k },
            tokens: *tokens,
            runs: *runs,
            uses_step: spec.uses_step(),
        }) as Arc<dyn NativeKernel>
    })
}

impl NativeKernel for Recur {
    fn worker_scratch(&self) -> usize {
        ROWS * self.sizes.k * size_of::<f32>()
    }

    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let Sizes { slots, h, g, v, k } = self.sizes;
        let step = if self.uses_step { args.step() } else { &[] };
        let (n, r) = (self.tokens.value(step), self.runs.value(step));
        let of_runs = if self.rule.delta { 5 } else { 4 };
        let (keys, values) = (input::<f32>(args, 1, n * g * k)?, input::<f32>(args, 2, n * h * v)?);
        let decay = input::<f32>(args, 3, n * h)?;
        let strength = if self.rule.delta { Some(input::<f32>(args, 4, n * h)?) } else { None };
        let runs = input::<u32>(args, of_runs, r * 4)?;
        let queries = if self.state { None } else { Some(input::<f32>(args, of_runs + 1, n * g * k)?) };
        let results = of_runs + 2;
        room::<f32>(args, 0, slots * h * v * k)?;
        if !self.state {
            room::<f32>(args, results, n * h * v)?;
        }
        let parts = v.div_ceil(ROWS);
        while let Some(piece) = worker.next(r * h * parts) {
            let (part, head, index) = (piece % parts, piece / parts % h, piece / parts / h);
            let [first, count, from, to] = [0, 1, 2, 3].map(|i| runs[4 * index + i] as usize);
            if count == 0 {
                continue;
            }
            if first + count > n || (self.state && to >= slots) {
                return Err(format!(
                    "run {index}: tokens {first} to {} of {n}, or slot {to} of {slots}, do not exist",
                    first + count
                ));
            }
            let rows = part * ROWS..((part + 1) * ROWS).min(v);
            let place = |slot: usize| {
                let at = ((slot * h + head) * v + rows.start) * k;
                at..at + rows.len() * k
            };
            let whole = worker.scratch.as_mut_ptr().cast::<f32>();
            // SAFETY: scratch memory is 64-byte aligned, has room for ROWS rows, and is this worker's.
            let s = unsafe { std::slice::from_raw_parts_mut(whole, rows.len() * k) };
            match from < slots {
                // SAFETY: no run writes another's slot before, and this run's pieces have rows of their own.
                true => s.copy_from_slice(unsafe { args.output::<f32>(0).part(place(from)) }),
                false => s.fill(0.0),
            }
            let of_key = |token: usize| {
                let at = (token * g + self.rule.key_head(head, h, g)) * k;
                at..at + k
            };
            for token in first..first + count {
                let at = token * h + head;
                let x = Token {
                    key: &keys[of_key(token)],
                    query: queries.map(|q| &q[of_key(token)]),
                    values: &values[at * v..][rows.clone()],
                    decay: decay[at],
                    strength: strength.map(|s| s[at]),
                };
                let out: &mut [f32] = match self.state {
                    true => &mut [],
                    // SAFETY: each piece has its own rows of its run's tokens.
                    false => unsafe { args.output::<f32>(results).part(at * v + rows.start..at * v + rows.end) },
                };
                advance(self.isa, s, x, out);
            }
            if self.state {
                // SAFETY: as above.
                unsafe { args.output::<f32>(0).part(place(to)) }.copy_from_slice(s);
            }
        }
        Ok(())
    }
}

/// A token's part in the recurrence of some rows of a head.
#[derive(Clone, Copy)]
struct Token<'a> {
    key: &'a [f32],
    query: Option<&'a [f32]>,
    values: &'a [f32],
    decay: f32,
    strength: Option<f32>,
}

simd_entry! {
    /// Advances rows of a state by a token. With a query, writes each row's product with it.
    fn advance(s: &mut [f32], x: Token<'_>, out: &mut [f32]) = advance_with
}

#[inline(always)]
fn advance_with<S: Simd>(s: S, state: &mut [f32], x: Token<'_>, out: &mut [f32]) {
    let k = x.key.len();
    let (whole, decay) = (k / S::LANES * S::LANES, s.splat(x.decay));
    for (j, row) in state.chunks_exact_mut(k).enumerate() {
        let mut added = x.values[j];
        if let Some(strength) = x.strength {
            let mut sums = s.splat(0.0);
            for at in (0..whole).step_by(S::LANES) {
                // SAFETY: both rows have k elements.
                unsafe { sums = s.fma(s.load(row.as_ptr().add(at)), s.load(x.key.as_ptr().add(at)), sums) };
            }
            let rest: f32 = row[whole..].iter().zip(&x.key[whole..]).map(|(s, k)| s * k).sum();
            added = strength * (added - x.decay * (s.sum(sums) + rest));
        }
        let (mut sums, adds) = (s.splat(0.0), s.splat(added));
        for at in (0..whole).step_by(S::LANES) {
            // SAFETY: all rows have k elements.
            unsafe {
                let old = s.mul(s.load(row.as_ptr().add(at)), decay);
                let new = s.fma(s.load(x.key.as_ptr().add(at)), adds, old);
                s.store(row.as_mut_ptr().add(at), new);
                if let Some(query) = x.query {
                    sums = s.fma(new, s.load(query.as_ptr().add(at)), sums);
                }
            }
        }
        let mut result = s.sum(sums);
        for i in whole..k {
            row[i] = x.key[i].mul_add(added, row[i] * x.decay);
            result += x.query.map_or(0.0, |query| row[i] * query[i]);
        }
        if let Some(out) = out.get_mut(j) {
            *out = result;
        }
    }
}
