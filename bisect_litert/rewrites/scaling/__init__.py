"""Values flow as (stored tensor, power-of-two exponent): one set of rules for every fault of range.

Each file holds handlers of one kind of operator; `table()` puts them together. An operator without a handler reads its
operands as they are.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from bisect_litert.rewrites.handlers import Table

NAMES = ("elementwise", "reductions", "products", "shapes", "softmax", "normalisations", "saturating")


@cache
def table() -> Table:
    """Returns all handlers by operator name."""
    found: Table = {}
    for name in NAMES:
        found.update(import_module(f"bisect_litert.rewrites.scaling.{name}").TABLE)
    return found
