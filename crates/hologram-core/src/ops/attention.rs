//! Causal attention of new tokens over a paged key and value cache, with grouped heads.

use hologram_backends::{AttentionPrecision, DType, KernelSpec, Operation};
use hologram_isa::{Builder, Opcode, SUBGROUP_SIZE, Type, Value};

use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// The operation; its inputs are those of [`Graph::attention`] in order.
#[derive(Debug)]
struct Attention {
    scale: f32,
    precision: AttentionPrecision,
    window: Option<u32>,
    cap: Option<f32>,
    pieces: bool,
    has_firsts: bool,
    has_sinks: bool,
}

/// Options of [`Graph::attention_with`]; [`Graph::attention`] uses the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionOptions {
    /// The minimum precision of the products.
    pub precision: AttentionPrecision,
    /// Sliding window: a token attends to at most this many last positions, its own included; at least 1. `None`: to
    /// all positions.
    pub window: Option<u32>,
    /// Scores s become `cap`·tanh(s / `cap`) (as in Gemma 2, arXiv:2408.00118).
    pub cap: Option<f32>,
    /// Whether many tokens follow others of their sequence, as in pieces of prompts. Kernels then read for all of them
    /// at once what they share of the cache; only the speed and roundings differ. Without it a device may suppose that
    /// each token has a sequence of its own if there are as many sequences.
    pub pieces: bool,
    /// `u32 [n]`: the first position that each token attends to, at most `positions[t]`; instead of a window.
    pub firsts: Option<NodeId>,
    /// `f32 [h]`: per head a score that takes part in the softmax but has no value (as in gpt-oss, arXiv:2508.10925).
    pub sinks: Option<NodeId>,
}

impl From<AttentionPrecision> for AttentionOptions {
    fn from(precision: AttentionPrecision) -> AttentionOptions {
        AttentionOptions { precision, ..AttentionOptions::default() }
    }
}

impl Graph {
    /// softmax(q·kᵀ·`scale`)·v in `f32`, one token at a time: token t attends to positions 0 to `positions[t]` of
    /// sequence `sequences[t]`, its own included.
    ///
    /// - `q` is `f32 [n, h, d]`.
    /// - `k` and `v` are `[blocks, kv_heads, block_size, d]` in `f32`, `f16`, [`DType::F8`], [`DType::Q8Planes`] or
    ///   [`DType::Q4Planes`].
    /// - `positions` and `sequences` are `u32 [n]`; `block_table` is `u32 [seqs, max_blocks]`.
    ///
    /// Position p of sequence s lies in block `block_table[s, p / block_size]` at offset `p % block_size`. Head j reads
    /// kv head `j / (h / kv_heads)`. A sequence, position or block that is out of range is an error of the run.
    ///
    /// # Errors
    /// When the operands do not fit.
    #[expect(clippy::too_many_arguments, reason = "attention reads a paged cache through its tables")]
    pub fn attention(
        &mut self,
        q: NodeId,
        k: NodeId,
        v: NodeId,
        positions: NodeId,
        sequences: NodeId,
        block_table: NodeId,
        scale: f32,
    ) -> Result<NodeId> {
        self.attention_with(q, k, v, positions, sequences, block_table, scale, AttentionOptions::default())
    }

    /// As [`Graph::attention`], with options.
    ///
    /// # Errors
    /// As [`Graph::attention`].
    #[expect(clippy::too_many_arguments, reason = "attention reads a paged cache through its tables")]
    pub fn attention_with(
        &mut self,
        q: NodeId,
        k: NodeId,
        v: NodeId,
        positions: NodeId,
        sequences: NodeId,
        block_table: NodeId,
        scale: f32,
        options: impl Into<AttentionOptions>,
    ) -> Result<NodeId> {
        let options = options.into();
        let mut inputs = vec![q, k, v, positions, sequences, block_table];
        inputs.extend(options.firsts);
        inputs.extend(options.sinks);
        let AttentionOptions { precision, window, cap, pieces, firsts, sinks } = options;
        let (has_firsts, has_sinks) = (firsts.is_some(), sinks.is_some());
        self.apply(Attention { scale, precision, window, cap, pieces, has_firsts, has_sinks }, &inputs)
    }
}

const THREADS: u32 = 64;
const SUBGROUPS: u32 = THREADS / SUBGROUP_SIZE;

impl Attention {
    /// The positions that a token at `position` attends to, with its first one if an input gives it.
    fn seen(&self, position: usize, first: Option<usize>) -> std::ops::RangeInclusive<usize> {
        let of_window = || self.window.map_or(0, |window| (position + 1).saturating_sub(window as usize));
        first.unwrap_or_else(of_window)..=position
    }

    /// The indices of the first positions and of the sinks among the inputs.
    fn more(&self) -> [Option<usize>; 2] {
        let firsts = self.has_firsts.then_some(6);
        [firsts, self.has_sinks.then_some(if self.has_firsts { 7 } else { 6 })]
    }
}

impl Op for Attention {
    fn operation(&self) -> Operation {
        let Attention { scale, precision, window, cap, pieces, .. } = *self;
        Operation::Attention { scale: scale.into(), precision, window, cap: cap.map(Into::into), pieces }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [q, k, v, positions, sequences, table, more @ ..] = inputs else {
            return Err("takes q, k, v, positions, sequences and a block table".into());
        };
        if self.window == Some(0) {
            return Err("a window has at least 1 position".into());
        }
        if self.cap.is_some_and(|cap| !(cap.is_finite() && cap > 0.0)) {
            return Err("a cap of scores must be greater than 0".into());
        }
        let [firsts, sinks] = self.more().map(|i| i.and_then(|i| more.get(i - 6)));
        if let Some(firsts) = firsts
            && (self.window.is_some() || firsts != positions)
        {
            return Err("takes first positions like the positions, and no window with them".into());
        }
        if sinks.is_some_and(|s| s.format != DType::F32 || s.shape.as_slice() != q.shape.get(1..2).unwrap_or_default())
        {
            return Err("takes f32 sinks, one for each head".into());
        }
        let cache = [DType::F32, DType::F16, DType::F8, DType::Q8Planes, DType::Q4Planes].contains(&k.format) && k == v;
        let indices = [positions, sequences, table].iter().all(|t| t.format == DType::U32);
        if q.format != DType::F32 || !cache || !indices {
            return Err(
                "takes f32 q, k and v alike in f32, f16, f8, Q8_0 or Q4_0 (planes), and u32 positions, sequences and \
                 block table"
                    .into(),
            );
        }
        let (
            [n, Dim::Fixed(heads), Dim::Fixed(d)],
            [Dim::Fixed(_), Dim::Fixed(kv_heads), Dim::Fixed(block), Dim::Fixed(e)],
        ) = (q.shape.as_slice(), k.shape.as_slice())
        else {
            return Err("takes q [n, h, d] and k and v [blocks, kv_heads, block size, d]".into());
        };
        if d != e || *d == 0 || *block == 0 || *kv_heads == 0 || !heads.is_multiple_of(*kv_heads) {
            return Err("heads must be as long as those of the cache, and a multiple of them in number".into());
        }
        if !d.is_multiple_of(k.format.block_len()) {
            return Err(format!("a cache in 8 or 4 bits has heads of whole blocks of 32 elements, not of {d}").into());
        }
        match (positions.shape.as_slice(), sequences.shape.as_slice(), table.shape.as_slice()) {
            ([p], [s], [Dim::Fixed(_), Dim::Fixed(_)]) if p == n && s == n => Ok((*q).clone()),
            _ => Err("takes positions [n], sequences [n] and a block table [seqs, max_blocks]".into()),
        }
    }

    /// One workgroup per token and head. Online softmax over chunks of one position per thread: each thread computes
    /// the score of its position, the workgroup finds the maximum, the running sums are rescaled to it, and each thread
    /// adds the chunk's values to the elements that it owns. Computes in `f32` at either precision.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let size = |input: usize, i: usize| spec.inputs[input].shape.get(i).map_or(1, |e| e.max()) as u32;
        let (heads, d) = (size(0, 1), size(0, 2));
        let (blocks, kv_heads, block_size) = (size(1, 0), size(1, 1), size(1, 2));
        let (sequences_max, blocks_max) = (size(5, 0), size(5, 1));
        let mut k = Kernel::new(spec, THREADS);
        let partial = k.b.shared("partial", Type::F32, SUBGROUPS);
        let weights = k.b.shared("weights", Type::F32, THREADS);
        let starts = k.b.shared("starts", Type::U32, THREADS);
        let rows = k.rows(&spec.output);
        let [q, keys, values, positions, sequences, table] = [0, 1, 2, 3, 4, 5].map(|i| k.inputs[i].clone());
        let [firsts, sinks] = self.more().map(|i| i.map(|i| k.inputs[i].clone()));
        let out = k.output.clone();
        let b = &mut k.b;
        let row = b.builtin(Opcode::GroupX);
        let inside = b.lt(row, rows);
        b.if_(inside, |b| {
            let thread = b.builtin(Opcode::ThreadX);
            let lane = b.builtin(Opcode::Lane);
            let subgroup = b.builtin(Opcode::Subgroup);
            let token = b.div(row, heads);
            let head = b.rem(row, heads);
            let kv_head = b.div(head, heads / kv_heads);
            let q_start = b.mul(row, d);
            let position = b.load(positions.views[0], token);
            let sequence = b.load(sequences.views[0], token);
            let known = b.lt(sequence, sequences_max);
            let reached = b.lt(position, blocks_max * block_size);
            let exists = b.and(known, reached);
            let table_row = b.mul(sequence, blocks_max);
            // If the sequence or position is out of range, the load below fails; one position is enough then.
            let last = b.select(exists, position, 0u32);
            let len = b.add(last, 1u32);
            let first = match (&firsts, self.window) {
                (Some(firsts), _) => b.load(firsts.views[0], token),
                (None, Some(window)) => {
                    let seen = b.min(len, window);
                    b.sub(len, seen)
                }
                (None, None) => Value::from(0u32),
            };

            let greatest = b.var(f32::MIN);
            let total = b.var(0.0f32);
            if let Some(sinks) = &sinks {
                let sink = sinks.load(b, head);
                b.assign(greatest, sink);
                b.assign(total, 1.0f32);
            }
            let sums: Vec<Value> = (0..d.div_ceil(THREADS)).map(|_| b.var(0.0f32)).collect();
            b.for_(first, len, THREADS, |b, base| {
                let p = b.add(base, thread);
                let mine = b.lt(p, len);
                let score = b.var(f32::MIN);
                b.if_(mine, |b| {
                    let page = b.div(p, block_size);
                    let offset = b.rem(p, block_size);
                    let at = b.add(table_row, page);
                    // No tensor has an element at u32::MAX: a load for a sequence, position or block that is out of
                    // range fails.
                    let at = b.select(exists, at, u32::MAX);
                    let block = b.load(table.views[0], at);
                    let valid = b.lt(block, blocks);
                    let at = b.mul(block, kv_heads);
                    let at = b.add(at, kv_head);
                    let at = b.mul(at, block_size);
                    let at = b.add(at, offset);
                    let at = b.mul(at, d);
                    let start = b.select(valid, at, u32::MAX);
                    b.store(starts, thread, start);
                    let dot = b.var(0.0f32);
                    b.for_(0u32, d, 1u32, |b, e| {
                        let (qi, ki) = (b.add(q_start, e), b.add(start, e));
                        let (qv, kv) = (q.load(b, qi), keys.load(b, ki));
                        b.assign_op(dot, Opcode::Fma, &[qv, kv, dot]);
                    });
                    b.assign_op(score, Opcode::Mul, &[dot, self.scale.into()]);
                    if let Some(cap) = self.cap {
                        let part = b.div(score, cap);
                        let part = b.tanh(part);
                        b.assign_op(score, Opcode::Mul, &[part, cap.into()]);
                    }
                });

                let of_subgroup = b.subgroup_max(score);
                let leader = b.eq(lane, 0u32);
                b.if_(leader, |b| b.store(partial, subgroup, of_subgroup));
                b.barrier();
                let new = b.var(greatest);
                b.for_(0u32, SUBGROUPS, 1u32, |b, i| {
                    let v = b.load(partial, i);
                    b.assign_op(new, Opcode::Max, &[new, v]);
                });
                let weight = exp_difference(b, score, new);
                b.store(weights, thread, weight);
                let correction = exp_difference(b, greatest, new);
                b.assign(greatest, new);
                b.barrier();

                b.assign_op(total, Opcode::Mul, &[total, correction]);
                for sum in &sums {
                    b.assign_op(*sum, Opcode::Mul, &[*sum, correction]);
                }
                let rest = b.sub(len, base);
                let count = b.min(rest, THREADS);
                b.for_(0u32, count, 1u32, |b, j| {
                    let weight = b.load(weights, j);
                    let start = b.load(starts, j);
                    b.assign_op(total, Opcode::Add, &[total, weight]);
                    for (i, sum) in sums.iter().enumerate() {
                        let e = b.add(thread, i as u32 * THREADS);
                        let owned = b.lt(e, d);
                        b.if_(owned, |b| {
                            let at = b.add(start, e);
                            let v = values.load(b, at);
                            b.assign_op(*sum, Opcode::Fma, &[weight, v, *sum]);
                        });
                    }
                });
                b.barrier();
            });
            for (i, sum) in sums.iter().enumerate() {
                let e = b.add(thread, i as u32 * THREADS);
                let owned = b.lt(e, d);
                b.if_(owned, |b| {
                    let y = b.div(*sum, total);
                    let at = b.add(q_start, e);
                    out.store(b, at, y);
                });
            }
        });
        k.finish(spec.output.max_rows())
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [q, keys, values, positions, sequences, table, ..] = inputs else { return Reference::default() };
        let [firsts, sinks] = self.more().map(|i| i.and_then(|i| inputs.get(i)));
        let ([_, heads, d], [_, kv_heads, block_size, _]) = (&q.shape[..], &keys.shape[..]) else {
            return Reference::default();
        };
        let (d, blocks_max, epsilon) = (*d, table.row_len(), f64::from(f32::EPSILON));
        let mut out = Reference::default();
        for (row, q) in q.values.chunks(d).enumerate() {
            let (token, kv_head) = (row / heads, row % heads / (heads / kv_heads));
            let starts: Vec<usize> = self
                .seen(positions.values[token] as usize, firsts.map(|f| f.values[token] as usize))
                .map(|p| {
                    let at = sequences.values[token] as usize * blocks_max + p / block_size;
                    ((table.values[at] as usize * kv_heads + kv_head) * block_size + p % block_size) * d
                })
                .collect();
            let scale = f64::from(self.scale);
            // Rounding both operands changes each term of a score by up to twice the rounding, of either sign.
            let rounding = match self.precision {
                AttentionPrecision::F32 => 0.0,
                AttentionPrecision::BF16 => f64::from(half::bf16::EPSILON) / 2.0,
            };
            let mut score_bound: f64 = 0.0;
            let scores: Vec<f64> = starts
                .iter()
                .map(|at| {
                    let (mut sum, mut squares) = (0.0, 0.0);
                    for (a, b) in q.iter().zip(&keys.values[*at..at + d]) {
                        sum += a * b;
                        squares += (a * b).powi(2);
                    }
                    let bound =
                        super::matmul::sum_bound(DType::F32, d as f64, sum, squares) + 4.0 * rounding * squares.sqrt();
                    let score = sum * scale;
                    // Capping moves scores no further apart; a tanh is off by some roundings of 1.
                    let (score, of_cap) = match self.cap.map(f64::from) {
                        Some(cap) => (cap * (score / cap).tanh(), 8.0 * cap * epsilon),
                        None => (score, 0.0),
                    };
                    score_bound = score_bound.max(bound * scale.abs() + of_cap);
                    score
                })
                .collect();
            let sink = sinks.map(|sinks| sinks.values[row % heads]);
            let greatest = scores.iter().chain(&sink).fold(f64::MIN, |a, s| a.max(*s));
            let weights: Vec<f64> = scores.iter().map(|s| (s - greatest).exp()).collect();
            let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - greatest).exp());
            // An absolute error of a score is a relative error of its weight. The exponential adds 2 ulp, each sum its
            // roundings. A weight and its value may be rounded.
            let sums = (greatest.abs() + 6.0 + (starts.len() as f64).sqrt()) * epsilon;
            let relative = score_bound + 2.0 * rounding + sums;
            for e in 0..d {
                let terms = || weights.iter().zip(&starts).map(|(w, at)| w * values.values[at + e] / total);
                let size: f64 = terms().map(f64::abs).sum();
                out.push(terms().sum(), size * relative + f64::from(f32::MIN_POSITIVE));
            }
        }
        out
    }
}

/// exp(x − greatest).
fn exp_difference(b: &mut Builder, x: Value, greatest: Value) -> Value {
    let x = b.sub(x, greatest);
    b.exp(x)
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    struct Shape<'a> {
        heads: (usize, usize),
        d: usize,
        block_size: usize,
        tokens: (usize, usize),
        positions: &'a [f32],
        sequences: &'a [f32],
        table: (usize, usize, &'a [f32]),
    }
    let shapes = [
        Shape {
            heads: (1, 1),
            d: 8,
            block_size: 16,
            tokens: (1, 1),
            positions: &[0.0],
            sequences: &[0.0],
            table: (1, 1, &[0.0]),
        },
        Shape {
            heads: (2, 1),
            d: 32,
            block_size: 16,
            tokens: (3, 0),
            positions: &[],
            sequences: &[],
            table: (1, 2, &[1.0, 0.0]),
        },
        // A prompt of one sequence in the middle of its context.
        Shape {
            heads: (4, 2),
            d: 64,
            block_size: 32,
            tokens: (6, 5),
            positions: &[62.0, 63.0, 64.0, 65.0, 66.0],
            sequences: &[0.0; 5],
            table: (1, 4, &[3.0, 0.0, 5.0, 1.0]),
        },
        // One token of each of several sequences, of very different lengths.
        Shape {
            heads: (6, 2),
            d: 128,
            block_size: 32,
            tokens: (3, 3),
            positions: &[130.0, 0.0, 31.0],
            sequences: &[1.0, 0.0, 2.0],
            table: (3, 5, &[4.0, 9.0, 9.0, 9.0, 9.0, 2.0, 8.0, 1.0, 7.0, 3.0, 6.0, 9.0, 9.0, 9.0, 9.0]),
        },
        Shape {
            heads: (3, 3),
            d: 80,
            block_size: 16,
            tokens: (2, 2),
            positions: &[32.0, 33.0],
            sequences: &[0.0, 0.0],
            table: (1, 3, &[2.0, 1.0, 0.0]),
        },
    ];
    // Long enough for several tiles of any kernel: two tokens at the end of a context, and a prompt from its start.
    let long: Vec<f32> = (0..22).map(|i| (i * 5 % 22) as f32).collect();
    let count = |from: usize, to: usize| (from..to).map(|i| i as f32).collect::<Vec<f32>>();
    let prompt = count(0, 70);
    // Prompts of three sequences of different lengths in one step, two of them after earlier context.
    let ragged_positions = [count(0, 45), count(70, 101), count(29, 66)].concat();
    let ragged_sequences = [[2.0; 45].as_slice(), &[0.0; 31], &[1.0; 37]].concat();
    let ragged_table: Vec<f32> = (0..24).map(|i| (i * 7 % 24) as f32).collect();
    // One token of each of twelve sequences, in no order.
    let batch_positions: Vec<f32> = (0..12).map(|i| (i * 29 % 61) as f32).collect();
    let batch_sequences: Vec<f32> = (0..12).map(|i| (i * 5 % 12) as f32).collect();
    // A token of each of 37 sequences beside pieces of two prompts, and two sequences in turns: tiles of many sequences.
    let mixed_positions = [(0..37).map(|i| (i * 17 % 41) as f32).collect(), count(21, 41), count(0, 13)].concat();
    let mixed_sequences = [count(0, 37).as_slice(), &[37.0; 20], &[39.0; 13]].concat();
    let mixed_table: Vec<f32> = (0..160).map(|i| (i * 7 % 160) as f32).collect();
    let turns_positions: Vec<f32> = (0..75).map(|i| (i / 2 + i % 2 * 30) as f32).collect();
    let turns_sequences: Vec<f32> = (0..75).map(|i| (i % 2) as f32).collect();
    // One long text among short ones.
    let uneven_positions: Vec<f32> = (0..12).map(|i| if i == 7 { 690.0 } else { (i * 29 % 61) as f32 }).collect();
    let uneven_table: Vec<f32> = (0..264).map(|i| (i * 5 % 264) as f32).collect();
    let texts = [[39.0; 40].as_slice(), &[40.0; 41]].concat();
    let of_texts = [[1.0; 40].as_slice(), &[0.0; 41]].concat();
    let batch_table: Vec<f32> = (0..48).map(|i| (i * 11 % 48) as f32).collect();
    let long = [
        Shape {
            heads: (8, 2),
            d: 64,
            block_size: 32,
            tokens: (2, 2),
            positions: &[699.0, 700.0],
            sequences: &[0.0; 2],
            table: (1, 22, &long),
        },
        Shape {
            heads: (2, 1),
            d: 64,
            block_size: 32,
            tokens: (80, 70),
            positions: &prompt,
            sequences: &[0.0; 70],
            table: (1, 3, &[1.0, 2.0, 0.0]),
        },
        Shape {
            heads: (8, 2),
            d: 128,
            block_size: 16,
            tokens: (128, 113),
            positions: &ragged_positions,
            sequences: &ragged_sequences,
            table: (3, 8, &ragged_table),
        },
        Shape {
            heads: (8, 2),
            d: 128,
            block_size: 32,
            tokens: (80, 70),
            positions: &mixed_positions,
            sequences: &mixed_sequences,
            table: (80, 2, &mixed_table),
        },
        Shape {
            heads: (8, 2),
            d: 64,
            block_size: 32,
            tokens: (80, 75),
            positions: &turns_positions,
            sequences: &turns_sequences,
            table: (2, 3, &[5.0, 1.0, 3.0, 0.0, 2.0, 4.0]),
        },
        Shape {
            heads: (7, 1),
            d: 96,
            block_size: 16,
            tokens: (12, 12),
            positions: &batch_positions,
            sequences: &batch_sequences,
            table: (12, 4, &batch_table),
        },
        Shape {
            heads: (2, 2),
            d: 80,
            block_size: 32,
            tokens: (35, 33),
            positions: &prompt[5..38],
            sequences: &[1.0; 33],
            table: (2, 2, &[9.0, 9.0, 1.0, 2.0]),
        },
        Shape {
            heads: (4, 1),
            d: 256,
            block_size: 32,
            tokens: (40, 40),
            positions: &prompt[30..],
            sequences: &[0.0; 40],
            table: (1, 3, &[0.0, 2.0, 1.0]),
        },
        Shape {
            heads: (8, 2),
            d: 128,
            block_size: 32,
            tokens: (16, 12),
            positions: &uneven_positions,
            sequences: &batch_sequences,
            table: (12, 22, &uneven_table),
        },
        // All tokens of two texts see all of their text.
        Shape {
            heads: (4, 2),
            d: 64,
            block_size: 32,
            tokens: (96, 81),
            positions: &texts,
            sequences: &of_texts,
            table: (2, 2, &[1.0, 0.0, 3.0, 2.0]),
        },
    ];
    // Heads as latent vectors have them, and the widest others: one token of each of two sequences, then prompts.
    let wide = [
        Shape {
            heads: (18, 1),
            d: 576,
            block_size: 32,
            tokens: (2, 2),
            positions: &[69.0, 31.0],
            sequences: &[1.0, 0.0],
            table: (2, 3, &[3.0, 9.0, 9.0, 1.0, 2.0, 0.0]),
        },
        Shape {
            heads: (5, 1),
            d: 576,
            block_size: 16,
            tokens: (20, 15),
            positions: &[20.0, 21.0, 22.0, 23.0, 24.0, 25.0, 26.0, 27.0, 28.0, 29.0, 30.0, 31.0, 32.0, 33.0, 2.0],
            sequences: &[[0.0; 14].as_slice(), &[1.0]].concat(),
            table: (2, 3, &[2.0, 1.0, 0.0, 3.0, 9.0, 9.0]),
        },
        Shape {
            heads: (4, 2),
            d: 512,
            block_size: 32,
            tokens: (3, 3),
            positions: &[40.0, 41.0, 42.0],
            sequences: &[0.0; 3],
            table: (1, 2, &[1.0, 0.0]),
        },
        Shape {
            heads: (4, 2),
            d: 512,
            block_size: 32,
            tokens: (20, 20),
            positions: &prompt[30..50],
            sequences: &[0.0; 20],
            table: (1, 2, &[0.0, 1.0]),
        },
    ];
    let mut cases = Vec::new();
    // Windows shorter than a block, of a block and one more, and longer than a kernel's tile.
    use AttentionPrecision::{BF16, F32};
    let plain = [
        (DType::F32, F32, None),
        (DType::F16, F32, None),
        (DType::F8, F32, None),
        (DType::F8, BF16, None),
        (DType::Q8Planes, F32, None),
        (DType::Q4Planes, F32, None),
        (DType::Q4Planes, BF16, None),
        (DType::F32, BF16, None),
        (DType::F16, BF16, None),
        (DType::F32, F32, Some(1)),
        (DType::F32, F32, Some(33)),
        (DType::F16, F32, Some(20)),
        (DType::F16, BF16, Some(300)),
        (DType::F8, F32, Some(17)),
        (DType::Q8Planes, F32, Some(17)),
        (DType::Q4Planes, F32, Some(20)),
    ];
    // A cap, first positions and sinks, each alone and all together.
    let plain = plain.map(|(format, precision, window)| (format, precision, window, None, false, false));
    let more = [
        (DType::F32, F32, None, Some(1.5), false, false),
        (DType::F16, BF16, Some(30), Some(3.0), false, false),
        (DType::F32, F32, None, None, true, false),
        (DType::F32, F32, Some(40), None, false, true),
        (DType::F8, F32, None, Some(2.0), true, true),
        (DType::Q8Planes, F32, None, Some(2.0), true, true),
        (DType::F16, BF16, None, Some(2.0), true, true),
    ];
    for (format, precision, window, cap, has_firsts, has_sinks) in plain.into_iter().chain(more) {
        // The lower precision does not change the computation of few tokens.
        let shapes = if precision == F32 { shapes.as_slice() } else { &[] };
        // These change any kernel's work in the same way: one step of each kind is enough.
        let varied = window.is_some() || cap.is_some() || has_firsts || has_sinks;
        let long = if varied { &long[..4] } else { &long[..] };
        let wide = if format == DType::F16 { wide.as_slice() } else { &[] };
        for s in shapes.iter().chain(long).chain(wide).filter(|s| s.d.is_multiple_of(format.block_len())) {
            let dims = |sizes: &[usize]| sizes.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
            let (max, n) = s.tokens;
            // If the number of tokens is the maximum and above 8, it is fixed; otherwise it is an extent.
            let tokens = if n == max && n > 8 { Dim::Fixed(n) } else { Dim::Extent(0) };
            let index = |shape: &[Dim], values: &[f32]| CaseInput {
                format: DType::U32,
                shape: shape.to_vec(),
                fill: Fill::Values(values.to_vec()),
            };
            let pool = s.table.2.iter().fold(0, |n, block| n.max(*block as usize + 1));
            let cache = CaseInput::normal(format, &dims(&[pool, s.heads.1, s.block_size, s.d]));
            let q = CaseInput::normal(DType::F32, &[tokens, Dim::Fixed(s.heads.0), Dim::Fixed(s.d)]);
            let (seqs, blocks, table) = s.table;
            let scale = 1.0 / (s.d as f32).sqrt();
            let followed = s.sequences.windows(2).filter(|pair| pair[0] == pair[1]).count();
            let pieces = 4 * followed > n;
            let op = Attention { scale, precision, window, cap, pieces, has_firsts, has_sinks };
            let mut case = Case::new(op, &[(max, n)])
                .input(q)
                .input(cache.clone())
                .input(cache)
                .input(index(&[tokens], s.positions))
                .input(index(&[tokens], s.sequences))
                .input(index(&dims(&[seqs, blocks]), table));
            if has_firsts {
                let firsts: Vec<f32> = s.positions.iter().map(|p| (p * 5.0) % (p + 1.0)).collect();
                case = case.input(index(&[tokens], &firsts));
            }
            if has_sinks {
                case = case.input(CaseInput::normal(DType::F32, &[Dim::Fixed(s.heads.0)]));
            }
            cases.push(case);
        }
    }
    cases
}
