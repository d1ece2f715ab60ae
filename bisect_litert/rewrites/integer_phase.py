"""Sine and cosine of integer positions, far from zero."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from bisect_litert.rewrites.contract import Replacement, Rewrite
from bisect_litert.rewrites.graph_rewriter import rewrite_graph
from bisect_litert.rewrites.handlers import Op, Table, handles
from bisect_litert.rewrites.plain import write
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.tracing import Traced
from bisect_litert.rewrites.values import Value, true
from bisect_litert.vocabulary import Cause

DOC = """The same computation with the angles of integer positions counted in whole 2^-32 parts of a turn.

fp16 keeps no integer above 2048 exactly, and an angle of thousands of radians to a radian at best. An angle
n * f with an integer n is n * round(f / 2 pi * 2^32) parts of a turn; 32-bit integers are multiplied
exactly and wrap around at 2^32, one whole turn, which leaves sine and cosine as they are. Its upper 16
bits, and its lower ones as a fraction, are an angle between -pi and pi that fp16 holds to 11 bits.

Limits: the positions have to come in as integers: as floats they are rounded before anything is computed.
The angle is exact to n * 2^-33 of a turn, which is finer than fp32 has it from n = 4 on.
"""
TABLE: Table = {}
_MOVES = "view reshape _unsafe_view unsqueeze squeeze flatten transpose permute slice select clone contiguous expand"


@dataclass(frozen=True)
class Angle(Value):
    """integer * factor; `stored` is the product as it was computed, which is left out when nothing reads it."""

    integer: Traced | None = None
    factor: float | None = 1.0
    """None where `integer` counts 2^-32 parts of a turn already."""


def _whole(angle: Angle) -> Traced:
    assert angle.integer is not None
    return angle.integer


def _written(op: Op, integers: bool = False) -> Any:
    """The operator as it was; on the integers of its angles if so asked."""

    def tensor(thing: Any) -> Any:
        if isinstance(thing, (list, tuple)):
            return type(thing)(map(tensor, thing))
        if integers and isinstance(thing, Angle):
            return _whole(thing)
        return true(thing) if isinstance(thing, Value) else thing

    args, kwargs = tuple(map(tensor, op.args)), {key: tensor(v) for key, v in op.kwargs.items()}
    return write(op, args, kwargs, {key: tensor(v) for key, v in op.operands.items()})


@handles(TABLE, "to", "_to_copy", "float", "type_as")
def _cast(op: Op) -> Any:
    x = op.args[0]
    if not isinstance(x, Value):
        return NotImplemented
    made: Any = _written(op)
    floats = made.dtype.is_floating_point
    if isinstance(x, Angle):
        return Angle(made, 0, x.integer, x.factor) if floats else NotImplemented
    if x.is_float or x.stored.dtype == torch.bool or x.stored.is_constant or not floats:
        return NotImplemented
    return Angle(made, 0, x.stored, 1.0)


@handles(TABLE, *_MOVES.split())
def _moved(op: Op) -> Any:
    x = op.args[0]
    if not isinstance(x, Angle):
        return NotImplemented
    return Angle(_written(op), 0, _written(op, integers=True), x.factor)


@handles(TABLE, "mul", "div")
def _times(op: Op) -> Any:
    x, y = op["self"], op["other"]
    if isinstance(y, Angle) and op.name == "mul":
        x, y = y, x
    if not isinstance(x, Angle) or x.factor is None or isinstance(y, Angle) or op.get("rounding_mode"):
        return NotImplemented
    if not isinstance(y, Value):
        return Angle(_written(op), 0, x.integer, x.factor * y if op.name == "mul" else x.factor / y)
    if not (y.is_float and y.stored.is_constant):
        return NotImplemented
    known = y.stored.values[0].double()
    return _counted(op, x, x.factor * (known if op.name == "mul" else 1.0 / known))


@handles(TABLE, "matmul", "bmm")
def _outer(op: Op) -> Any:
    """A matrix product over one element is a product."""
    x, y = op["self"], op.get("other", op.get("mat2"))
    if min(x.stored.ndim, y.stored.ndim) < 2 or x.stored.shape[-1] != 1:
        return NotImplemented
    if isinstance(y, Angle):
        x, y = y, x
    if not isinstance(x, Angle) or x.factor is None or not y.stored.is_constant:
        return NotImplemented
    return _counted(op, x, x.factor * y.stored.values[0].double())


def _counted(op: Op, x: Angle, factor: torch.Tensor) -> Angle:
    parts = op.constant(_wrapped(factor), "parts_of_a_turn")
    return Angle(_written(op), 0, _whole(x).to(torch.int32) * parts, None)


@handles(TABLE, "cat", "stack")
def _joined(op: Op) -> Any:
    parts = op["tensors"]
    if not all(isinstance(part, Angle) for part in parts) or len({part.factor for part in parts}) != 1:
        return NotImplemented
    return Angle(_written(op), 0, _written(op, integers=True), parts[0].factor)


@handles(TABLE, "sin", "cos")
def _wave(op: Op) -> Any:
    x = op["self"]
    if not isinstance(x, Angle):
        return NotImplemented
    turns = _whole(x)
    if x.factor is not None:
        turns = turns.to(torch.int32) * int(_wrapped(torch.tensor(x.factor, dtype=torch.float64)))
    upper: Any = torch.div(turns, 2**16, rounding_mode="floor")  # type: ignore[call-overload]
    lower: Any = torch.div(turns - upper * 2**16, 2, rounding_mode="floor")
    kind = x.stored.dtype
    angle = (upper.to(kind) + lower.to(kind) * 2.0**-15) * (2 * math.pi / 2**16)
    op.change(f"{op.name} of integer positions: the angle is counted in 2^-32 parts of a turn")
    return Value(getattr(torch, op.name)(angle))


def _wrapped(factor: torch.Tensor) -> torch.Tensor:
    parts = torch.round(factor / (2 * math.pi) * 2.0**32)
    return (torch.remainder(parts + 2.0**31, 2.0**32) - 2.0**31).to(torch.int32)


def propose(region: Region) -> Iterator[Replacement]:
    """Fits a module that takes sine or cosine of integers times constants."""
    replacement = rewrite_graph(region, TABLE, DOC)
    if replacement is not None:
        yield replacement


REWRITE = Rewrite(
    name="integer-phase",
    title="angles of integer positions counted in parts of a turn",
    causes=(Cause.PRECISION_LOSS, Cause.PRECISION_COMPOUNDING),
    symptom="rotary or sinusoidal positions wrong from position 2048 on, more with every position",
    why="fp16 keeps no integer above 2048 exactly, and an angle of thousands of radians to a radian at best",
    rewrite="multiply in 32-bit integers, where whole turns wrap around, and make a float of what is left",
    limits="positions have to come in as integers; those that depend on no input a converter computes beforehand",
    propose=propose,
)
