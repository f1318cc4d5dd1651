//! References of whole graphs: each value has a bound that includes the bounds of the values it is computed from.

use hologram_backends::{DType, Elementwise, Operation, RopeStyle};

use super::{HostTensor, Reference, recurrent};
use crate::error::{CoreError, Result};
use crate::graph::{Graph, NodeId, Source};
use crate::layout::Layout;
use crate::ops::{self, SharedOp};
use crate::tensor::Dim;

/// A value of a graph with the maximum absolute deviation of each element.
#[derive(Clone, Debug)]
pub(super) struct Bounded {
    pub tensor: HostTensor,
    pub bounds: Vec<f64>,
}

impl Bounded {
    /// The form that results are compared with.
    pub fn reference(&self) -> Reference {
        Reference { values: self.tensor.values.clone(), bounds: self.bounds.clone() }
    }

    fn elements(&self) -> impl Iterator<Item = (f64, f64)> {
        self.tensor.values.iter().copied().zip(self.bounds.iter().copied())
    }
}

/// Computes the values of all nodes from those of the leaves; also returns the newest version of each state. An extent
/// is a pair of maximum and actual value.
///
/// # Errors
/// When an operation's operand is inexact and its error propagation is not known.
pub(super) fn evaluate(
    graph: &Graph,
    extents: &[(usize, usize)],
    leaves: &[(NodeId, Bounded)],
) -> Result<(Vec<Bounded>, Vec<NodeId>)> {
    let mut values: Vec<Bounded> = Vec::with_capacity(graph.nodes.len());
    let mut newest: Vec<NodeId> = Vec::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        let id = graph.node(i);
        let size = |d: &Dim| match d {
            Dim::Fixed(n) => *n,
            Dim::Extent(e) => extents.get(*e as usize).map_or(0, |(_, actual)| *actual),
        };
        let shape: Vec<usize> = node.ty.shape.iter().map(size).collect();
        let value = match &node.source {
            Source::Input { .. } | Source::Tensor(_) => {
                let leaf = leaves.iter().find(|(leaf, _)| *leaf == id);
                leaf.map(|(_, value)| value.clone())
                    .ok_or_else(|| CoreError::Graph(format!("leaf {i} has no value")))?
            }
            Source::View(of, _) => {
                let of = &values[of.0 as usize];
                match &node.layout {
                    Some(layout) => viewed(of, &shape, layout),
                    None => Bounded { tensor: HostTensor { shape, ..of.tensor.clone() }, bounds: of.bounds.clone() },
                }
            }
            Source::Part { .. } => return Err(CoreError::Graph("a case runs on one device".into())),
            Source::Op { op, inputs } => {
                let operands: Vec<&Bounded> = inputs.iter().map(|input| &values[input.0 as usize]).collect();
                let exact: Vec<HostTensor> = operands.iter().map(|o| o.tensor.clone()).collect();
                let reference = op.reference(&exact);
                let bounds = carried(op, node.ty.format, &operands, &reference)
                    .ok_or_else(|| CoreError::Graph(format!("{}: an inexact operand", op.name())))?;
                let tensor = HostTensor { format: node.ty.format, shape, values: reference.values };
                Bounded { tensor, bounds }
            }
        };
        values.push(value);
        if let Some(state) = node.state {
            if newest.len() <= state {
                newest.resize(state + 1, id);
            }
            newest[state] = id;
        }
    }
    Ok((values, newest))
}

/// The bounds of an operation's result in this format, with the operands' bounds propagated. `None`: the operation's
/// error propagation is not known.
fn carried(op: &SharedOp, format: DType, operands: &[&Bounded], own: &Reference) -> Option<Vec<f64>> {
    if operands.iter().all(|o| o.bounds.iter().all(|b| *b == 0.0)) {
        return Some(own.bounds.clone());
    }
    let inherited: Vec<f64> = match (op.operation(), operands) {
        (Operation::Elementwise(Elementwise::Add), [a, b]) => broadcast(a, b, |(_, a), (_, b)| a + b),
        (Operation::Elementwise(Elementwise::Mul), [a, b]) => {
            broadcast(a, b, |(a, of_a), (b, of_b)| a.abs() * of_b + of_a * (b.abs() + of_b))
        }
        (Operation::Elementwise(Elementwise::Max), [a, b]) => broadcast(a, b, |(_, a), (_, b)| a.max(b)),
        (Operation::Elementwise(Elementwise::Abs | Elementwise::Neg) | Operation::Copy, [x]) => x.bounds.clone(),
        (Operation::Elementwise(Elementwise::Exp), [x]) => x.elements().map(|(v, b)| v.exp() * b.exp_m1()).collect(),
        // For numbers above 0.
        (Operation::Elementwise(Elementwise::Log1p), [x]) if x.tensor.values.iter().all(|v| *v >= 0.0) => {
            x.bounds.clone()
        }
        // The slope of silu is at most 1.1.
        (Operation::Elementwise(Elementwise::Silu), [x]) => x.bounds.iter().map(|b| 1.1 * b).collect(),
        // The slope of GELU is at most 1.13.
        (Operation::Elementwise(Elementwise::Gelu), [x]) => x.bounds.iter().map(|b| 1.13 * b).collect(),
        (Operation::Elementwise(Elementwise::Swiglu), [gate, up]) => pairs(gate, up, |(g, bg), (u, bu)| {
            // The slope of silu is at most 1.1.
            let silu = (g / (1.0 + (-g).exp())).abs();
            1.1 * bg * u.abs() + (silu + 1.1 * bg) * bu
        }),
        (Operation::Elementwise(Elementwise::Relu2Mul), [gate, up]) => pairs(gate, up, |(g, bg), (u, bu)| {
            let (least, most) = (g.max(0.0), g.max(0.0) + bg);
            (most * most - least * least) * u.abs() + most * most * bu
        }),
        (Operation::Elementwise(Elementwise::ClampedSwiglu), [gate, up]) => pairs(gate, up, |(g, bg), (u, bu)| {
            // The slope of x·σ(1.702·x) is at most 1.1.
            let (g, u) = (g.min(7.0), u.clamp(-7.0, 7.0) + 1.0);
            let weighted = (g / (1.0 + (-1.702 * g).exp())).abs();
            1.1 * bg * u.abs() + (weighted + 1.1 * bg) * bu
        }),
        (Operation::Cast, [x]) => x.elements().map(|(v, b)| rounding(v, b, format)).collect(),
        (Operation::Quantize { group, floor }, [x]) => quantized(group as usize, floor.get().into(), x),
        (Operation::Matmul, [x, w]) => product(x, w)?,
        // The cases' values are far apart: their order is that of the exact ones.
        (Operation::TopK { .. }, [_]) => vec![0.0; own.bounds.len()],
        (Operation::Take { .. }, [x, ids]) => taken(x, ids),
        (Operation::Softmax { log: false, axis }, [x]) if axis as usize + 1 == x.tensor.shape.len() => softmax(x, own),
        (Operation::ExpertMatmul { .. }, _) => expert_product(op, operands)?,
        (Operation::ExpertSum, [x, weights]) => expert_sum(x, weights)?,
        (Operation::Rope { style }, [x, positions, frequencies]) => rotated(style, x, positions, frequencies)?,
        (Operation::KvAppend, [cache, x, slots]) => appended(cache, x, slots)?,
        (Operation::RecurrentState(rule), _) => recurrent::recurred(rule, true, operands)?,
        (Operation::Recurrence(rule), _) => recurrent::recurred(rule, false, operands)?,
        // Of more inputs only sinks are known: first positions come with exact operands alone.
        (Operation::Attention { scale, window, cap, .. }, [q, k, v, positions, sequences, table, sinks @ ..])
            if sinks.iter().all(|s| s.tensor.format == DType::F32) =>
        {
            let cap = cap.map(|cap| cap.get().into());
            let sinks = sinks.first().map(|s| &s.tensor);
            attended((scale.get().into(), window, cap), [q, k, v], [positions, sequences, table], sinks)?
        }
        _ => return None,
    };
    Some(inherited.iter().zip(&own.bounds).map(|(a, b)| a + b).collect())
}

/// The elements of a view.
fn viewed(of: &Bounded, shape: &[usize], layout: &Layout) -> Bounded {
    let mut places = vec![layout.offset];
    for (size, stride) in shape.iter().zip(&layout.strides) {
        places = places.iter().flat_map(|at| (0..*size).map(move |i| at + i * stride)).collect();
    }
    let (values, bounds) = places.iter().map(|at| (of.tensor.values[*at], of.bounds[*at])).unzip();
    Bounded { tensor: HostTensor { format: of.tensor.format, shape: shape.to_vec(), values }, bounds }
}

/// A bound per element of two operands that are broadcast to the shape of the larger.
fn broadcast(a: &Bounded, b: &Bounded, bound: impl Fn((f64, f64), (f64, f64)) -> f64) -> Vec<f64> {
    let rank = a.tensor.shape.len().max(b.tensor.shape.len());
    let padded = |x: &Bounded| [vec![1; rank - x.tensor.shape.len()], x.tensor.shape.clone()].concat();
    let shapes = [padded(a), padded(b)];
    let shape: Vec<usize> = shapes[0].iter().zip(&shapes[1]).map(|(a, b)| if *a == 1 { *b } else { *a }).collect();
    let [a, b] = [(a, &shapes[0]), (b, &shapes[1])].map(|(x, own)| {
        let mut layout = Layout::dense(own);
        layout.strides.iter_mut().zip(own).filter(|(_, n)| **n == 1).for_each(|(stride, _)| *stride = 0);
        viewed(x, &shape, &layout)
    });
    pairs(&a, &b, bound)
}

fn pairs(a: &Bounded, b: &Bounded, bound: impl Fn((f64, f64), (f64, f64)) -> f64) -> Vec<f64> {
    a.elements().zip(b.elements()).map(|(a, b)| bound(a, b)).collect()
}

/// The maximum deviation, after rounding to a format, of a value that is off by at most `bound`.
fn rounding(value: f64, bound: f64, format: DType) -> f64 {
    let rounded = |v: f64| ops::rounded(v, format);
    (rounded(value + bound) - rounded(value)).abs().max((rounded(value - bound) - rounded(value)).abs())
}

/// A code moves to the next where the quotient comes near a tie; the scale moves with the group's maximum magnitude.
fn quantized(group: usize, floor: f64, x: &Bounded) -> Vec<f64> {
    let mut inherited = Vec::with_capacity(x.bounds.len());
    for (values, bounds) in x.tensor.values.chunks(group).zip(x.bounds.chunks(group)) {
        let greatest = values.iter().fold(floor, |a, v| a.max(v.abs()));
        let widest = bounds.iter().fold(0.0f64, |a, b| a.max(*b));
        let (scale, relative) = (greatest / 127.0, widest / greatest);
        for (v, b) in values.iter().zip(bounds) {
            if greatest == 0.0 {
                inherited.push(widest);
                continue;
            }
            let code = v / scale;
            let off = b / scale + code.abs() * (relative + f64::from(f32::EPSILON));
            let tie = (code - code.floor() - 0.5).abs() <= off;
            let steps = off.floor() + f64::from(u8::from(tie));
            inherited.push(steps * scale + v.abs() * relative);
        }
    }
    inherited
}

/// Requires exact weights. A weight that the operation rounds grows by less than a hundredth.
fn product(x: &Bounded, w: &Bounded) -> Option<Vec<f64>> {
    let k = x.tensor.row_len();
    if w.bounds.iter().any(|b| *b != 0.0) || k == 0 {
        return None;
    }
    let mut inherited = Vec::new();
    for bounds in x.bounds.chunks(k) {
        for weights in w.tensor.values.chunks(k) {
            let sum: f64 = bounds.iter().zip(weights).map(|(b, w)| b * w.abs()).sum();
            inherited.push(1.01 * sum);
        }
    }
    Some(inherited)
}

/// Elements of rows by their indices.
fn taken(x: &Bounded, ids: &Bounded) -> Vec<f64> {
    let rows = x.bounds.chunks(x.tensor.row_len().max(1)).zip(ids.tensor.values.chunks(ids.tensor.row_len().max(1)));
    rows.flat_map(|(bounds, ids)| ids.iter().map(|id| bounds.get(*id as usize).copied().unwrap_or(0.0))).collect()
}

/// As [`product`], by the operation itself on bounds and magnitudes.
fn expert_product(op: &SharedOp, operands: &[&Bounded]) -> Option<Vec<f64>> {
    let [x, w, ids, bias @ ..] = operands else { return None };
    if bias.iter().chain([w]).any(|of| of.bounds.iter().any(|b| *b != 0.0)) {
        return None;
    }
    let of = |tensor: &HostTensor, values: Vec<f64>| HostTensor { values, ..tensor.clone() };
    let bounds = of(&x.tensor, x.bounds.clone());
    let magnitudes = of(&w.tensor, w.tensor.values.iter().map(|v| v.abs()).collect());
    let sums = op.reference(&[bounds, magnitudes, ids.tensor.clone()]);
    Some(sums.values.iter().map(|v| 1.01 * v).collect())
}

/// A probability changes by a factor of at most e to the power of twice the widest deviation.
fn softmax(x: &Bounded, own: &Reference) -> Vec<f64> {
    let d = x.tensor.row_len().max(1);
    let rows = own.values.chunks(d).zip(x.bounds.chunks(d));
    let widest = |bounds: &[f64]| bounds.iter().fold(0.0f64, |a, b| a.max(*b));
    rows.flat_map(|(values, bounds)| values.iter().map(move |v| v * (2.0 * widest(bounds)).exp_m1())).collect()
}

/// Requires exact weights.
fn expert_sum(x: &Bounded, weights: &Bounded) -> Option<Vec<f64>> {
    let slots = weights.tensor.row_len();
    if slots == 0 || weights.bounds.iter().any(|b| *b != 0.0) {
        return None;
    }
    let m = x.tensor.row_len() / slots;
    let mut inherited = Vec::new();
    for (bounds, weights) in x.bounds.chunks(slots * m).zip(weights.tensor.values.chunks(slots)) {
        for column in 0..m {
            inherited.push(bounds.iter().skip(column).step_by(m).zip(weights).map(|(b, w)| b * w.abs()).sum());
        }
    }
    Some(inherited)
}

/// Requires exact positions and frequencies.
fn rotated(style: RopeStyle, x: &Bounded, positions: &Bounded, frequencies: &Bounded) -> Option<Vec<f64>> {
    let [_, heads, d] = x.tensor.shape[..] else { return None };
    let frequencies = &frequencies.tensor.values;
    let pairs = frequencies.len();
    let mut inherited = x.bounds.clone();
    for (row, bounds) in x.bounds.chunks(d).enumerate() {
        let position = *positions.tensor.values.get(row / heads)?;
        for (pair, frequency) in frequencies.iter().enumerate() {
            let (a, b) = match style {
                RopeStyle::Adjacent => (2 * pair, 2 * pair + 1),
                RopeStyle::HalfSplit => (pair, pair + pairs),
            };
            let (sin, cos) = (position * frequency).sin_cos();
            for (to, other) in [(a, b), (b, a)] {
                inherited[row * d + to] = bounds[to] * cos.abs() + bounds[other] * sin.abs();
            }
        }
    }
    Some(inherited)
}

fn appended(cache: &Bounded, x: &Bounded, slots: &Bounded) -> Option<Vec<f64>> {
    let [_, heads, block_size, d] = cache.tensor.shape[..] else { return None };
    let mut bounds = cache.bounds.clone();
    let rows = x.tensor.values.chunks(d).zip(x.bounds.chunks(d));
    for (row, (values, of_values)) in rows.enumerate() {
        let (slot, head) = (*slots.tensor.values.get(row / heads)? as usize, row % heads);
        let at = ((slot / block_size * heads + head) * block_size + slot % block_size) * d;
        for ((bound, v), b) in bounds.get_mut(at..at + d)?.iter_mut().zip(values).zip(of_values) {
            *bound = rounding(*v, *b, cache.tensor.format);
        }
    }
    Some(bounds)
}

/// A score that is off by δ puts its weight, and therefore the sum of all weights, off by a factor of up to e^δ. A cap
/// moves scores no further apart.
fn attended(
    (scale, window, cap): (f64, Option<u32>, Option<f64>),
    [q, k, v]: [&Bounded; 3],
    indices: [&Bounded; 3],
    sinks: Option<&HostTensor>,
) -> Option<Vec<f64>> {
    let [positions, sequences, table] = indices.map(|i| &i.tensor);
    let ([_, heads, d], [_, kv_heads, block_size, _]) = (&q.tensor.shape[..], &k.tensor.shape[..]) else { return None };
    let (heads, d) = (*heads, *d);
    let mut inherited = Vec::with_capacity(q.bounds.len());
    for row in 0..q.bounds.len() / d {
        let (token, kv_head) = (row / heads, row % heads / (heads / kv_heads));
        let (of_q, bounds_of_q) = (&q.tensor.values[row * d..][..d], &q.bounds[row * d..][..d]);
        // Per position: the start of its row in the caches, and its score. `off` is the maximum deviation of the
        // scores.
        let mut scores: Vec<(usize, f64)> = Vec::new();
        let mut off: f64 = 0.0;
        let (position, window) = (positions.values[token] as usize, window);
        let first = window.map_or(0, |window| (position + 1).saturating_sub(window as usize));
        for p in first..=position {
            let entry = sequences.values[token] as usize * table.row_len() + p / block_size;
            let at = ((table.values[entry] as usize * kv_heads + kv_head) * block_size + p % block_size) * d;
            let (of_k, bounds_of_k) = (&k.tensor.values[at..at + d], &k.bounds[at..at + d]);
            let (mut score, mut bound) = (0.0, 0.0);
            for e in 0..d {
                score += of_q[e] * of_k[e];
                bound += of_q[e].abs() * bounds_of_k[e] + bounds_of_q[e] * (of_k[e].abs() + bounds_of_k[e]);
            }
            let score = score * scale;
            scores.push((at, cap.map_or(score, |cap| cap * (score / cap).tanh())));
            off = off.max(bound * scale.abs());
        }
        let sink = sinks.map(|sinks| sinks.values[row % heads]);
        let greatest = scores.iter().map(|(_, s)| s).chain(&sink).fold(f64::MIN, |a, s| a.max(*s));
        let total: f64 = scores.iter().map(|(_, s)| s).chain(&sink).map(|s| (s - greatest).exp()).sum();
        for e in 0..d {
            let terms = scores.iter().map(|(at, s)| {
                let weight = (s - greatest).exp() / total;
                let bound = v.bounds[at + e];
                weight * bound + (2.0 * off).exp_m1() * weight * (v.tensor.values[at + e].abs() + bound)
            });
            inherited.push(terms.sum());
        }
    }
    Some(inherited)
}
