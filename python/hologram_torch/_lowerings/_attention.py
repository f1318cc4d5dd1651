"""Attention, as torch's fused operations for GPUs, and its gradients."""

from __future__ import annotations

import math
from typing import Any

import torch

from .._values import Value
from ._table import Context, lower


class _Attention:
    """Attention of queries [b, h, n, d], and of keys and values [b, k, m, d], of which each serves h/k heads of queries.

    Where a kernel does not store the scores it computes; elsewhere, and for scores to which something is added, the
    operations of the definition do, in 32 bits.
    """

    def __init__(
        self, c: Context, q: Value, k: Value, v: Value, bias: Value | None, causal: bool, scale: float | None, p: float
    ):
        if p:
            raise NotImplementedError("hologram has no fused attention with dropout")
        self.graph, self.q, self.k, self.v, self.bias = c.graph, q, k, v, bias
        self.scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        # torch's first query sees the first key only; the kernels' last query sees all keys.
        self.causal = causal
        aligned = not causal or q.shape[-2] == k.shape[-2]
        narrow = q.dtype in (torch.float16, torch.bfloat16)
        alike = k.shape == v.shape and q.shape[-1] == k.shape[-1]
        self.flash = bias is None and narrow and aligned and alike and q.shape[-1] in (64, 128) and self.scale > 0

    def grouped(self, x: Value) -> Value:
        """What belongs to heads of queries, with those that share keys as rows of one matrix."""
        b, h, n, d = x.shape
        kept = torch.float64 if x.dtype == torch.float64 else torch.float32
        return x.to(kept).reshape([b, self.k.shape[1], h // max(self.k.shape[1], 1) * n, d])

    def wide(self, x: Value) -> Value:
        return x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)

    def scores(self) -> Value:
        """The scores as [b, h, n, m]."""
        b, h, n, _ = self.q.shape
        m = self.k.shape[-2]
        rows = self.grouped(self.q) * self.scale
        scores = self.graph.matmul(rows, self.wide(self.k).swap(-1, -2)).reshape([b, h, n, m])
        if self.bias is not None:
            scores = scores + self.bias.to(scores.dtype)
        if self.causal:
            hidden = self.graph.arange(m).reshape([1, m]) > self.graph.arange(n).reshape([n, 1])
            scores = self.graph.where(hidden, self.graph.scalar(scores.dtype, -math.inf), scores)
        return scores

    def forward(self, with_sums: bool) -> tuple[Value, Value | None]:
        """The result, and the logarithms of the sums of exponentials [b, h, n]."""
        native = self.graph.native
        if self.flash:
            result = native.flash_attention(self.q.number, self.k.number, self.v.number, self.scale, self.causal)
            sums = None
            if with_sums:
                number = native.flash_attention_sums(self.q.number, self.k.number, self.scale, self.causal)
                sums = Value(self.graph, number)
            return Value(self.graph, result), sums
        scores = self.scores()
        greatest = scores.reduce("max", [-1], keep=True)
        weights = self.graph.map("exp", scores - greatest)
        total = weights.reduce("sum", [-1], keep=True)
        sums = (greatest + self.graph.map("log", total)).squeeze([-1]) if with_sums else None
        result = self.graph.matmul(self.grouped(weights / total), self.wide(self.v))
        return result.reshape([*self.q.shape[:-1], self.v.shape[-1]]).to(self.q.dtype), sums

    def gradients(self, result: Value, sums: Value, grad: Value) -> tuple[Value, Value, Value, Value | None]:
        """The gradients by the queries, keys, values and, if there is one, what is added to the scores."""
        sums = sums.slice(-1, 0, self.q.shape[-2])
        if self.flash:
            operands = [x.number for x in (self.q, self.k, self.v, result, sums, grad)]
            number = self.graph.native.flash_attention_gradients(*operands, self.scale, self.causal)
            flat, parts = Value(self.graph, number), []
            for x in (self.q, self.k, self.v):
                parts.append(flat.slice(0, 0, x.size).reshape(x.shape))
                flat = flat.slice(0, x.size, flat.size)
            return (*parts, None)
        graph, m = self.graph, self.k.shape[-2]
        weights = graph.map("exp", self.scores() - sums.unsqueeze(-1))
        grads = self.grouped(grad)
        by_weights = graph.matmul(grads, self.wide(self.v).swap(-1, -2)).reshape(weights.shape)
        delta = (self.wide(grad) * self.wide(result)).reduce("sum", [-1], keep=True)
        by_scores = weights * (by_weights - delta)
        rows = by_scores.reshape([*grads.shape[:-1], m])
        by_values = graph.matmul(weights.reshape(rows.shape).swap(-1, -2), grads)
        by_queries = (graph.matmul(rows, self.wide(self.k)) * self.scale).reshape(self.q.shape)
        by_keys = graph.matmul(rows.swap(-1, -2), self.grouped(self.q)) * self.scale
        return (
            by_queries.to(self.q.dtype),
            by_keys.to(self.k.dtype),
            by_values.to(self.v.dtype),
            None if self.bias is None else by_scores.to(self.bias.dtype),
        )


@lower("_scaled_dot_product_efficient_attention.default")
def efficient(
    c: Context,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    attention = _Attention(c, query, key, value, attn_bias, is_causal, scale, dropout_p)
    result, sums = attention.forward(compute_log_sumexp)
    # torch pads the sums.
    if sums is not None:
        sums = sums.pad([(0, 0), (0, 0), (0, int(c.fake[1].shape[-1]) - sums.shape[-1])])
    return result, sums, None, None


@lower("_scaled_dot_product_efficient_attention_backward.default")
def efficient_backward(
    c: Context,
    grad_out_: Value,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None,
    out: Value,
    logsumexp: Value,
    philox_seed: None,
    philox_offset: None,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    attention = _Attention(c, query, key, value, attn_bias, is_causal, scale, dropout_p)
    grads = attention.gradients(out, logsumexp, grad_out_)
    return tuple(grad if wanted else None for grad, wanted in zip(grads, grad_input_mask, strict=True))


@lower("_scaled_dot_product_flash_attention.default")
def flash(
    c: Context,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    attention = _Attention(c, query, key, value, None, is_causal, scale, dropout_p)
    n, m = query.shape[-2], key.shape[-2]
    return (*attention.forward(True), None, None, n, m, None, None, None)


@lower("_scaled_dot_product_flash_attention_backward.default")
def flash_backward(
    c: Context,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    cum_seq_q: None,
    cum_seq_k: None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: None,
    philox_offset: None,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    attention = _Attention(c, query, key, value, None, is_causal, scale, dropout_p)
    return attention.gradients(out, logsumexp, grad_out)[:3]
