"""Clamping to [0, 1], which becomes an activation that the GPU does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.nn.functional as F

from bisect_litert.rewrites.contract import Replacement, Rewrite
from bisect_litert.rewrites.graph_rewriter import by_line
from bisect_litert.rewrites.handlers import Op, Table
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.values import Value
from bisect_litert.vocabulary import Cause

DOC = """The same computation with a clamp to [0, 1] written as relu6(6 x) / 6.

A clamp to [0, 1] is converted to RELU_0_TO_1, which the GPU refuses; RELU6 it has. (relu(x) - relu(x - 1)
is the same on paper, but x - (x - 1) is 0 or 2 in fp16 from 2^11 on.)

Limits: two roundings more.
"""


def table(fits: Callable[[Op], bool]) -> Table:
    """Returns handlers for the clamps that `fits` picks."""

    def clamp(op: Op) -> Any:
        low, high = (op.get(a, op.get(b)) for a, b in (("min", "min_val"), ("max", "max_val")))
        if any(isinstance(bound, Value) for bound in (low, high)) or (low, high) != (0, 1) or not fits(op):
            return NotImplemented
        x = op.tensor("self")
        op.change(f"{op.name} to [0, 1] is relu6(6 x) / 6")
        return Value(F.relu6(x * 6.0) / 6.0)

    return {"clamp": clamp, "hardtanh": clamp}


def propose(region: Region) -> Iterator[Replacement]:
    """Fits a module that clamps to [0, 1]."""
    yield from by_line(region, table, DOC)


REWRITE = Rewrite(
    name="clamp-to-one",
    title="a clamp to [0, 1] as a relu6",
    causes=(Cause.REJECTED, Cause.CPU_FALLBACK),
    symptom="RELU_0_TO_1 refused after hardtanh(0, 1) or clamp(0, 1)",
    why="the delegate has no such activation",
    rewrite="relu6(6 x) / 6",
    limits="two roundings more",
    propose=propose,
    upstream="google-ai-edge/LiteRT#8598",
)
