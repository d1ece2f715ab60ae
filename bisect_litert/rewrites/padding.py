"""Padding of tensors of rank 2 and 3."""

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

DOC = """The same computation with tensors padded at rank 4.

The GPU pads a tensor of rank 3 wrongly when its outer axis is longer than 1, and refuses rank 2. So (d1, d2, d3) is
padded as (d1, 1, d2, d3): the same numbers in the same places.

Limits: padding of the outer axis itself stays as it is.
"""


def table(fits: Callable[[Op], bool]) -> Table:
    """Returns handlers for the paddings that `fits` picks."""

    def pad(op: Op) -> Any:
        x, widths, mode = op.tensor("self"), list(op["pad"]), op.get("mode", "constant")
        if mode != "constant" or x.ndim not in (2, 3) or len(widths) // 2 >= x.ndim or not fits(op):
            return NotImplemented
        first, *rest = x.shape
        wide = F.pad(x.reshape(first, *[1] * (4 - x.ndim), *rest), tuple(widths), "constant", op.get("value") or 0.0)
        op.change(f"a tensor of rank {x.ndim} is padded at rank 4")
        return Value(wide.reshape(first, *wide.shape[5 - x.ndim :]))

    return {"pad": pad, "constant_pad_nd": pad}


def propose(region: Region) -> Iterator[Replacement]:
    """Fits a module that pads with a constant."""
    yield from by_line(region, table, DOC)


REWRITE = Rewrite(
    name="padding",
    title="padding at rank 4",
    causes=(Cause.WRONG_KERNEL, Cause.REJECTED, Cause.CPU_FALLBACK),
    symptom="values of other rows after padding a tensor of rank 3",
    why="the PAD kernel mixes up the axes of a tensor of rank 3 whose outer axis is longer than 1",
    rewrite="reshape to rank 4 with a 1 behind the outer axis, pad, and reshape back",
    limits="padding of the outer axis itself stays as it is",
    propose=propose,
    upstream="google-ai-edge/LiteRT#9272",
)
