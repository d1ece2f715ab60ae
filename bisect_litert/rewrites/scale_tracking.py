"""The general cure for faults of range: every value of the module is stored under a power of two that suits it."""

from __future__ import annotations

from collections.abc import Iterator

from bisect_litert.rewrites.contract import Replacement, Rewrite
from bisect_litert.rewrites.graph_rewriter import rewrite_graph
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.scaling import table
from bisect_litert.vocabulary import Cause

DOC = """The same computation with values stored under powers of two, so that none passes fp16's 65504.

A value x that is too large (or too small) for fp16 is stored as x / 2^e. Products add exponents, roots halve them,
sums align them, bounds and epsilons are scaled along, and what is returned is the value itself. A power of two
changes no digit, so in fp32 this is exact as long as nothing leaves fp32's own range.

Limits: the exponents were chosen from the values measured on the given inputs, with a factor of 8 to spare. Inputs
much larger than those need it run again with them. An epsilon that fp16 would hold as 0 is raised, as far as that
changes no value that was measured by more than 2^-18 of itself; much smaller values than those it would change.
"""


def propose(region: Region) -> Iterator[Replacement]:
    """Fits any module that torch.export can trace."""
    replacement = rewrite_graph(region, table(), DOC, title="values stored under powers of two")
    if replacement is not None:
        yield replacement


REWRITE = Rewrite(
    name="scale-tracking",
    title="values stored under powers of two",
    causes=(Cause.OVERFLOW,),
    symptom="zeros, infinities or NaN where PyTorch is finite",
    why="a value on the way passes 65504, or falls under 6e-8",
    rewrite="carry a power of two beside each value that is too large or too small, and undo it where it fits again",
    limits="the exponents come from measured ranges, with a factor of 8 to spare; what is returned has to fit fp16",
    propose=propose,
)
