"""Rows picked by constant indices."""

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

DOC = """The same computation with rows picked by slices instead of by index.

x[:, [0, 3, 1]] is converted to GATHER_ND, which the GPU refuses. The indices are known beforehand, so every
run of indices at one distance is a slice, and the slices are concatenated.

Limits: indices that depend on the input stay as they are; so do those that fall into more than 256 runs.
"""
MOST = 256


def runs(indices: list[int]) -> list[tuple[int, int, int]]:
    """Splits indices into (first, count, step) with a step of at least 1."""
    found: list[tuple[int, int, int]] = []
    for index in indices:
        if found:
            first, count, step = found[-1]
            if count == 1 and index > first:
                found[-1] = (first, 2, index - first)
                continue
            if count > 1 and index == first + count * step:
                found[-1] = (first, count + 1, step)
                continue
        found.append((index, 1, 1))
    return found


def picked(x: Traced, axis: int, indices: list[int]) -> Traced | None:
    """Returns rows along an axis; None where slices would be too many."""
    length = x.shape[axis]
    pieces = runs([i % length for i in indices])
    if len(pieces) > MOST:
        return None
    parts = []
    for first, count, step in pieces:
        end = first + (count - 1) * step + 1
        rows = slice(first, end, step if step > 1 else None)
        parts.append(x[(slice(None),) * axis + (rows,)])
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def table(fits: Callable[[Op], bool]) -> Table:
    """Returns handlers for the indexing that `fits` picks."""

    def known(value: Any) -> torch.Tensor | None:
        if not isinstance(value, Value) or not value.stored.is_constant or value.stored.dtype == torch.bool:
            return None
        first: torch.Tensor = value.stored.values[0]
        return first

    def index(op: Op) -> Any:
        given = list(op["indices"])
        used = [i for i, value in enumerate(given) if value is not None]
        at = known(given[used[0]]) if len(used) == 1 else None
        if at is None or at.ndim == 0 or not fits(op):
            return NotImplemented
        return take(op, used[0], at)

    def select(op: Op) -> Any:
        at = known(op["index"])
        return NotImplemented if at is None or not fits(op) else take(op, op["dim"], at)

    def take(op: Op, axis: int, at: torch.Tensor) -> Any:
        x = op.tensor("self")
        if x.is_constant:
            return NotImplemented
        axis %= x.ndim
        rows = picked(x, axis, at.reshape(-1).tolist())
        if rows is None:
            return NotImplemented
        op.change(f"{at.numel()} rows along axis {axis} are picked by slices")
        shape = (*x.shape[:axis], *at.shape, *x.shape[axis + 1 :])
        return Value(rows if tuple(rows.shape) == shape else rows.reshape(*shape))

    return {"index": index, "index_select": select}


def propose(region: Region) -> Iterator[Replacement]:
    """Fits a module that picks rows by constant indices."""
    yield from by_line(region, table, DOC)


REWRITE = Rewrite(
    name="picked-rows",
    title="rows picked by slices",
    causes=(Cause.REJECTED, Cause.CPU_FALLBACK),
    symptom="GATHER_ND refused where a tensor is indexed by a list",
    why="the delegate has no GATHER_ND",
    rewrite="slices, concatenated in the order wanted",
    limits="constant indices in at most 256 runs",
    propose=propose,
)
