"""Functions that are flat far out: their arguments may be cut off there, before they are scaled back."""

from __future__ import annotations

from typing import Any

import torch

from bisect_litert.rewrites.handlers import Op, Table, handles
from bisect_litert.rewrites.values import Value, scale

TABLE: Table = {}
_FLAT_AT = {"sigmoid": 128.0, "tanh": 32.0, "erf": 16.0}
"""Where fp32 and fp64 cannot tell the function from its limit."""


@handles(TABLE, *_FLAT_AT)
def _flat(op: Op) -> Any:
    x = op["self"]
    if not x.exponent:
        return NotImplemented
    bound = _FLAT_AT[op.name] * 2.0**-x.exponent
    op.change(f"{op.name} of values up to {x.true_peak:.3g}: they are cut off at {_FLAT_AT[op.name]:g} first")
    cut = Value(x.stored.clamp(-bound, bound), x.exponent)
    return Value(getattr(torch, op.name)(scale(cut, 0).stored))


@handles(TABLE, "softplus")
def _softplus(op: Op) -> Any:
    """max(x, 0) + log1p(exp(-|x|)): the exponential of nothing above 0."""
    x, beta = op["self"], op["beta"]
    if x.exponent or beta != 1:
        return NotImplemented
    op.change("softplus is max(x, 0) + log1p(exp(-|x|)), whose exponential cannot overflow")
    return Value(torch.relu(x.stored) + torch.log1p(torch.exp(-torch.abs(x.stored))))


@handles(TABLE, "logaddexp")
def _logaddexp(op: Op) -> Any:
    """max(x, y) + log1p(exp(-|x - y|))."""
    x, y = op.tensor("self"), op.tensor("other")
    op.change("logaddexp is max(x, y) + log1p(exp(-|x - y|)), whose exponential cannot overflow")
    return Value(torch.maximum(x, y) + torch.log1p(torch.exp(-torch.abs(x - y))))
