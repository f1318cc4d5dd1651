//! Sampling: the choice of the next token from logits.
//!
//! The steps, per row:
//! - Keep the `top_k` highest logits.
//! - Of these keep the fewest whose probabilities (at temperature 1, among the kept) add up to `top_p`.
//! - Of these keep the logits that are at least the greatest of the row plus a number: that of min-p is ln(p).
//! - Draw from the rest with the probabilities `softmax(logit / temperature)`: the result is the first token, in the
//!   order of tokens, at which the cumulative probability exceeds a random number in [0, 1). The random number is a
//!   function of seed and position alone.
//!
//! Of equal logits the lowest token ranks first.

use hologram_backends::{DType, KernelSpec, Operation};
use hologram_isa::{Array, Builder, Opcode, SUBGROUP_SIZE, Type, Value};

use super::reduce::{THREADS, workgroup_reduce};
use super::{Kernel, Launchable, Mismatch, Op, TensorArg};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// The operation; logits are `f32 [n, v]`, numbers `f32 [n, 3]`, words `u32 [n, 4]`.
#[derive(Debug)]
struct Sample;

impl Graph {
    /// Chooses a token per row of `logits` (`f32 [n, v]`): `u32 [n]`. Each row has its own parameters: `numbers`
    /// (`f32 [n, 3]`) holds the temperature, `top_p`, and the logarithm of the least probability that is kept, as a
    /// share of the greatest (min-p; −∞ keeps all); `words` (`u32 [n, 4]`) holds `top_k`, the low and high 32 bits of
    /// the seed, and the position.
    ///
    /// A temperature of 0 takes the highest logit. A `top_k` of 0 and a `top_p` of 1 keep all tokens. A row gives
    /// `u32::MAX`, which is not a token, if a logit is NaN or +∞, or if none is above −∞.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn sample(&mut self, logits: NodeId, numbers: NodeId, words: NodeId) -> Result<NodeId> {
        self.apply(Sample, &[logits, numbers, words])
    }
}

/// The result for a row without a valid token.
pub(super) const NONE: u32 = u32::MAX;

impl Op for Sample {
    fn operation(&self) -> Operation {
        Operation::Sample
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [logits, numbers, words] = inputs else { return Err("takes logits, numbers and words".into()) };
        if logits.format != DType::F32 || numbers.format != DType::F32 || words.format != DType::U32 {
            return Err("takes f32 logits, f32 numbers and u32 words".into());
        }
        match (logits.shape.as_slice(), numbers.shape.as_slice(), words.shape.as_slice()) {
            ([n, Dim::Fixed(1..)], [a, Dim::Fixed(3)], [b, Dim::Fixed(4)]) if n == a && n == b => {
                Ok(TensorType::new(DType::U32, [*n]))
            }
            _ => Err("takes logits of n rows, numbers of n × 3 and words of n × 4".into()),
        }
    }

    /// One workgroup per row. The kept tokens are found by a threshold: the least kept key, computed bit by bit with
    /// one pass over the row per bit.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let v = spec.inputs[0].row_len() as u32;
        let mut k = Kernel::new(spec, THREADS);
        let rows = k.rows(&spec.inputs[0]);
        let (logits, numbers, words, out) =
            (k.inputs[0].clone(), k.inputs[1].clone(), k.inputs[2].clone(), k.output.clone());
        let b = &mut k.b;
        let (team, sums) = (Team::new(b), b.shared("sums", Type::F32, THREADS));
        let row = b.builtin(Opcode::GroupX);
        let inside = b.lt(row, rows);
        b.if_(inside, |b| {
            let thread = b.builtin(Opcode::ThreadX);
            let start = b.mul(row, v);
            let all = Row { logits, start, v, thread };
            let number = |b: &mut Builder, i: u32| {
                let at = b.mul(row, 3u32);
                let at = b.add(at, i);
                numbers.load(b, at)
            };
            let (temperature, top_p, min_p) = (number(b, 0), number(b, 1), number(b, 2));
            let at = b.shl(row, 2u32);
            let word = |b: &mut Builder, i: u32| {
                let at = b.add(at, i);
                b.load(words.views[0], at)
            };
            let top_k = word(b, 0);

            let (best, max) = best(b, &team, &all);
            // Kept are the keys above `least`, and of those equal to it the tokens up to `last`.
            let floor = b.add(max, min_p);
            let kept = Kept { least: b.var(0u32), last: b.var(NONE), max, floor };
            let limited = b.gt(top_k, 0u32);
            let fewer = b.lt(top_k, v);
            let limited = b.and(limited, fewer);
            b.if_(limited, |b| keep_top_k(b, &team, &all, &kept, top_k));
            let limited = b.lt(top_p, 1.0f32);
            b.if_(limited, |b| keep_top_p(b, &team, &all, &kept, top_p));

            let (low, high, position) = (word(b, 1), word(b, 2), word(b, 3));
            let [_, random, ..] = philox(b, [position, 0u32.into(), 0u32.into(), 0u32.into()], [low, high]);
            let random = b.shr(random, 8u32);
            let random = b.cvt(Type::F32, random);
            let random = b.mul(random, 1.0f32 / (1 << 24) as f32);
            let token = choose(b, (&team, sums), &all, &kept, temperature, random);
            let none = b.eq(token, NONE);
            let token = b.select(none, best, token);
            let hot = b.gt(temperature, 0.0f32);
            let several = b.ne(top_k, 1u32);
            let drawn = b.and(hot, several);
            let fit = b.ne(best, NONE);
            let drawn = b.and(drawn, fit);
            let token = b.select(drawn, token, best);
            let leader = b.eq(thread, 0u32);
            b.if_(leader, |b| out.store(b, row, token));
        });
        k.finish(spec.inputs[0].max_rows())
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [logits, numbers, words] = inputs else { return Reference::default() };
        let mut out = Reference::default();
        let rows = logits.values.chunks(logits.row_len()).zip(numbers.values.chunks(3)).zip(words.values.chunks(4));
        for ((logits, numbers), words) in rows {
            let (token, decided) =
                choice(logits, &[numbers[0], numbers[1], numbers[2]], &[0, 1, 2, 3].map(|i| words[i] as u32));
            out.push(f64::from(token), if decided { 0.0 } else { f64::INFINITY });
        }
        out
    }
}

/// The shared memory through which a workgroup of [`THREADS`] threads reduces values.
pub(super) struct Team {
    words: Array,
    floats: Array,
}

impl Team {
    /// Declares the memory.
    pub(super) fn new(b: &mut Builder) -> Team {
        let subgroups = THREADS / SUBGROUP_SIZE;
        Team { words: b.shared("words", Type::U32, subgroups), floats: b.shared("floats", Type::F32, subgroups) }
    }

    /// Reduces a `u32` or `f32` over the workgroup. Every thread gets the result. All threads must call it together.
    pub(super) fn reduce(&self, b: &mut Builder, op: Opcode, value: Value) -> Value {
        let partial = if value.ty == Type::U32 { self.words } else { self.floats };
        let total = workgroup_reduce(b, partial, op, value);
        b.barrier();
        total
    }
}

/// A row of logits.
struct Row {
    logits: TensorArg,
    start: Value,
    v: u32,
    thread: Value,
}

impl Row {
    fn load(&self, b: &mut Builder, token: Value) -> Value {
        let at = b.add(self.start, token);
        self.logits.load(b, at)
    }

    /// The sum over the workgroup of `term`, which gets a token with its logit and key.
    fn sum(
        &self,
        b: &mut Builder,
        team: &Team,
        zero: impl Into<Value>,
        term: impl FnOnce(&mut Builder, Value, Value, Value) -> Value,
    ) -> Value {
        let sum = b.var(zero);
        b.for_(self.thread, self.v, THREADS, |b, token| {
            let logit = self.load(b, token);
            let key = key(b, logit);
            let term = term(b, token, logit, key);
            b.assign_op(sum, Opcode::Add, &[sum, term]);
        });
        team.reduce(b, Opcode::Add, sum)
    }
}

/// The tokens that remain: after top-k and top-p by their keys, and the logits that are at least `floor`.
struct Kept {
    least: Value,
    last: Value,
    /// The greatest logit of the row.
    max: Value,
    floor: Value,
}

impl Kept {
    /// Whether top-k and top-p keep a token.
    fn has(&self, b: &mut Builder, token: Value, key: Value) -> Value {
        let above = b.gt(key, self.least);
        let equal = b.eq(key, self.least);
        let early = b.le(token, self.last);
        let tie = b.and(equal, early);
        b.or(above, tie)
    }

    /// exp(logit − max) for a kept token, otherwise 0.
    fn mass(&self, b: &mut Builder, token: Value, logit: Value, key: Value) -> Value {
        let has = self.has(b, token, key);
        let v = b.sub(logit, self.max);
        let v = b.exp(v);
        b.select(has, v, 0.0f32)
    }
}

/// A `u32` with the order of the logits; −0 equals +0.
pub(super) fn key(b: &mut Builder, logit: Value) -> Value {
    let logit = b.add(logit, 0.0f32);
    let bits = b.bitcast(Type::I32, logit);
    let sign = b.shr(bits, 31u32);
    let flip = b.or(sign, i32::MIN);
    let key = b.xor(bits, flip);
    b.bitcast(Type::U32, key)
}

/// The lowest token with the greatest logit, and that logit. The token is [`NONE`] if the row has a NaN or +∞, or
/// nothing above −∞.
fn best(b: &mut Builder, team: &Team, row: &Row) -> (Value, Value) {
    let (best, at) = (b.var(f32::NEG_INFINITY), b.var(NONE));
    let bad = b.var(0u32);
    b.for_(row.thread, row.v, THREADS, |b, token| {
        let v = row.load(b, token);
        let better = b.gt(v, best);
        b.if_(better, |b| {
            b.assign(best, v);
            b.assign(at, token);
        });
        let fine = b.lt(v, f32::INFINITY);
        let fault = b.select(fine, 0u32, 1u32);
        b.assign_op(bad, Opcode::Or, &[bad, fault]);
    });
    let max = team.reduce(b, Opcode::Max, best);
    let has = b.eq(best, max);
    let at = b.select(has, at, NONE);
    let at = team.reduce(b, Opcode::Min, at);
    let bad = team.reduce(b, Opcode::Max, bad);
    let bad = b.ne(bad, 0u32);
    (b.select(bad, NONE, at), max)
}

/// The greatest `u32` for which `holds` is true. `holds` must be true for 0, and for every number below one
/// for which it is true.
fn greatest(b: &mut Builder, holds: impl FnOnce(&mut Builder, Value) -> Value) -> Value {
    let found = b.var(0u32);
    b.for_(0u32, 32u32, 1u32, |b, i| {
        let bit = b.shr(1u32 << 31, i);
        let next = b.or(found, bit);
        let holds = holds(b, next);
        let next = b.select(holds, next, found);
        b.assign(found, next);
    });
    found
}

/// Of the kept tokens with the key `least`, the one of rank `wanted`, counted from 1: fewer than `wanted` of
/// them come before it.
fn last_of(b: &mut Builder, team: &Team, row: &Row, kept: &Kept, least: Value, wanted: Value) -> Value {
    greatest(b, |b, end| {
        let before = row.sum(b, team, 0u32, |b, token, _, key| {
            let has = kept.has(b, token, key);
            let equal = b.eq(key, least);
            let before = b.lt(token, end);
            let counts = b.and(has, equal);
            let counts = b.and(counts, before);
            b.select(counts, 1u32, 0u32)
        });
        b.lt(before, wanted)
    })
}

fn keep_top_k(b: &mut Builder, team: &Team, row: &Row, kept: &Kept, top_k: Value) {
    let least = greatest(b, |b, least| {
        let count = row.sum(b, team, 0u32, |b, _, _, key| {
            let counts = b.ge(key, least);
            b.select(counts, 1u32, 0u32)
        });
        b.ge(count, top_k)
    });
    let above = row.sum(b, team, 0u32, |b, _, _, key| {
        let counts = b.gt(key, least);
        b.select(counts, 1u32, 0u32)
    });
    let wanted = b.sub(top_k, above);
    let last = last_of(b, team, row, kept, least, wanted);
    b.assign(kept.least, least);
    b.assign(kept.last, last);
}

fn keep_top_p(b: &mut Builder, team: &Team, row: &Row, kept: &Kept, top_p: Value) {
    let total = row.sum(b, team, 0.0f32, |b, token, logit, key| kept.mass(b, token, logit, key));
    // The best token is kept even if `top_p` is 0.
    let top_p = b.max(top_p, f32::MIN_POSITIVE);
    let wanted = b.mul(top_p, total);
    let least = greatest(b, |b, least| {
        let mass = row.sum(b, team, 0.0f32, |b, token, logit, key| {
            let counts = b.ge(key, least);
            let mass = kept.mass(b, token, logit, key);
            b.select(counts, mass, 0.0f32)
        });
        b.ge(mass, wanted)
    });
    let above = row.sum(b, team, 0.0f32, |b, token, logit, key| {
        let counts = b.gt(key, least);
        let mass = kept.mass(b, token, logit, key);
        b.select(counts, mass, 0.0f32)
    });
    // The number of tokens with the key `least` that are needed.
    let sign = b.shr(least, 31u32);
    let positive = b.eq(sign, 1u32);
    let flip = b.select(positive, 1u32 << 31, u32::MAX);
    let bits = b.xor(least, flip);
    let logit = b.bitcast(Type::F32, bits);
    let each = b.sub(logit, kept.max);
    let each = b.exp(each);
    let missing = b.sub(wanted, above);
    let count = b.div(missing, each);
    let count = b.ceil(count);
    let count = b.cvt(Type::U32, count);
    let count = b.max(count, 1u32);
    let there = row.sum(b, team, 0u32, |b, token, _, key| {
        let has = kept.has(b, token, key);
        let equal = b.eq(key, least);
        let counts = b.and(has, equal);
        b.select(counts, 1u32, 0u32)
    });
    let count = b.min(count, there);
    let last = last_of(b, team, row, kept, least, count);
    b.assign(kept.least, least);
    b.assign(kept.last, last);
}

/// The first token at which the cumulative sum of weights exceeds `random` times their total. If rounding leaves none,
/// the last token with a weight above 0.
fn choose(
    b: &mut Builder,
    (team, sums): (&Team, Array),
    row: &Row,
    kept: &Kept,
    temperature: Value,
    random: Value,
) -> Value {
    // Each thread has a run of consecutive tokens.
    let run = row.v.div_ceil(THREADS);
    let first = b.mul(row.thread, run);
    let first = b.min(first, row.v);
    let end = b.add(first, run);
    let end = b.min(end, row.v);
    let weight = |b: &mut Builder, token: Value| {
        let logit = row.load(b, token);
        let key = key(b, logit);
        let has = kept.has(b, token, key);
        let high = b.ge(logit, kept.floor);
        let has = b.and(has, high);
        let v = b.sub(logit, kept.max);
        let v = b.div(v, temperature);
        let v = b.exp(v);
        b.select(has, v, 0.0f32)
    };
    let own = b.var(0.0f32);
    b.for_(first, end, 1u32, |b, token| {
        let w = weight(b, token);
        b.assign_op(own, Opcode::Add, &[own, w]);
    });
    b.store(sums, row.thread, own);
    b.barrier();
    let (before, total) = (b.var(0.0f32), b.var(0.0f32));
    b.for_(0u32, THREADS, 1u32, |b, i| {
        let here = b.eq(i, row.thread);
        let sum = b.select(here, total, before);
        b.assign(before, sum);
        let v = b.load(sums, i);
        b.assign_op(total, Opcode::Add, &[total, v]);
    });
    let left = b.mul(random, total);
    let sum = b.var(before);
    let (found, last) = (b.var(NONE), b.var(0u32));
    b.for_(first, end, 1u32, |b, token| {
        let w = weight(b, token);
        b.assign_op(sum, Opcode::Add, &[sum, w]);
        let chance = b.gt(w, 0.0f32);
        let beyond = b.gt(sum, left);
        let beyond = b.and(chance, beyond);
        let here = b.select(beyond, token, NONE);
        b.assign_op(found, Opcode::Min, &[found, here]);
        let next = b.add(token, 1u32);
        let here = b.select(chance, next, 0u32);
        b.assign_op(last, Opcode::Max, &[last, here]);
    });
    let found = team.reduce(b, Opcode::Min, found);
    let last = team.reduce(b, Opcode::Max, last);
    let none = b.eq(found, NONE);
    // The subtraction wraps 0 to [`NONE`].
    let last = b.sub(last, 1u32);
    b.select(none, last, found)
}

/// [`philox4x32_10`] in a program.
pub(super) fn philox(b: &mut Builder, mut c: [Value; 4], mut key: [Value; 2]) -> [Value; 4] {
    for _ in 0..10 {
        let (low0, high0) = (b.mul(c[0], PHILOX[0]), b.mulhi(c[0], PHILOX[0]));
        let (low1, high1) = (b.mul(c[2], PHILOX[1]), b.mulhi(c[2], PHILOX[1]));
        let (a, d) = (b.xor(high1, c[1]), b.xor(high0, c[3]));
        c = [b.xor(a, key[0]), low1, b.xor(d, key[1]), low0];
        key = [b.add(key[0], WEYL[0]), b.add(key[1], WEYL[1])];
    }
    c
}

const PHILOX: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011):
/// 128 random bits per counter and key. Tokens are chosen with the counter (position, 0) and the seed as the key; the
/// second word gives the highest bits of the random number.
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut c0, mut c1, mut c2, mut c3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..10 {
        let p0 = u64::from(c0) * u64::from(PHILOX[0]);
        let p1 = u64::from(c2) * u64::from(PHILOX[1]);
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(WEYL[0]);
        k1 = k1.wrapping_add(WEYL[1]);
    }
    [c0, c1, c2, c3]
}

/// The choice in `f64` with a full sort, and whether it would be the same if sums were off by a few roundings of `f32`.
fn choice(
    logits: &[f64],
    [temperature, top_p, min_p]: &[f64; 3],
    [top_k, low, high, position]: &[u32; 4],
) -> (u32, bool) {
    const SLACK: f64 = 4e-6;
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY || logits.iter().any(|l| l.is_nan() || *l == f64::INFINITY) {
        return (NONE, true);
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    // -0 equals +0; rows with NaN have returned above.
    order.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(b)));
    let best = order[0] as u32;
    let (temperature, top_p) = (*temperature, *top_p);
    if temperature == 0.0 || *top_k == 1 {
        return (best, true);
    }
    if *top_k > 0 {
        order.truncate(*top_k as usize);
    }
    let mut decided = true;
    if top_p < 1.0 {
        let mass = |i: &usize| (logits[*i] - max).exp();
        let wanted = top_p * order.iter().map(mass).sum::<f64>();
        let mut sum = 0.0;
        let mut kept = 0;
        for i in &order {
            decided &= kept == 0 || (sum - wanted).abs() > SLACK * wanted;
            if sum >= wanted {
                break;
            }
            sum += mass(i);
            kept += 1;
        }
        order.truncate(kept.max(1));
    }
    // One addition in f32, which is the same everywhere.
    let floor = f64::from(max as f32 + *min_p as f32);
    order.retain(|i| logits[*i] >= floor);
    order.sort_unstable();
    let weights: Vec<f64> = order.iter().map(|i| ((logits[*i] - max) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    let left = f64::from(philox4x32_10([*position, 0, 0, 0], [*low, *high])[1]) / f64::from(1u32 << 16).powi(2) * total;
    let mut sum = 0.0;
    let mut token = best;
    for (i, w) in order.iter().zip(weights) {
        decided &= sum == 0.0 || w == 0.0 || (sum - left).abs() > SLACK * total;
        sum += w;
        if sum > left {
            return (*i as u32, decided && (sum - left) > SLACK * total);
        }
        if w > 0.0 {
            token = *i as u32;
        }
    }
    (token, decided)
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let input = |format, n: usize, d: usize, values: Vec<f32>| CaseInput {
        format,
        shape: vec![if n == 0 { Dim::Extent(0) } else { Dim::Fixed(n) }, Dim::Fixed(d)],
        fill: Fill::Values(values),
    };
    // Rows with temperature, top_p, top_k, min_p, seed and position.
    let options = |n: usize, row: &[(f32, f32, u32, f32)]| {
        let rows: Vec<_> = (0..n).map(|i| (row[i % row.len()], i)).collect();
        let numbers = rows.iter().flat_map(|((t, p, _, min_p), _)| [*t, *p, min_p.ln()]).collect::<Vec<f32>>();
        let words =
            rows.iter().flat_map(|((_, _, k, _), i)| [*k as f32, *i as f32 * 7.0, (i % 3) as f32, *i as f32 * 11.0]);
        (numbers, words.collect::<Vec<f32>>())
    };
    let many = [
        (0.0, 1.0, 0, 0.0),
        (0.8, 0.95, 40, 0.0),
        (1.0, 1.0, 0, 0.0),
        (1.5, 0.9, 0, 0.0),
        (0.7, 1.0, 5, 0.0),
        (2.0, 0.5, 700, 0.0),
        (1.0, 0.3, 1, 0.0),
        (0.3, 1e-6, 0, 0.0),
        (1e-30, 1.0, 3, 0.0),
        (1e6, 0.99, 2000, 0.0),
        (1.0, 1.0, u32::MAX >> 8, 0.0),
        (1.0, 1.0, 0, 0.05),
        (1.5, 0.95, 40, 0.1),
        (2.0, 0.9, 0, 1e-3),
        (1e6, 1.0, 0, 1e-30),
        (1.0, 1.0, 0, 1.0),
    ];
    let drawn = |n: usize, max: usize, v: usize, size: f32| {
        let (numbers, words) = options(n, &many);
        let mut logits = CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(v)]);
        logits.fill = Fill::Normal(size);
        let (numbers, words) = (input(DType::F32, 0, 3, numbers), input(DType::U32, 0, 4, words));
        Case::new(Sample, &[(max, n)]).input(logits).input(numbers).input(words)
    };
    let fixed = |row: &[f32], options_of_rows: &[(f32, f32, u32, f32)]| {
        let n = options_of_rows.len() * 3;
        let (numbers, words) = options(n, options_of_rows);
        let logits = input(DType::F32, n, row.len(), row.repeat(n));
        Case::new(Sample, &[]).input(logits).input(input(DType::F32, n, 3, numbers)).input(input(
            DType::U32,
            n,
            4,
            words,
        ))
    };
    let none = f32::NEG_INFINITY;
    let mut spread = vec![none; 1000];
    (0..50).for_each(|i| spread[i * 19 + 3] = i as f32 / 8.0);
    vec![
        drawn(1, 1, 1, 1.0),
        drawn(0, 2, 32, 1.0),
        drawn(33, 40, 77, 2.0),
        drawn(16, 16, 3000, 3.0),
        drawn(16, 17, 33_001, 2.0),
        fixed(
            &[0.5; 600],
            &[
                (0.0, 1.0, 0, 0.0),
                (1.0, 1.0, 0, 1.0),
                (1.0, 0.501, 0, 0.0),
                (1.0, 1.0, 100, 0.0),
                (0.5, 0.333, 90, 0.5),
            ],
        ),
        fixed(&spread, &many),
        fixed(
            &[-0.0, 0.0, none, -0.0],
            &[(0.0, 1.0, 0, 0.0), (1.0, 1.0, 2, 0.0), (1.0, 0.4, 0, 0.0), (3.0, 1.0, 0, 1.0)],
        ),
        fixed(&[f32::MIN, f32::MIN, none], &many),
        fixed(&[f32::MAX, f32::MIN, 3.0], &many),
        fixed(&[1.0, f32::NAN, 2.0], &many[..3]),
        fixed(&[1.0, f32::INFINITY, 2.0], &many[..3]),
        fixed(&[none; 40], &many[..3]),
    ]
}

#[cfg(test)]
mod tests {
    use super::choice;
    use crate::ops::philox4x32_10;

    /// The suite accepts any result for undecided choices, so they must be few.
    #[test]
    fn nearly_every_choice_is_decided() {
        let undecided = (0..400).filter(|p| {
            let logit = |i: u32| f64::from(philox4x32_10([i, *p, 0, 0], [1, 2])[0]) / 5e8;
            let logits: Vec<f64> = (0..2000).map(logit).collect();
            !choice(&logits, &[0.8, 0.95, f64::NEG_INFINITY], &[[40, 0][*p as usize % 2], 7, 0, *p]).1
        });
        assert!(undecided.count() < 40);
    }
}
