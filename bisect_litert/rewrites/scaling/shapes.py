"""Operators that only move values: the exponent goes along."""

from __future__ import annotations

from typing import Any

import torch

from bisect_litert.rewrites.handlers import Op, Table, handles
from bisect_litert.rewrites.plain import write
from bisect_litert.rewrites.tracing import Traced, item
from bisect_litert.rewrites.values import Value, align, scale, true

TABLE: Table = {}
_MOVES = """
view reshape _unsafe_view flatten unflatten squeeze unsqueeze transpose permute t movedim swapaxes clone
contiguous detach alias lift_fresh_copy dropout expand expand_as repeat tile roll flip slice select narrow
split chunk split_with_sizes unbind index_select gather diagonal tril triu unfold pixel_shuffle max_pool1d
max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d upsample_nearest2d
upsample_bilinear2d reflection_pad1d reflection_pad2d replication_pad2d
"""


@handles(TABLE, *_MOVES.split())
def _moved(op: Op) -> Any:
    first = op.args[0]
    if not isinstance(first, Value):
        return NotImplemented

    def stored(thing: Any) -> Any:
        if isinstance(thing, Value):
            return thing.stored if thing is first else true(thing)
        return thing

    args = tuple(stored(v) for v in op.args)
    operands = {key: stored(v) for key, v in op.operands.items()}
    result = write(op, args, {k: stored(v) for k, v in op.kwargs.items()}, operands)
    if isinstance(result, Traced) and isinstance(result.values[0], (tuple, list)):
        return [Value(item(result, i), first.exponent) for i in range(len(result.values[0]))]
    return Value(result, first.exponent)


@handles(TABLE, "cat", "stack", "concat", "concatenate", "hstack", "vstack")
def _joined(op: Op) -> Any:
    if op.name not in ("cat", "stack"):
        return NotImplemented
    parts, common = align(op["tensors"])
    return Value(getattr(torch, op.name)(parts, op["dim"]), common)


@handles(TABLE, "constant_pad_nd", "pad")
def _padded(op: Op) -> Any:
    x, value = op["self"], op.get("value") or 0.0
    mode = op.get("mode", "constant")
    if mode != "constant":
        return Value(torch.nn.functional.pad(x.stored, tuple(op["pad"]), mode), x.exponent)
    return Value(torch.nn.functional.pad(x.stored, tuple(op["pad"]), value=value * 2.0**-x.exponent), x.exponent)


@handles(TABLE, "to", "_to_copy", "float", "type_as")
def _cast(op: Op) -> Any:
    x = op.args[0]
    if not isinstance(x, Value) or not x.is_float:
        return NotImplemented
    dtype = next((v for v in [*op.args[1:], *op.kwargs.values()] if isinstance(v, torch.dtype)), x.stored.dtype)
    if not dtype.is_floating_point:
        return Value(scale(x, 0).stored.to(dtype))
    return x if dtype == x.stored.dtype else Value(x.stored.to(dtype), x.exponent)
