"""Where a block's digits go: the op whose rounding its output shows, or the one in which what was rounded cancels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bisect_litert.graphs.graph import REARRANGES, Graph, Op
from bisect_litert.verdicts.diagnosis import number

CANCELS = 8.0
"""Times smaller than its terms that a difference is from which it lacks three of fp16's eleven bits."""
SHARE = 10.0
"""Times smaller than the error of its block that what an op's rounding costs is no reason for it. A block that
amplifies the rounding of what came before it has no such op."""
_MOVES = (*REARRANGES, "SLICE", "STRIDED_SLICE", "CONCATENATION")
"""Ops that compute nothing."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The op to blame and what to say of it; -1 for none."""

    op: int = -1
    said: str = ""


def where_lost(
    graph: Graph,
    ops: Sequence[Op],
    written: Mapping[int, float],
    given: Mapping[int, float],
    values: Mapping[int, np.ndarray],
    off_by: float,
) -> Lost:
    """Names the op at which digits are lost.

    Args:
        graph: The converted graph.
        ops: The block's, in execution order.
        written: How far the block's output is off when one op's result alone is rounded to 11 bits, by the op's index.
        given: The same for what the block reads, by tensor.
        values: What the block's tensors hold.
        off_by: The error that is to be explained.
    """
    most = max((v for v in written.values() if v == v), default=0.0)
    most_given = max((v for v in given.values() if v == v), default=0.0)
    told: dict[int, float] = {op.outputs[0]: written[op.index] for op in ops if op.outputs and op.index in written}
    # Rounded once more inside, what is given shows as much in an op as in itself: then the op is at home here.
    if most_given > 2 * most:
        most, told = most_given, {**given, **told}
    if most <= off_by / SHARE or most <= 0:
        return Lost()
    worst = [t for t, v in told.items() if v >= most / 2]
    follows = _follows(ops)
    # Digits lost once are lost again by whatever handles the same large numbers next: the first of the worst is the
    # origin.
    roots = [t for t in worst if not any(other in follows.get(t, ()) for other in worst)]
    meeting = _meeting(graph, ops, roots, follows, values)
    if meeting is not None:
        op, times = meeting
        return Lost(
            op.index,
            f"Large terms cancel in {_name(op)}: it writes {number(times)} times less than it reads. Rounding one of "
            f"its terms alone to 11 bits puts the block's output off by {number(most)}: that is where the digits go.",
        )
    first = roots[0]
    made = next((op for op in ops if first in op.outputs), None)
    if made is not None:
        said = f"Rounding the result of {_name(made)} alone to 11 bits puts the block's output off by {number(most)}"
        return Lost(made.index, f"{said}: that is where the digits go.")
    reader = next((op for op in ops if op.type not in _MOVES and _reads(op, first, follows)), None)
    if reader is None:
        return Lost()
    said = f"Rounding what {_name(reader)} is given alone to 11 bits puts the block's output off by {number(most)}"
    return Lost(reader.index, f"{said}: fp16 holds too few digits of it.")


def _name(op: Op) -> str:
    return f"{op.type} (op {op.index})"


def _follows(ops: Sequence[Op]) -> dict[int, frozenset[int]]:
    """By tensor that an op writes, all tensors that it follows from."""
    found: dict[int, frozenset[int]] = {}
    for op in ops:
        before = frozenset(op.inputs).union(*(found.get(t, frozenset()) for t in op.inputs))
        found.update(dict.fromkeys(op.outputs, before))
    return found


def _reads(op: Op, tensor: int, follows: Mapping[int, frozenset[int]]) -> bool:
    return any(t == tensor or tensor in follows.get(t, ()) for t in op.inputs)


def _meeting(
    graph: Graph,
    ops: Sequence[Op],
    roots: Sequence[int],
    follows: Mapping[int, frozenset[int]],
    values: Mapping[int, np.ndarray],
) -> tuple[Op, float] | None:
    """The first difference of terms of several origins that is far smaller than they are, and how many times."""
    for op in ops:
        if op.type not in ("ADD", "SUB") or len(op.inputs) != 2:
            continue
        one, other = ({r for r in roots if r == t or r in follows.get(t, ())} for t in op.inputs)
        if not one or not other or (one == other and len(one) == 1):
            continue
        terms = max(_size(graph, t, values) for t in op.inputs)
        result = _size(graph, op.outputs[0], values)
        if 0 < result * CANCELS < terms:
            return op, terms / result
    return None


def _size(graph: Graph, tensor: int, values: Mapping[int, np.ndarray]) -> float:
    """Root mean square of a tensor's finite values; 0 where they are not known."""
    value = values.get(tensor)
    value = graph.constant(tensor) if value is None else value
    if value is None or value.dtype.kind != "f":
        return 0.0
    finite = value[np.isfinite(value)].astype(np.float64)
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
