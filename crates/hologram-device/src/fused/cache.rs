//! Groups of attention: rotary embedding and the cache's updates with what surrounds them.

use super::{Conversion, FusedNorm, Nodes};
use crate::{DType, F32, GroupNode, Operand, Operation, RopeStyle, TensorSpec};

/// `[rms_norm rms_norm]? rope rope kv_append kv_append [attention [cast]?]?`: rotated keys, and values unchanged, are
/// appended to caches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheUpdate {
    /// Queries, keys and values of the step, before norms.
    pub q: usize,
    /// Keys.
    pub k: usize,
    /// Values.
    pub v: usize,
    /// The tokens' positions.
    pub positions: usize,
    /// Radians per position of each pair.
    pub frequencies: usize,
    /// Which elements form a pair.
    pub style: RopeStyle,
    /// The cache of keys.
    pub keys: usize,
    /// The cache of values.
    pub values: usize,
    /// Where each token's rows go.
    pub slots: usize,
    /// The norms of each head's queries and keys before their rotation, with the same ε.
    pub norms: Option<[FusedNorm; 2]>,
    /// The attention over the updated caches; without it the rotated queries are the result.
    pub attention: Option<FusedAttention>,
}

impl CacheUpdate {
    /// The node of attention in a group that has it.
    pub fn attention_node(&self) -> usize {
        if self.norms.is_some() { 6 } else { 4 }
    }
}

/// The attention of a [`CacheUpdate`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedAttention {
    /// The tokens' sequences.
    pub sequences: usize,
    /// The block table.
    pub table: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// How many positions a token sees; all for `None`.
    pub window: Option<u32>,
    /// Scores s become `cap`·tanh(s / `cap`).
    pub cap: Option<f32>,
    /// Per head a score without a value.
    pub sinks: Option<usize>,
    /// Whether the result is converted to `bf16`.
    pub bf16: bool,
}

impl Nodes<'_> {
    pub(super) fn cache_update(&self) -> Option<CacheUpdate> {
        let of_norms = match self.nodes {
            [a, b, ..] if [a, b].iter().all(|n| matches!(n.op, Operation::RmsNorm { .. })) => Some([a, b]),
            _ => None,
        };
        // Nodes before the first rotation.
        let before = if of_norms.is_some() { 2 } else { 0 };
        let [first, second, third, fourth, rest @ ..] = self.nodes.get(before..)? else { return None };
        // The input of a rotation, or of the norm before it.
        let rotated = |x: Operand| match (x, of_norms) {
            (Operand::Node(i @ 0..=1), Some(norms)) => {
                let (x, norm) = self.norm(norms[i])?;
                let x = self.input(x)?;
                (norms[i].output == self.inputs[x]).then_some((x, Some(norm)))
            }
            (x, None) => Some((self.input(x)?, None)),
            _ => None,
        };
        let rope = |node: &GroupNode| {
            let (Operation::Rope { style }, [x, positions, frequencies]) = (&node.op, &node.operands[..]) else {
                return None;
            };
            let (x, norm) = rotated(*x)?;
            let read = (x, self.input(*positions)?, self.input(*frequencies)?, *style, norm);
            (node.in_place.is_none() && node.output == self.inputs[x]).then_some(read)
        };
        let append = |node: &GroupNode| {
            let (Operation::KvAppend, [cache, x, slots]) = (&node.op, &node.operands[..]) else { return None };
            let cache = self.input(*cache)?;
            let plain = node.in_place == Some(0) && node.output == self.inputs[cache];
            plain.then_some((cache, *x, self.input(*slots)?))
        };
        let ropes = [rope(first)?, rope(second)?];
        // The nodes of the keys' and of the values' cache, in either order, as those after them are counted from the
        // first rotation.
        let (k_node, v_node, of_keys, of_values) = match (append(third)?, append(fourth)?) {
            (k @ (_, Operand::Node(_), _), v @ (_, Operand::Input(_), _)) => (2, 3, k, v),
            (v @ (_, Operand::Input(_), _), k @ (_, Operand::Node(_), _)) => (3, 2, k, v),
            _ => return None,
        };
        let ((keys, Operand::Node(k_rope), slots), (values, v, v_slots)) = (of_keys, of_values) else {
            return None;
        };
        let k_rope = k_rope.checked_sub(before).filter(|i| *i < 2)?;
        let (q_node, v) = (1 - k_rope, self.input(v)?);
        let ((q, positions, frequencies, style, q_norm), (k, .., k_norm)) = (ropes[q_node], ropes[k_rope]);
        let alike = ropes[0].1 == ropes[1].1 && ropes[0].2 == ropes[1].2 && ropes[0].3 == ropes[1].3;
        if !alike || v_slots != slots || keys == values {
            return None;
        }
        let norms = q_norm.zip(k_norm).map(|(q, k)| [q, k]);
        if norms.is_some_and(|[q, k]| q.eps.to_bits() != k.eps.to_bits() || ropes[0].0 == ropes[1].0) {
            return None;
        }
        let update =
            CacheUpdate { q, k, v, positions, frequencies, style, keys, values, slots, norms, attention: None };
        let of = |node: usize| Operand::Node(before + node);
        match (rest, self.outputs) {
            ([], [only]) if *only == before + q_node => Some(update),
            ([node, casts @ ..], [last]) if *last == before + 4 + casts.len() => {
                let Operation::Attention { scale, window, cap, .. } = node.op else { return None };
                let [of_q, of_k, of_v, at, sequences, table, ref more @ ..] = node.operands[..] else { return None };
                let sinks = match *more {
                    [] => None,
                    [sinks] => Some(self.input(sinks).filter(|i| self.inputs[*i].format == DType::F32)?),
                    _ => return None,
                };
                let bf16 = match casts {
                    [] => false,
                    [cast] => {
                        let (x, kind) = Self::conversion(cast)?;
                        // The product after it takes heads as one row.
                        let size = |t: &TensorSpec| (t.shape.first().copied(), t.max_rows() * t.row_len());
                        x == of(4)
                            && kind == Conversion::Cast
                            && cast.output.format == DType::BF16
                            && size(&cast.output) == size(&node.output)
                    }
                    _ => return None,
                };
                let ordered = node.in_place.is_none()
                    && bf16 != casts.is_empty()
                    && [of_q, of_k, of_v] == [q_node, k_node, v_node].map(of)
                    && at == Operand::Input(positions)
                    && node.output == self.inputs[q];
                let (sequences, table) = (self.input(sequences)?, self.input(table)?);
                let (scale, cap) = (scale.get(), cap.map(F32::get));
                let attention = Some(FusedAttention { sequences, table, scale, window, cap, sinks, bf16 });
                ordered.then_some(CacheUpdate { attention, ..update })
            }
            _ => None,
        }
    }
}
