//! Attention of whole sequences without scores in memory, with its gradients (Dao et al., 2022, arXiv:2205.14135; Dao,
//! 2023, arXiv:2307.08691).

use hologram_backends::{DType, Flash, KernelSpec, Operation};
use hologram_isa::{Array, Builder, Opcode, Type, Value};

use super::lines::{computed, epsilon, is_float, number, plain, stored};
use super::matmul::sum_bound;
use super::{Kernel, Launchable, Mismatch, Op, TensorArg, widest};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorAttention, TensorType};

/// Inputs: `q [.., h, n, d]`, `k [.., k, m, d]` and, except for the sums, `v [.., k, m, d]`. The gradients also take
/// the result, the sums, and the gradient by the result.
#[derive(Clone, Copy, Debug)]
struct FlashAttention {
    scale: f32,
    causal: bool,
    part: Flash,
}

impl Graph {
    /// softmax(`scale`·q·kᵀ)·v of queries `[.., h, n, d]`, keys and values `[.., k, m, d]`, all of one type of floats:
    /// `[.., h, n, d]`. Each of the k heads of keys serves h/k heads of queries. If causal, the last query sees all
    /// keys, and the one before it all but the last.
    ///
    /// As [`Graph::dot_product_attention`], but no device stores the scores, neither here nor for the gradients. `f16`
    /// and `bf16` are computed in `f32`, with weights (and their gradients) that may be rounded to the type.
    ///
    /// # Errors
    /// When the operands do not fit, or have a run-time extent.
    pub fn flash_attention(&mut self, q: NodeId, k: NodeId, v: NodeId, options: &TensorAttention) -> Result<NodeId> {
        self.flash(Flash::Result, &[q, k, v], options)
    }

    /// ln Σ exp(`scale`·q·kᵀ) over the keys that each query of [`Graph::flash_attention`] sees: `[.., h, n]` of `f32`,
    /// or `f64` for `f64`. [`Graph::flash_attention_gradients`] takes it.
    ///
    /// # Errors
    /// As [`Graph::flash_attention`].
    pub fn flash_attention_sums(&mut self, q: NodeId, k: NodeId, options: &TensorAttention) -> Result<NodeId> {
        self.flash(Flash::Sums, &[q, k], options)
    }

    /// The gradients by q, k and v of [`Graph::flash_attention`], one after the other as a value of one dimension, from
    /// its operands, its result, their [`Graph::flash_attention_sums`], and the gradient by the result.
    ///
    /// # Errors
    /// As [`Graph::flash_attention`].
    pub fn flash_attention_gradients(
        &mut self,
        [q, k, v]: [NodeId; 3],
        result: NodeId,
        sums: NodeId,
        grad: NodeId,
        options: &TensorAttention,
    ) -> Result<NodeId> {
        self.flash(Flash::Gradients, &[q, k, v, result, sums, grad], options)
    }

    fn flash(&mut self, part: Flash, inputs: &[NodeId], options: &TensorAttention) -> Result<NodeId> {
        let d = self.fixed_shape(inputs[0]).and_then(|shape| shape.last().copied()).unwrap_or(1);
        let scale = options.scale.unwrap_or(1.0 / (d as f64).sqrt()) as f32;
        self.apply(FlashAttention { scale, causal: options.causal, part }, inputs)
    }
}

/// The sizes of a call.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Heads of queries, and of keys, of all batches.
    heads: usize,
    key_heads: usize,
    n: usize,
    m: usize,
    d: usize,
}

impl Sizes {
    /// Of the shapes of queries and keys.
    fn of(q: &[usize], k: &[usize]) -> Option<Sizes> {
        let ([outer @ .., h, n, d], [.., of_keys, m, _]) = (q, k) else { return None };
        let outer: usize = outer.iter().product();
        Some(Sizes { heads: outer * h, key_heads: outer * of_keys, n: *n, m: *m, d: *d })
    }

    fn of_spec(spec: &KernelSpec) -> Option<Sizes> {
        let shape = |i: usize| Some(spec.inputs.get(i)?.shape.iter().map(|e| e.max()).collect::<Vec<_>>());
        Sizes::of(&shape(0)?, &shape(1)?)
    }

    fn group(&self) -> usize {
        self.heads / self.key_heads.max(1)
    }
}

/// Threads of a workgroup, which computes a row of the result.
const THREADS: u32 = 64;

/// What a program computes with.
struct Rows {
    op: FlashAttention,
    sizes: Sizes,
    ty: Type,
    inputs: Vec<TensorArg>,
    thread: Value,
    shared: [Array; 2],
}

impl Rows {
    /// The product of the rows of two inputs.
    fn dot(&self, b: &mut Builder, x: (usize, Value), y: (usize, Value)) -> Value {
        let sum = b.var(number(self.ty, 0.0));
        let d = self.sizes.d as u32;
        let [x_at, y_at] = [x.1, y.1].map(|row| b.mul(row, d));
        b.for_(0u32, d, 1u32, |b, e| {
            let (i, j) = (b.add(x_at, e), b.add(y_at, e));
            let (u, v) = (self.inputs[x.0].load_as(b, self.ty, i), self.inputs[y.0].load_as(b, self.ty, j));
            b.assign_op(sum, Opcode::Fma, &[u, v, sum]);
        });
        sum
    }

    fn score(&self, b: &mut Builder, query: Value, key: Value) -> Value {
        let dot = self.dot(b, (0, query), (1, key));
        b.mul(dot, number(self.ty, f64::from(self.op.scale)))
    }

    /// exp(score − sum)
    fn weight(&self, b: &mut Builder, query: Value, key: Value, sum: Value) -> Value {
        let score = self.score(b, query, key);
        let below = b.sub(score, sum);
        b.exp(below)
    }

    /// The gradient by a score from its weight, the rows of its query and of its value, and the query's delta.
    fn slope(&self, b: &mut Builder, weight: Value, query: Value, key: Value, delta: Value) -> Value {
        let by_weight = self.dot(b, (5, query), (2, key));
        let by_weight = b.sub(by_weight, delta);
        b.mul(weight, by_weight)
    }

    /// ln Σ exp(score) of a query over `count` keys from row `first` on; the same in all threads, which all call it.
    fn sum(&self, b: &mut Builder, query: Value, first: Value, count: Value) -> Value {
        let least = number(self.ty, if self.ty == Type::F64 { f64::MIN } else { f64::from(f32::MIN) });
        let (greatest, total) = (b.var(least), b.var(number(self.ty, 0.0)));
        b.for_(self.thread, count, THREADS, |b, j| {
            let key = b.add(first, j);
            let score = self.score(b, query, key);
            let new = b.max(greatest, score);
            let [old, own] = [greatest, score].map(|x| {
                let x = b.sub(x, new);
                b.exp(x)
            });
            b.assign_op(total, Opcode::Fma, &[total, old, own]);
            b.assign(greatest, new);
        });
        let [of_greatest, of_total] = self.shared;
        b.store(of_greatest, self.thread, greatest);
        b.store(of_total, self.thread, total);
        b.barrier();
        let (most, sum) = (b.var(least), b.var(number(self.ty, 0.0)));
        b.for_(0u32, THREADS, 1u32, |b, i| {
            let x = b.load(of_greatest, i);
            b.assign_op(most, Opcode::Max, &[most, x]);
        });
        b.for_(0u32, THREADS, 1u32, |b, i| {
            let (x, total) = (b.load(of_greatest, i), b.load(of_total, i));
            let x = b.sub(x, most);
            let x = b.exp(x);
            b.assign_op(sum, Opcode::Fma, &[x, total, sum]);
        });
        b.barrier();
        let log = b.log(sum);
        b.add(most, log)
    }

    /// The sum of `count` rows of an input, each with a weight, times `factor`, stored as row `to` of the result. `row`
    /// gives the i-th row, and `weight` its weight. All threads call it.
    fn weigh(
        &self,
        b: &mut Builder,
        (input, count, factor): (usize, Value, f64),
        row: impl Fn(&mut Builder, Value) -> Value,
        weight: impl Fn(&mut Builder, Value) -> Value,
        (out, to): (&TensorArg, Value),
    ) {
        let (d, zero) = (self.sizes.d as u32, number(self.ty, 0.0));
        let [weights, _] = self.shared;
        let sums: Vec<Value> = (0..d.div_ceil(THREADS)).map(|_| b.var(zero)).collect();
        // The elements of a row that this thread has.
        let each = |b: &mut Builder, start: Value, then: &dyn Fn(&mut Builder, Value, Value)| {
            for (i, sum) in sums.iter().enumerate() {
                let e = b.add(self.thread, i as u32 * THREADS);
                let inside = b.lt(e, d);
                b.if_(inside, |b| {
                    let at = b.add(start, e);
                    then(b, at, *sum);
                });
            }
        };
        b.for_(0u32, count, THREADS, |b, base| {
            let i = b.add(base, self.thread);
            let mine = b.lt(i, count);
            b.if_(mine, |b| {
                let row = row(b, i);
                let weight = weight(b, row);
                b.store(weights, self.thread, weight);
            });
            b.barrier();
            let rest = b.sub(count, base);
            let here = b.min(rest, THREADS);
            b.for_(0u32, here, 1u32, |b, j| {
                let weight = b.load(weights, j);
                let i = b.add(base, j);
                let row = row(b, i);
                let start = b.mul(row, d);
                each(b, start, &|b, at, sum| {
                    let x = self.inputs[input].load_as(b, self.ty, at);
                    b.assign_op(sum, Opcode::Fma, &[weight, x, sum]);
                });
            });
            b.barrier();
        });
        let start = b.mul(to, d);
        each(b, start, &|b, at, sum| {
            let x = b.mul(sum, number(self.ty, factor));
            out.store(b, at, x);
        });
    }

    /// The first key of a query's head, and how many keys the query sees.
    fn keys_of(&self, b: &mut Builder, query: Value) -> (Value, Value) {
        let Sizes { n, m, .. } = self.sizes;
        let (head, i) = (b.div(query, n as u32), b.rem(query, n as u32));
        let of_keys = b.div(head, self.sizes.group() as u32);
        let first = b.mul(of_keys, m as u32);
        let seen = if self.op.causal { b.add(i, (m - n + 1) as u32) } else { Value::from(m as u32) };
        (first, seen)
    }

    /// The row of the gradients by the queries.
    fn by_query(&self, b: &mut Builder, query: Value, out: &TensorArg) {
        let (first, seen) = self.keys_of(b, query);
        let sum = self.inputs[4].load_as(b, self.ty, query);
        let delta = self.dot(b, (5, query), (3, query));
        let slope = |b: &mut Builder, key: Value| {
            let weight = self.weight(b, query, key, sum);
            self.slope(b, weight, query, key, delta)
        };
        let key = |b: &mut Builder, j: Value| b.add(first, j);
        self.weigh(b, (1, seen, self.op.scale.into()), key, slope, (out, query));
    }

    /// Row `to` of the gradients, by a key or, with `values`, by its value.
    fn by_key(&self, b: &mut Builder, key: Value, values: bool, out: &TensorArg, to: Value) {
        let Sizes { n, m, .. } = self.sizes;
        let group = self.sizes.group() as u32;
        let (head, j) = (b.div(key, m as u32), b.rem(key, m as u32));
        // The first query that sees the key.
        let first = if self.op.causal {
            let first = b.max(j, (m - n) as u32);
            b.sub(first, (m - n) as u32)
        } else {
            b.sub(j, j)
        };
        let per_head = b.sub(n as u32, first);
        let query = |b: &mut Builder, i: Value| {
            let (of_group, i) = (b.div(i, per_head), b.rem(i, per_head));
            let own = b.mul(head, group);
            let own = b.add(own, of_group);
            let at = b.mul(own, n as u32);
            let at = b.add(at, first);
            b.add(at, i)
        };
        let weight = |b: &mut Builder, query: Value| {
            let sum = self.inputs[4].load_as(b, self.ty, query);
            self.weight(b, query, key, sum)
        };
        let slope = |b: &mut Builder, query: Value| {
            let weight = weight(b, query);
            let delta = self.dot(b, (5, query), (3, query));
            self.slope(b, weight, query, key, delta)
        };
        let count = b.mul(per_head, group);
        match values {
            true => self.weigh(b, (5, count, 1.0), query, weight, (out, to)),
            false => self.weigh(b, (0, count, self.op.scale.into()), query, slope, (out, to)),
        }
    }
}

impl Op for FlashAttention {
    fn operation(&self) -> Operation {
        Operation::FlashAttention { scale: self.scale.into(), causal: self.causal, part: self.part }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let (q, k, rest) = match (inputs, self.part) {
            ([q, k], Flash::Sums) => (*q, *k, None),
            ([q, k, v], Flash::Result) if v == k => (*q, *k, None),
            ([q, k, v, result, sums, grad], Flash::Gradients) if v == k && result == q && grad == q => {
                (*q, *k, Some(*sums))
            }
            _ => return Err("takes q, k and v like k; for gradients also a result and its gradient like q".into()),
        };
        let Some(ty) = plain(q.format).filter(|_| is_float(q.format) && k.format == q.format) else {
            return Err("takes floats of one type".into());
        };
        let size = |d: &Dim| match d {
            Dim::Fixed(n) => Some(*n),
            Dim::Extent(_) => None,
        };
        let shapes = [q, k].map(|t| t.shape.iter().map(size).collect::<Option<Vec<_>>>());
        let [Some(of_q), Some(of_k)] = shapes else { return Err("takes no run-time extents".into()) };
        let ([outer @ .., h, n, d], [of_keys @ .., heads, m, e]) = (of_q.as_slice(), of_k.as_slice()) else {
            return Err("takes q [.., h, n, d], and k and v [.., k, m, d]".into());
        };
        if outer != of_keys || d != e || *d == 0 || *m == 0 {
            return Err("queries and keys must be alike in all but the number of heads and of positions".into());
        }
        if *heads == 0 || !h.is_multiple_of(*heads) {
            return Err("the heads of queries must be a multiple of those of keys and values".into());
        }
        if self.causal && n > m {
            return Err("there are more queries than keys".into());
        }
        let sums = TensorType::new(DType::Plain(computed(ty)), &q.shape[..q.shape.len() - 1]);
        if rest.is_some_and(|rest| *rest != sums) {
            return Err(format!("takes sums of {}", sums.format.name()).into());
        }
        Ok(match self.part {
            Flash::Result => q.clone(),
            Flash::Sums => sums,
            Flash::Gradients => {
                let [q, k] = [of_q, of_k].map(|shape| shape.iter().product::<usize>());
                TensorType::new(DType::Plain(ty), [Dim::Fixed(q + 2 * k)])
            }
        })
    }

    /// One workgroup per row of the result. Threads share the scores of a row, then each sums up its elements.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let ty = computed(plain(spec.inputs[0].format).unwrap_or(Type::F32));
        let sizes = Sizes::of_spec(spec).unwrap_or(Sizes { heads: 0, key_heads: 0, n: 0, m: 0, d: 0 });
        let (queries, keys) = (sizes.heads * sizes.n, sizes.key_heads * sizes.m);
        let mut k = Kernel::new(spec, THREADS);
        let shared = ["first", "second"].map(|name| k.b.shared(name, ty, THREADS));
        let thread = k.b.builtin(Opcode::ThreadX);
        let row = k.b.builtin(Opcode::GroupX);
        let rows = Rows { op: *self, sizes, ty, inputs: k.inputs.clone(), thread, shared };
        let (out, b) = (k.output.clone(), &mut k.b);
        let count = if self.part == Flash::Gradients { queries + 2 * keys } else { queries };
        let inside = b.lt(row, count as u32);
        b.if_(inside, |b| match self.part {
            Flash::Sums => {
                let (first, seen) = rows.keys_of(b, row);
                let sum = rows.sum(b, row, first, seen);
                let leads = b.eq(thread, 0u32);
                b.if_(leads, |b| out.store(b, row, sum));
            }
            Flash::Result => {
                let (first, seen) = rows.keys_of(b, row);
                let sum = rows.sum(b, row, first, seen);
                let key = |b: &mut Builder, j: Value| b.add(first, j);
                let weight = |b: &mut Builder, key: Value| rows.weight(b, row, key, sum);
                rows.weigh(b, (2, seen, 1.0), key, weight, (&out, row));
            }
            Flash::Gradients => {
                let by_query = b.lt(row, queries as u32);
                b.if_else(
                    by_query,
                    |b| rows.by_query(b, row, &out),
                    |b| {
                        let key = b.sub(row, queries as u32);
                        let by_key = b.lt(key, keys as u32);
                        b.if_else(
                            by_key,
                            |b| rows.by_key(b, key, false, &out, row),
                            |b| {
                                let value = b.sub(key, keys as u32);
                                rows.by_key(b, value, true, &out, row);
                            },
                        );
                    },
                );
            }
        });
        k.finish(count)
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let (Flash::Result, [q, k, v]) = (self.part, call.inputs) else {
            return Err(crate::graph::no_derivative(self.name()));
        };
        let options = TensorAttention { scale: Some(self.scale.into()), causal: self.causal };
        let sums = g.flash_attention_sums(*q, *k, &options)?;
        let all = g.flash_attention_gradients([*q, *k, *v], call.output, sums, call.grad, &options)?;
        let mut start = 0;
        let part = |of: &NodeId| {
            let shape = g.shape_of(*of).to_vec();
            let len: usize = g.fixed_shape(*of).unwrap_or_default().iter().product();
            start += len;
            let flat = g.slice(all, 0, start - len, start)?;
            g.reshape(flat, &shape).map(Some)
        };
        call.inputs.iter().map(part).collect()
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        match Values::of(self, inputs) {
            Some(values) if self.part == Flash::Gradients => values.gradients(),
            Some(values) => values.forward(),
            None => Reference::default(),
        }
    }
}

/// The operands of a reference.
struct Values<'a> {
    op: &'a FlashAttention,
    sizes: Sizes,
    format: DType,
    inputs: Vec<&'a [f64]>,
}

/// A sum with its bound: the errors of its terms, and the sum of their squares.
#[derive(Clone, Copy, Default)]
struct Sum {
    value: f64,
    off: f64,
    squares: f64,
    terms: f64,
}

impl Sum {
    /// Adds x·y, where x is off by up to `off`.
    fn add(&mut self, x: f64, y: f64, off: f64) {
        self.value += x * y;
        self.off += off * y.abs();
        self.squares += (x * y).powi(2);
        self.terms += 1.0;
    }

    fn bound(&self, format: DType) -> f64 {
        self.off + sum_bound(format, self.terms, self.value, self.squares)
    }
}

impl<'a> Values<'a> {
    fn of(op: &'a FlashAttention, inputs: &'a [HostTensor]) -> Option<Values<'a>> {
        let [q, k, ..] = inputs else { return None };
        let sizes = Sizes::of(&q.shape, &k.shape)?;
        Some(Values { op, sizes, format: q.format, inputs: inputs.iter().map(|t| &t.values[..]).collect() })
    }

    fn row(&self, input: usize, row: usize) -> &'a [f64] {
        &self.inputs[input][row * self.sizes.d..][..self.sizes.d]
    }

    /// The product of the rows of two inputs.
    fn dot(&self, x: (usize, usize), y: (usize, usize)) -> Sum {
        let mut sum = Sum::default();
        self.row(x.0, x.1).iter().zip(self.row(y.0, y.1)).for_each(|(x, y)| sum.add(*x, *y, 0.0));
        sum
    }

    /// The keys that query `i` of a head sees.
    fn seen(&self, head: usize, i: usize) -> std::ops::Range<usize> {
        let Sizes { n, m, .. } = self.sizes;
        let first = head / self.sizes.group() * m;
        first..first + if self.op.causal { i + 1 + m - n } else { m }
    }

    /// Half a unit in the last place of a weight that is rounded, relative, and half the least step.
    fn rounding(&self) -> (f64, f64) {
        match self.format {
            DType::Plain(Type::F16) => (2f64.powi(-11), 2f64.powi(-25)),
            DType::Plain(Type::BF16) => (2f64.powi(-8), 0.0),
            _ => (0.0, 0.0),
        }
    }

    /// The result, or the sums.
    fn forward(&self) -> Reference {
        let (scale, eps) = (f64::from(self.op.scale), epsilon(self.format));
        let (relative, least) = self.rounding();
        let mut out = Reference::default();
        for (query, head) in (0..self.sizes.heads).flat_map(|h| std::iter::repeat_n(h, self.sizes.n)).enumerate() {
            let keys = self.seen(head, query % self.sizes.n);
            let dots: Vec<Sum> = keys.clone().map(|key| self.dot((0, query), (1, key))).collect();
            let scores: Vec<f64> = dots.iter().map(|dot| dot.value * scale).collect();
            let off = dots.iter().map(|dot| dot.bound(self.format)).fold(0.0, f64::max) * scale.abs();
            let greatest = scores.iter().fold(f64::MIN, |a, s| a.max(*s));
            let weights: Vec<f64> = scores.iter().map(|s| (s - greatest).exp()).collect();
            let total: f64 = weights.iter().sum();
            // An absolute error of a score is a relative error of its weight.
            let off = off + (widest(0.0, &scores) + 6.0 + (scores.len() as f64).sqrt()) * eps;
            if self.op.part == Flash::Sums {
                let sum = greatest + total.ln();
                out.push(sum, off + sum.abs() * eps);
                continue;
            }
            for e in 0..self.sizes.d {
                let mut sum = Sum::default();
                for (weight, key) in weights.iter().map(|w| w / total).zip(keys.clone()) {
                    sum.add(weight, self.row(2, key)[e], weight * (2.0 * off + relative) + least);
                }
                out.push(sum.value, stored(self.format, sum.value, sum.bound(self.format)));
            }
        }
        out
    }

    fn gradients(&self) -> Reference {
        let Sizes { heads, key_heads, n, m, d } = self.sizes;
        let (scale, eps) = (f64::from(self.op.scale), epsilon(self.format));
        let (relative, least) = self.rounding();
        let [mut by_q, mut by_k, mut by_v] =
            [heads * n, key_heads * m, key_heads * m].map(|n| vec![Sum::default(); n * d]);
        for (query, head) in (0..heads).flat_map(|h| std::iter::repeat_n(h, n)).enumerate() {
            let (sum, delta) = (self.inputs[4][query], self.dot((5, query), (3, query)));
            for key in self.seen(head, query % n) {
                let dot = self.dot((0, query), (1, key));
                let score = dot.value * scale;
                let weight = (score - sum).exp();
                let off_weight = weight
                    * (dot.bound(self.format) * scale.abs() + (score.abs() + sum.abs() + 6.0) * eps)
                    + f64::from(f32::MIN_POSITIVE);
                let by_weight = self.dot((5, query), (2, key));
                let slope = weight * (by_weight.value - delta.value);
                let off_slope = off_weight * (by_weight.value - delta.value).abs()
                    + weight * (by_weight.bound(self.format) + delta.bound(self.format))
                    + slope.abs() * 2.0 * eps;
                let (off_weight, off_slope) =
                    (off_weight + weight * relative + least, off_slope + (slope.abs() + off_slope) * relative + least);
                for e in 0..d {
                    by_q[query * d + e].add(slope, self.row(1, key)[e], off_slope);
                    by_k[key * d + e].add(slope, self.row(0, query)[e], off_slope);
                    by_v[key * d + e].add(weight, self.row(5, query)[e], off_weight);
                }
            }
        }
        let mut out = Reference::default();
        for (sums, factor) in [(by_q, scale), (by_k, scale), (by_v, 1.0)] {
            for sum in sums {
                let (value, bound) = (sum.value * factor, sum.bound(self.format) * factor.abs());
                out.push(value, stored(self.format, value, bound + value.abs() * eps));
            }
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let case = |part: Flash, ty: Type, [outer, heads, of_keys]: [usize; 3], [n, m, d]: [usize; 3], causal: bool| {
        let shape = |sizes: &[usize]| sizes.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
        let tensor = |heads: usize, n: usize| CaseInput::normal(DType::Plain(ty), &shape(&[outer, heads, n, d]));
        let case = Case::new(FlashAttention { scale: 1.0 / (d as f32).sqrt(), causal, part }, &[]);
        let case = case.input(tensor(heads, n)).input(tensor(of_keys, m));
        match part {
            Flash::Sums => case,
            Flash::Result => case.input(tensor(of_keys, m)),
            Flash::Gradients => {
                // Sums as those of so many keys, so that weights are about as large as in a model.
                let sum = |i: usize| (m as f32).ln() + (i * 37 % 64) as f32 / 64.0;
                let sums = CaseInput {
                    format: DType::Plain(computed(ty)),
                    shape: shape(&[outer, heads, n]),
                    fill: Fill::Values((0..outer * heads * n).map(sum).collect()),
                };
                let case = case.input(tensor(of_keys, m)).input(tensor(heads, n));
                case.input(sums).input(tensor(heads, n))
            }
        }
    };
    let mut cases = Vec::new();
    for part in [Flash::Result, Flash::Sums, Flash::Gradients] {
        for ty in [Type::F32, Type::F16, Type::BF16, Type::F64] {
            cases.push(case(part, ty, [1, 1, 1], [1, 1, 8], false));
            cases.push(case(part, ty, [2, 4, 2], [5, 7, 20], true));
            cases.push(case(part, ty, [1, 2, 1], [70, 70, 8], true));
        }
        // Heads that native kernels serve: less than a tile, several tiles with a part of one, and shared keys.
        for ty in [Type::F16, Type::BF16] {
            cases.push(case(part, ty, [1, 1, 1], [3, 20, 64], false));
            cases.push(case(part, ty, [1, 2, 2], [150, 150, 64], true));
            cases.push(case(part, ty, [1, 1, 1], [70, 137, 128], true));
            cases.push(case(part, ty, [1, 2, 1], [40, 33, 128], false));
        }
        cases.push(case(part, Type::BF16, [1, 2, 1], [140, 301, 64], true));
        cases.push(case(part, Type::F32, [1, 1, 1], [0, 3, 8], false));
    }
    cases
}
