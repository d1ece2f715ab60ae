"""Results kept apart, so that the GPU builds no one kernel of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from bisect_litert.rewrites.contract import Replacement, Rewrite
from bisect_litert.rewrites.graph_rewriter import rewrite_graph
from bisect_litert.rewrites.handlers import Handler, Op, Table
from bisect_litert.rewrites.plain import unchanged
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.values import Value
from bisect_litert.vocabulary import Cause

DOC = """The same computation, some results passed through max(x, smallest number there is).

A GPU delegate joins neighbouring operators to one kernel, and some of what it joins it builds wrongly, or dies of. An
operator in between ends that. x + 0, x * 1 and x.clone() are none: a converter leaves them out. max(x, smallest)
changes no number either, and it stays.

Limits: one op more for each; NaN may not stay NaN on a GPU.
"""
_REDUCTIONS = "mean sum amax amin var std softmax _softmax matmul bmm linear conv1d conv2d cumsum linalg_vector_norm"
_ELEMENTS = """
add sub rsub mul div neg abs relu exp log log1p sqrt rsqrt reciprocal pow square sigmoid tanh silu gelu erf sin cos
maximum minimum where clamp clamp_min clamp_max hardtanh avg_pool2d max_pool2d constant_pad_nd pad
"""


def apart(fits: Callable[[Op], bool]) -> Handler:
    """Returns a handler that passes the results of operators that `fits` picks on through an operator of their own."""

    def handler(op: Op) -> Any:
        if not fits(op) or any(isinstance(v, Value) and not v.is_float for v in op.args):
            return NotImplemented
        made = unchanged(op)
        if made.is_constant or not made.dtype.is_floating_point:
            return NotImplemented
        op.change(f"the result of {op.name} is kept apart from what reads it")
        return Value(made.clamp(min=torch.finfo(made.dtype).min))

    return handler


def _table(names: str, fits: Callable[[Op], bool] = lambda op: True) -> Table:
    return dict.fromkeys(names.split(), apart(fits))


def propose(region: Region) -> Iterator[Replacement]:
    """Fits any module: on the guilty line where it is known, then behind reductions, then everywhere."""
    tables = [_table(_REDUCTIONS), _table(_REDUCTIONS + _ELEMENTS)]
    if region.lines:
        tables.insert(0, _table(_REDUCTIONS + _ELEMENTS, lambda op: op.node.source in region.lines))
    for table in tables:
        replacement = rewrite_graph(region, table, DOC)
        if replacement is not None:
            yield replacement


REWRITE = Rewrite(
    name="barriers",
    title="results kept apart that the GPU would join",
    causes=(Cause.CRASH, Cause.HANG, Cause.WRONG_KERNEL),
    symptom="the runtime dies or hangs on operators that it runs one by one, or makes something else of them together",
    why="the delegate joins neighbouring operators to one kernel, and builds some of those wrongly",
    rewrite="an operator between them that no converter leaves out, x.clamp(min=torch.finfo(x.dtype).min)",
    limits="one op more for each result; NaN may not stay NaN",
    propose=propose,
)
