"""Elementwise operators with a constant that is read at index 0 of its outer axis only."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bisect_litert.rewrites.contract import Replacement, Rewrite
from bisect_litert.rewrites.graph_rewriter import by_line
from bisect_litert.rewrites.handlers import Handler, Op, Table
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.tracing import Traced
from bisect_litert.rewrites.values import Value, true
from bisect_litert.vocabulary import Cause

DOC = """The same computation with tensors and constants of rank 4 where they meet.

The GPU reads a constant of an elementwise operator at index 0 of its outer axis when the tensor it meets has rank 1
to 3, or fewer axes than the constant: every head gets head 0's mask, every token token 0's position. At rank 4 it reads
it all. So both are reshaped, (d1, d2, d3) to (d1, 1, d2, d3), and the result is reshaped back: the same numbers in the
same order.

Limits: tensors that have four axes longer than 1 already stay as they are.
"""

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}


def at_rank_4(function: Callable[[Any, Any], Any], x: Traced, y: Traced) -> Traced | None:
    """Applies an elementwise function at rank 4; None where it would stay at the rank it has."""
    shape = torch.broadcast_shapes(x.shape, y.shape)
    wide = [size for size in shape if size != 1]
    if not wide or len(wide) > 3:
        return None
    lead = next(i for i, size in enumerate(shape) if size != 1)
    if len(shape) - lead > 4:
        return None

    def grown(t: Traced) -> Traced:
        sizes = [1] * (len(shape) - t.ndim) + list(t.shape)
        kept = sizes[lead:]
        wanted = [kept[0], *[1] * (4 - len(kept)), *kept[1:]]
        return t if list(t.shape) == wanted else t.reshape(*wanted)

    first = grown(x), grown(y)
    if first[0] is x and first[1] is y:
        return None
    return function(*first).reshape(*shape)  # type: ignore[no-any-return]


def _handler(function: Callable[[Any, Any], Any], fits: Callable[[Op], bool]) -> Handler:
    def handler(op: Op) -> Any:
        x, y = op["self"], op["other"]
        if not (isinstance(x, Value) and isinstance(y, Value)) or op.get("alpha", 1) != 1 or op.get("rounding_mode"):
            return NotImplemented
        one_constant = x.stored.is_constant != y.stored.is_constant
        constant = x if x.stored.is_constant else y
        if not one_constant or math.prod(constant.stored.shape) < 2 or not fits(op):
            return NotImplemented
        result = at_rank_4(function, true(x), true(y))
        if result is None:
            return NotImplemented
        op.change(f"{op.name} with a constant of shape {list(constant.stored.shape)} is done at rank 4")
        return Value(result)

    return handler


def _attention(fits: Callable[[Op], bool]) -> Handler:
    """Attention with a constant mask, written out so that the mask can be added at rank 4."""

    def handler(op: Op) -> Any:
        mask = op.get("attn_mask")
        if not isinstance(mask, Value) or not mask.stored.is_constant or not fits(op):
            return NotImplemented
        if op.get("dropout_p") or op.get("is_causal") or op.get("enable_gqa"):
            return NotImplemented
        q, k, v = (op.tensor(name) for name in ("query", "key", "value"))
        factor = op.get("scale")
        scores = torch.matmul(q, k.transpose(-1, -2)) * (1.0 / math.sqrt(q.shape[-1]) if factor is None else factor)
        added = mask.stored
        if not mask.is_float:
            added = torch.where(added, 0.0, -math.inf)
        masked = at_rank_4(operator.add, scores, added)
        if masked is None:
            return NotImplemented
        op.change(f"attention is written out, and its mask of shape {list(mask.stored.shape)} is added at rank 4")
        return Value(torch.matmul(torch.softmax(masked, -1), v))

    return handler


def table(fits: Callable[[Op], bool]) -> Table:
    """Returns handlers for the operators that `fits` picks."""
    found: Table = {name: _handler(function, fits) for name, function in FUNCTIONS.items()}
    found["scaled_dot_product_attention"] = _attention(fits)
    return found


def propose(region: Region) -> Iterator[Replacement]:
    """Fits what meets a constant: first on the guilty line, then everywhere in the module."""
    yield from by_line(region, table, DOC)


REWRITE = Rewrite(
    name="constant-operand",
    title="constants met at rank 4",
    causes=(Cause.WRONG_KERNEL,),
    symptom="masked attention plausible but wrong, its first head right; x * scale or x + positions wrong",
    why="a constant of an elementwise operator is read at index 0 of its outer axis when the tensor has rank 1 to 3",
    rewrite="reshape both to rank 4 with a 1 behind the outer axis, and the result back",
    limits="none for tensors with at most three axes longer than 1",
    propose=propose,
    upstream="google-ai-edge/LiteRT#8593",
)
