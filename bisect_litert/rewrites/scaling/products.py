"""Matrix products and convolutions: linear in what they read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from bisect_litert.rewrites import arithmetic as a
from bisect_litert.rewrites.handlers import Op, Table, handles
from bisect_litert.rewrites.scaling.telling import told
from bisect_litert.rewrites.values import Value, scale

TABLE: Table = {}


def _with_bias(op: Op, function: Callable[..., Any], x: Value, weight: Value, bias: Value | None, *more: Any) -> Value:
    result = a.product(lambda u, w: function(u, w, None, *more), x, weight)
    if bias is None:
        return told(op, result)
    with_bias = a.add(result, Value(bias.stored.reshape(_along(op, bias, result)), bias.exponent))
    if with_bias.exponent != result.exponent or result.stored.node.op != "call_function":
        return told(op, with_bias)
    # In one operator, as it was: the bias is a constant, scaled beforehand.
    u, w = result.stored.node.args[:2]
    tracer = result.stored.tracer
    scaled = scale(bias, result.exponent).stored
    return told(op, Value(function(tracer.proxy(u), tracer.proxy(w), scaled, *more), result.exponent))


def _along(op: Op, bias: Value, result: Value) -> list[int]:
    size = bias.stored.shape[0]
    if op.name == "linear":
        return [size]
    return [1, size, *[1] * (result.stored.ndim - 2)]


@handles(TABLE, "linear")
def _linear(op: Op) -> Any:
    return _with_bias(op, F.linear, op["input"], op["weight"], op["bias"])


@handles(TABLE, "conv1d", "conv2d", "conv3d")
def _conv(op: Op) -> Any:
    more = (op["stride"], op["padding"], op["dilation"], op["groups"])
    return _with_bias(op, getattr(F, op.name), op["input"], op["weight"], op["bias"], *more)


@handles(TABLE, "matmul", "bmm", "mm")
def _matmul(op: Op) -> Any:
    return told(op, a.product(torch.matmul, op["self"], op.get("other", op.get("mat2"))))


@handles(TABLE, "addmm", "baddbmm")
def _addmm(op: Op) -> Any:
    x, y = (op["mat1"], op["mat2"]) if op.name == "addmm" else (op["batch1"], op["batch2"])
    result = a.product(torch.matmul, x, y)
    if op.get("alpha", 1) != 1:
        result = a.multiply(result, float(op["alpha"]))
    first = op["self"] if op.get("beta", 1) == 1 else a.multiply(op["self"], float(op["beta"]))
    return told(op, a.add(first, result))
