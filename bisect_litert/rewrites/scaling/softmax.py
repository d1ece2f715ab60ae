"""Softmax and its kin with logits that leave the range, and attention around them."""

from __future__ import annotations

import math
from typing import Any

import torch

from bisect_litert.rewrites import arithmetic as a
from bisect_litert.rewrites.handlers import Op, Table, axes_of, handles
from bisect_litert.rewrites.scaling.telling import told
from bisect_litert.rewrites.values import Value

TABLE: Table = {}
FLOOR = -(2.0**14)
"""exp(-2^14) is 0 in fp16, fp32 and fp64 alike."""


@handles(TABLE, "softmax", "_softmax")
def _softmax(op: Op) -> Any:
    x = op["self"]
    return softmax(op, x, op["dim"])


def softmax(op: Op, x: Value, axis: int) -> Value:
    """softmax of scaled logits: their differences from the largest one, cut off where exp is 0 anyway."""
    if not x.exponent:
        return Value(torch.softmax(x.stored, axis))
    op.change(f"{op.name} of logits up to {x.true_peak:.3g}: the largest is subtracted before they are scaled back")
    return Value(torch.softmax(a.below_maximum(x, axis, FLOOR), axis))


@handles(TABLE, "log_softmax", "_log_softmax")
def _log_softmax(op: Op) -> Any:
    x, axis = op["self"], op["dim"]
    if not x.exponent:
        return NotImplemented
    op.change(
        f"log_softmax of logits up to {x.true_peak:.3g}: differences from the largest one, less the log of their sum"
    )
    below = Value(x.stored - x.stored.amax((axis,), keepdim=True), x.exponent)
    sums = torch.exp(a.below_maximum(x, axis, FLOOR)).sum((axis,), keepdim=True)
    return told(op, a.add(below, Value(torch.log(sums)), subtract=True))


@handles(TABLE, "logsumexp")
def _logsumexp(op: Op) -> Any:
    x, axes = op["self"], axes_of(op)
    if not x.exponent or axes is None or len(axes) != 1:
        return NotImplemented
    rest = torch.log(torch.exp(a.below_maximum(x, axes[0], FLOOR)).sum(axes, keepdim=op["keepdim"]))
    return told(op, a.add(a.largest(x, axes, keepdim=op["keepdim"]), Value(rest)))


@handles(TABLE, "scaled_dot_product_attention")
def _attention(op: Op) -> Any:
    """Written out: scores, scale, mask, softmax, mix."""
    q, k, v, mask = op["query"], op["key"], op["value"], op.get("attn_mask")
    if op.get("dropout_p") or op.get("enable_gqa") or op.get("is_causal"):
        return NotImplemented
    width = q.stored.shape[-1]
    factor = op.get("scale")
    q = a.multiply(q, 1.0 / math.sqrt(width) if factor is None else float(factor))
    scores = a.product(lambda x, y: x @ y.transpose(-1, -2), q, k)
    if isinstance(mask, Value):
        if mask.is_float:
            scores = a.add(scores, mask)
        else:
            scores = Value(
                scores.stored.masked_fill(torch.logical_not(mask.stored), FLOOR * 2.0**-scores.exponent),
                scores.exponent,
            )
    return told(op, a.product(torch.matmul, softmax(op, scores, -1), v))
