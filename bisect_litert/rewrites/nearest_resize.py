"""Resizing to the nearest pixel, which the converter rounds in another way."""

from __future__ import annotations

import math
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

DOC = """The same computation with pixels picked by matrices of zeros and ones.

PyTorch takes pixel floor(i * scale), and the converted op another one where the sizes are no multiples of each other.
Which pixel it is is known beforehand, so a row is multiplied by a matrix with a single 1 in each column: a sum of one
pixel and zeros, exact in any precision.

Limits: infinite pixels become NaN in their row.
"""


def picking(rows: torch.Tensor, length: int) -> torch.Tensor:
    """The matrix (length, len(rows)) that picks rows."""
    return (torch.arange(length)[:, None] == rows[None, :]).float()


def table(fits: Callable[[Op], bool]) -> Table:
    """Returns handlers for the resizing that `fits` picks."""

    def resize(op: Op) -> Any:
        x = op.tensor("self" if "self" in op.operands else "input")
        *rest, height, width = x.shape
        if x.ndim != 4 or not fits(op):
            return NotImplemented
        # Asked of the operator itself, so that it is its own way to round.
        numbers = torch.arange(height * width, dtype=torch.float64).reshape(1, 1, height, width)
        picked = op.target(numbers, *op.args[1:], **op.kwargs)[0, 0].long()
        rows, columns = picked[:, 0] // width, picked[0] % width
        flat = x.reshape(1, 1, math.prod(rest) * height, width)
        wide: Any = torch.matmul(flat, op.constant(picking(columns, width), "columns"))  # type: ignore[arg-type]
        turned = wide.reshape(1, math.prod(rest), height, len(columns)).transpose(2, 3)
        tall: Any = torch.matmul(turned, op.constant(picking(rows, height), "rows"))
        made: Traced = tall.transpose(2, 3).reshape(*rest, len(rows), len(columns))
        op.change(f"pixels of {height} x {width} are picked by matrices of zeros and ones")
        return Value(made)

    names = ("upsample_nearest2d", "_upsample_nearest_exact2d")
    return dict.fromkeys(names, resize)


def propose(region: Region) -> Iterator[Replacement]:
    """Fits a module that resizes to the nearest pixel."""
    yield from by_line(region, table, DOC)


REWRITE = Rewrite(
    name="nearest-resize",
    title="nearest pixels picked by matrices",
    causes=(Cause.CONVERSION, Cause.REJECTED, Cause.CPU_FALLBACK),
    symptom="interpolate(mode='nearest') wrong on the CPU already, where sizes are no multiples of each other",
    why="the converted op rounds to another pixel than PyTorch",
    rewrite="matrix products with a single 1 in each column",
    limits="infinite pixels become NaN in their row",
    propose=propose,
)
