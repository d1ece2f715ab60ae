"""Padding with a tensor's own values."""

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
from bisect_litert.rewrites.wide import copies
from bisect_litert.vocabulary import Cause

DOC = """The same computation with reflected and replicated borders concatenated from slices.

Some of these paddings are converted to GATHER_ND, which the GPU refuses. A border is made of single rows of
the tensor, sliced out and concatenated in the order they are wanted in.

Limits: one slice for each row of a reflected border.
"""


def bordered(x: Traced, axis: int, before: int, after: int, mode: str) -> Traced:
    """Pads one axis; a negative width crops."""
    length = x.shape[axis]

    def rows(start: int, count: int = 1) -> Traced:
        return x[(slice(None),) * axis + (slice(start, start + count),)]

    parts = []
    if mode == "reflect":
        parts += [rows(i) for i in range(before, 0, -1)]
    elif before > 0:
        parts.append(copies(rows(0), before, axis) if mode == "replicate" else rows(length - before, before))
    start, end = max(0, -before), length - max(0, -after)
    parts.append(x if (start, end) == (0, length) else rows(start, end - start))
    if mode == "reflect":
        parts += [rows(length - 2 - i) for i in range(after)]
    elif after > 0:
        parts.append(copies(rows(length - 1), after, axis) if mode == "replicate" else rows(0, after))
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def table(fits: Callable[[Op], bool]) -> Table:
    """Returns handlers for the paddings that `fits` picks."""

    def pad(op: Op) -> Any:
        mode = op.get("mode", "reflect" if op.name.startswith("reflection") else "replicate")
        if mode not in ("reflect", "replicate", "circular") or not fits(op):
            return NotImplemented
        x = op.tensor("self")
        widths = list(op.get("pad", op.get("padding")))
        for i in range(len(widths) // 2):
            if widths[2 * i] or widths[2 * i + 1]:
                x = bordered(x, x.ndim - 1 - i, widths[2 * i], widths[2 * i + 1], mode)
        op.change(f"a {mode} border is concatenated from slices")
        return Value(x)

    names = [f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)]
    return dict.fromkeys(["pad", *names], pad)


def propose(region: Region) -> Iterator[Replacement]:
    """Fits a module that pads with the tensor's own values."""
    yield from by_line(region, table, DOC)


REWRITE = Rewrite(
    name="reflection",
    title="borders concatenated from slices",
    causes=(Cause.REJECTED, Cause.CPU_FALLBACK, Cause.WRONG_KERNEL),
    symptom="GATHER_ND refused where a tensor is padded by reflection or replication",
    why="the converter reads the border by index",
    rewrite="torch.cat of slices",
    limits="one slice for each row of a reflected border",
    propose=propose,
)
