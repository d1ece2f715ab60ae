"""Matrix products of operands with different batch axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from bisect_litert.rewrites.contract import Replacement, Rewrite
from bisect_litert.rewrites.graph_rewriter import by_line
from bisect_litert.rewrites.handlers import Op, Table
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.tracing import Traced
from bisect_litert.rewrites.values import Value
from bisect_litert.vocabulary import Cause

DOC = """The same computation with batch axes of equal length where matrices are multiplied.

The GPU multiplies batches of matrices wrongly when one operand has a batch axis of 1 that stands for all. So that
operand is repeated by concatenation before: each product has the same factors as before.

Limits: the repeated operand takes that many times the memory.
"""


def table(fits: Callable[[Op], bool]) -> Table:
    """Returns a handler for the products that `fits` picks."""

    def multiply(op: Op) -> Any:
        x, y = op.tensor("self"), op.tensor("other" if "other" in op.operands else "mat2")
        if x.ndim < 3 or y.ndim < 3 or x.is_constant or y.is_constant or not fits(op):
            return NotImplemented
        batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        if x.shape[:-2] == y.shape[:-2]:
            return NotImplemented
        op.change(f"matrices are repeated to batches of {list(batch)} before they are multiplied")
        return Value(torch.matmul(_repeated(x, batch), _repeated(y, batch)))

    return {"matmul": multiply}


def _repeated(x: Traced, batch: torch.Size) -> Traced:
    if x.ndim - 2 < len(batch):
        x = x.reshape(*[1] * (len(batch) + 2 - x.ndim), *x.shape)
    for axis, size in enumerate(batch):
        if x.shape[axis] != size:
            x = torch.cat([x] * size, axis)
    return x


def propose(region: Region) -> Iterator[Replacement]:
    """Fits a module that multiplies batches of matrices."""
    yield from by_line(region, table, DOC)


REWRITE = Rewrite(
    name="batch-broadcast",
    title="matrices repeated before they are multiplied",
    causes=(Cause.WRONG_KERNEL, Cause.REJECTED, Cause.CPU_FALLBACK),
    symptom="a matrix product is wrong in all but the first matrix of a batch",
    why="BATCH_MATMUL repeats no operand whose batch axis is 1; other forms become BROADCAST_TO, which is refused",
    rewrite="torch.cat([x] * n) along the batch axis",
    limits="the repeated operand takes that many times the memory",
    propose=propose,
)
