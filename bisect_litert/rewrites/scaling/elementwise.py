"""Sums, products, powers, roots, exponentials and logarithms."""

from __future__ import annotations

import math
from typing import Any

import torch

from bisect_litert.rewrites import arithmetic as a
from bisect_litert.rewrites.handlers import Op, Table, handles
from bisect_litert.rewrites.scaling.telling import told
from bisect_litert.rewrites.values import Value, align, scale

TABLE: Table = {}
MASK_FLOOR = -(2.0**15)
"""What an additive mask is cut off at: under a softmax it is as good as minus infinity."""
FIRST = 14
LARGEST_MASK = 2.0**42
"""A factor beyond it counts as this: a mask value above 2^-27 reaches the floor all the same."""
SUM_FLOOR = -(2.0**14)
"""What masked scores are cut off at, so that in a row with nothing unmasked all are equal, as they are with -1e9."""


@handles(TABLE, "mul")
def _mul(op: Op) -> Any:
    x, y = op["self"], op["other"]
    if not isinstance(x, Value):
        x, y = y, x
    if op.saturates:
        cut = _cut_mask(op, x, y)
        if cut is not None:
            return cut
    return told(op, a.multiply(x, y, small_matters=op.small_matters))


def _cut_mask(op: Op, x: Value, y: Value | float) -> Value | None:
    """A product that is only a mask is multiplied in steps and cut off after each, so that nothing passes the range.

    Each step makes it larger, so what is under the floor once stays there: the result is max(x * y, floor).
    """
    if isinstance(y, Value) or abs(y) < -MASK_FLOOR or x.exponent or not x.peak:
        return None
    if max(float((v * y).max()) for v in x.stored.values) > -SUM_FLOOR / 2:
        return None  # scores, not a mask: their largest ones decide
    op.change(f"a mask of {y:.3g} is cut off at {MASK_FLOOR:g}, which a softmax takes for the same")
    first, left = math.copysign(2.0**FIRST, y), min(abs(y), LARGEST_MASK) * 2.0**-FIRST
    made = (x.stored * first).clamp(min=MASK_FLOOR)
    while left > 1:
        step = min(left, 2.0**14)
        made, left = (made * step).clamp(min=MASK_FLOOR), left / step
    return Value(made)


@handles(TABLE, "div")
def _div(op: Op) -> Any:
    x, y = op["self"], op["other"]
    if op.get("rounding_mode") is not None:
        return NotImplemented
    if not isinstance(x, Value):
        return told(op, a.multiply(a.reciprocal(y), float(x), small_matters=op.small_matters))
    return told(op, a.divide(x, y, small_matters=op.small_matters))


@handles(TABLE, "add", "sub", "rsub")
def _add(op: Op) -> Any:
    x, y, alpha = op["self"], op["other"], op.get("alpha", 1)
    if not ((isinstance(x, Value) and x.is_float) or (isinstance(y, Value) and y.is_float)):
        return NotImplemented
    if op.name == "rsub":
        x, y = y, x
    if alpha != 1:
        if op.name == "rsub":
            x = a.multiply(x, alpha) if isinstance(x, Value) else x * alpha
        else:
            y = a.multiply(y, alpha) if isinstance(y, Value) else y * alpha
    subtract = op.name != "add"
    if not isinstance(x, Value):
        return told(op, a.add(a.negative(y) if subtract else y, x, small_matters=op.small_matters))
    if op.saturates and not subtract and isinstance(y, Value):
        cut = _masked(op, x, y)
        if cut is not None:
            return cut
    return told(op, a.add(x, y, small_matters=op.small_matters, subtract=subtract))


def _masked(op: Op, x: Value, y: Value) -> Value | None:
    """Scores plus a mask that fp16 cannot hold, or that `_cut_mask` has cut off."""
    lows = [_lowest(v) for v in (x, y)]
    if min(lows) > MASK_FLOOR or any(v.exponent for v in (x, y)):
        return None
    scores, mask = (y, x) if lows[0] < lows[1] else (x, y)
    if scores.peak > -SUM_FLOOR / 2:
        return None
    cut = mask.stored if lows[0] == MASK_FLOOR or lows[1] == MASK_FLOOR else mask.stored.clamp(min=MASK_FLOOR)
    op.change(f"the sum with a mask that goes down to {min(lows):.3g} is cut off at {SUM_FLOOR:g}")
    return Value((scores.stored + cut).clamp(min=SUM_FLOOR))


def _lowest(value: Value) -> float:
    return min(float(v.min()) for v in value.stored.values)


@handles(TABLE, "neg")
def _neg(op: Op) -> Any:
    return a.negative(op["self"])


@handles(TABLE, "square")
def _square(op: Op) -> Any:
    return told(op, a.square(op["self"], small_matters=op.small_matters))


@handles(TABLE, "pow")
def _pow(op: Op) -> Any:
    x, n = op["self"], op["exponent"]
    if not isinstance(x, Value) or isinstance(n, Value):
        return NotImplemented
    if n == int(n) and 1 <= abs(n) <= 8:
        result, left = x, abs(int(n)) - 1
        while left:
            result = a.multiply(result, x, small_matters=op.small_matters or n < 0)
            left -= 1
        return told(op, a.reciprocal(result) if n < 0 else result)
    if abs(n) == 0.5:
        return told(op, a.root(x) if n > 0 else a.inverse_root(x))
    if x.exponent == 0:
        return NotImplemented
    step = next((d for d in (1, 2, 4) if n * d == int(n * d)), None)
    if step is None:
        return NotImplemented
    x = scale(x, x.exponent + -x.exponent % step)  # so that the exponent times n is whole
    return told(op, Value(x.stored**n, int(x.exponent * n)))


@handles(TABLE, "sqrt")
def _sqrt(op: Op) -> Any:
    return told(op, a.root(op["self"]))


@handles(TABLE, "rsqrt")
def _rsqrt(op: Op) -> Any:
    return told(op, a.inverse_root(op["self"]))


@handles(TABLE, "reciprocal")
def _reciprocal(op: Op) -> Any:
    return told(op, a.reciprocal(op["self"]))


@handles(TABLE, "exp")
def _exp(op: Op) -> Any:
    return told(op, a.exponential(op["self"], small_matters=op.small_matters))


@handles(TABLE, "log")
def _log(op: Op) -> Any:
    return a.logarithm(op["self"])


@handles(TABLE, "log1p")
def _log1p(op: Op) -> Any:
    x = op["self"]
    return NotImplemented if x.exponent <= 0 else a.logarithm(a.add(x, 1.0, small_matters=True))


@handles(TABLE, "clamp", "clamp_min", "clamp_max", "hardtanh")
def _clamp(op: Op) -> Any:
    low = op.get("min", op.get("min_val"))
    high = op.get("max", op.get("max_val"))
    if any(isinstance(bound, Value) for bound in (low, high)) or not op["self"].is_float:
        return NotImplemented
    return told(op, a.clamped(op["self"], low, high, small_matters=op.small_matters))


@handles(TABLE, "relu", "abs")
def _kept(op: Op) -> Any:
    return Value(getattr(torch, op.name)(op["self"].stored), op["self"].exponent)


@handles(TABLE, "leaky_relu")
def _leaky_relu(op: Op) -> Any:
    x = op["self"]
    return Value(torch.nn.functional.leaky_relu(x.stored, op["negative_slope"]), x.exponent)


@handles(TABLE, "maximum", "minimum")
def _extreme(op: Op) -> Any:
    (x, y), common = align((op["self"], op["other"]))
    return Value(getattr(torch, op.name)(x, y), common)


@handles(TABLE, "where")
def _where(op: Op) -> Any:
    if not all(isinstance(op.get(n), Value) and op[n].is_float for n in ("self", "other")):
        return NotImplemented
    (x, y), common = align((op["self"], op["other"]))
    return Value(torch.where(op.tensor("condition"), x, y), common)


@handles(TABLE, "masked_fill")
def _masked_fill(op: Op) -> Any:
    x, value = op["self"], op["value"]
    if isinstance(value, Value) or not x.is_float:
        return NotImplemented
    if op.saturates and value < MASK_FLOOR:
        op.change(f"a mask of {value:.3g} is {MASK_FLOOR:g}, which a softmax takes for the same")
        value = MASK_FLOOR
    return Value(x.stored.masked_fill(op.tensor("mask"), value * 2.0**-x.exponent), x.exponent)


@handles(TABLE, "gt", "ge", "lt", "le", "eq", "ne")
def _compare(op: Op) -> Any:
    import operator

    x, y = op["self"], op["other"]
    if not isinstance(x, Value) or not x.is_float:
        return NotImplemented
    if isinstance(y, Value):
        (left, right), _ = align((x, y))
        return Value(getattr(operator, op.name)(left, right))
    return Value(getattr(operator, op.name)(x.stored, y * 2.0**-x.exponent))


@handles(TABLE, "sign")
def _sign(op: Op) -> Any:
    return Value(torch.sign(op["self"].stored))
