"""All rewrites, the readable replacements of library modules first, what rewrites any graph after them.

To add one: a file beside this one that ends in `REWRITE = Rewrite(...)`, and its name here. The order is the order in
which they are tried for a region.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from bisect_litert.rewrites.contract import Rewrite
from bisect_litert.vocabulary import Cause

NAMES = (
    "layer_norm",
    "rms_norm",
    "group_norm",
    "instance_norm",
    "batch_norm",
    "cancelling",
    "block_sums",
    "integer_phase",
    "exponentials",
    "scale_tracking",
    "constant_operand",
    "padding",
    "padded_pooling",
    "batch_broadcast",
    "rank_four",
    "clamp_to_one",
    "reflection",
    "picked_rows",
    "flipped",
    "grid_sampling",
    "nearest_resize",
    "returned_copies",
    "barriers",
)


@cache
def rewrites() -> tuple[Rewrite, ...]:
    """Returns every rewrite; imports torch."""
    return tuple(import_module(f"bisect_litert.rewrites.{name}").REWRITE for name in NAMES)


def fitting(cause: Cause) -> tuple[Rewrite, ...]:
    """Returns the rewrites that are tried for a cause."""
    return tuple(rewrite for rewrite in rewrites() if cause in rewrite.causes)
