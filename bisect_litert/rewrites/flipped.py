"""Flipping of a tensor's last axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from bisect_litert.rewrites.contract import Replacement, Rewrite
from bisect_litert.rewrites.graph_rewriter import by_line
from bisect_litert.rewrites.handlers import Op, Table
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.values import Value
from bisect_litert.vocabulary import Cause

DOC = """The same computation with the last axis flipped as the one before the last.

The GPU flips the last axis of a tensor of rank 3 or 4 wrongly, and other axes rightly. So a flip along any
axis is one along the third axis of (1, before, axis, behind): the same numbers in the same places. Behind
the last axis there is one element, so it is (1, before, axis, 1).

Limits: none.
"""


def table(fits: Callable[[Op], bool]) -> Table:
    """Returns a handler for the flips that `fits` picks."""

    def flip(op: Op) -> Any:
        x = op.tensor("self")
        if x.is_constant or not fits(op):
            return NotImplemented
        shape = tuple(x.shape)
        for axis in (axis % x.ndim for axis in op["dims"]):
            x = x.reshape(1, math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])).flip(2)
        op.change("each axis is flipped as the third one of four")
        return Value(x.reshape(*shape))

    return {"flip": flip}


def propose(region: Region) -> Iterator[Replacement]:
    """Fits a module that flips an axis."""
    yield from by_line(region, table, DOC)


REWRITE = Rewrite(
    name="flipped",
    title="an axis flipped as the third one of four",
    causes=(Cause.WRONG_KERNEL,),
    symptom="values at wrong places after flip(-1)",
    why="REVERSE_V2 of the last axis mixes up the channels of a tensor of rank 3 or 4",
    rewrite="reshape to (1, before, axis, behind), flip axis 2, and reshape back",
    limits="none",
    propose=propose,
)
