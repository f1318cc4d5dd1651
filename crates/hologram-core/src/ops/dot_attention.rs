//! Scaled dot-product attention without a cache, as products and a softmax (Vaswani et al., 2017, arXiv:1706.03762).

use hologram_backends::DType;
use hologram_isa::Type;

use super::MatmulOptions;
use crate::error::{CoreError, Result};
use crate::graph::{Graph, NodeId};
use crate::tensor::{Dim, TensorAttention};

impl Graph {
    /// Scaled dot-product attention of queries `[.., h, n, d]`, keys `[.., k, m, d]` and values `[.., k, m, e]`:
    /// `[.., h, n, e]`. Each of the k heads of keys serves h/k heads of queries. The last query sees all keys.
    ///
    /// # Errors
    /// When the operands do not fit, or have a run-time extent.
    pub fn dot_product_attention(
        &mut self,
        q: NodeId,
        keys: NodeId,
        values: NodeId,
        options: &TensorAttention,
    ) -> Result<NodeId> {
        self.called("attention", |g| g.attention_of(q, keys, values, options))
    }

    fn attention_of(&mut self, q: NodeId, keys: NodeId, values: NodeId, options: &TensorAttention) -> Result<NodeId> {
        let shapes = [q, keys, values].map(|id| self.fixed_shape(id));
        let types = [q, keys, values].map(|id| self.operand("attention", id).map(|node| node.ty.clone()));
        let mut operands = Vec::new();
        for ty in types {
            operands.push(ty?.to_string());
        }
        let refuse = |reason: &str| CoreError::Operands {
            op: "attention",
            reason: reason.into(),
            operands: operands.join(", "),
        };
        let [Some(of_q), Some(of_keys), Some(of_values)] = shapes else {
            return Err(refuse("takes no run-time extents"));
        };
        let ([outer @ .., h, n, d], [.., k, m, _]) = (of_q.as_slice(), of_keys.as_slice()) else {
            return Err(refuse("takes q [.., h, n, d], k [.., k, m, d] and v [.., k, m, e]"));
        };
        if *k == 0 || !h.is_multiple_of(*k) || of_values.len() != of_keys.len() {
            return Err(refuse("the heads of queries must be a multiple of those of keys and values"));
        }
        if options.causal && n > m {
            return Err(refuse("there are more queries than keys"));
        }
        let dims =
            |outer: &[usize], inner: &[usize]| outer.iter().chain(inner).map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
        // Queries that share keys are rows of one product.
        let rows = self.reshape(q, &dims(outer, &[*k, h / k * n, *d]))?;
        let rows = self.mul_scalar(rows, options.scale.unwrap_or(1.0 / (*d as f64).sqrt()))?;
        let turned = MatmulOptions { transpose_b: true, ..MatmulOptions::default() };
        let scores = self.batch_matmul(rows, keys, &turned)?;
        let mut scores = self.reshape(scores, &dims(outer, &[*k, h / k, *n, *m]))?;
        if options.causal {
            let places = self.arange(Type::I32, 0.0, 1.0, Dim::Fixed(*m))?;
            let own = self.arange(Type::I32, (m - n) as f64, 1.0, Dim::Fixed(*n))?;
            let own = self.reshape(own, &dims(&[], &[*n, 1]))?;
            let seen = self.le(places, own)?;
            let DType::Plain(ty) = self.ty(scores).format else { return Err(refuse("takes floats")) };
            let hidden = self.scalar(ty, f64::NEG_INFINITY)?;
            scores = self.select(seen, scores, hidden)?;
        }
        let weights = self.softmax_rows(scores)?;
        let weights = self.reshape(weights, &dims(outer, &[*k, h / k * n, *m]))?;
        let result = self.matmul(weights, values)?;
        let e = of_values.last().copied().unwrap_or(0);
        self.reshape(result, &dims(outer, &[*h, *n, e]))
    }

    /// The sizes of a value without run-time extents.
    pub(crate) fn fixed_shape(&self, x: NodeId) -> Option<Vec<usize>> {
        let size = |d: &Dim| match d {
            Dim::Fixed(n) => Some(*n),
            Dim::Extent(_) => None,
        };
        self.shape_of(x).iter().map(size).collect()
    }
}
