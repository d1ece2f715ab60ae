"""Which ops ran where, as far as the delegate's log lets one tell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain, combinations, product
from math import prod

from bisect_litert.devices.placement import LogFindings, RefusedOp
from bisect_litert.graphs.graph import Graph, Op
from bisect_litert.vocabulary import Residency

KEPT_IN_ORDER = 16
"""Up to so many elements C++'s sort inserts one by one, which leaves equal ones in their order."""

MOST_WAYS = 64
"""Ways in which ops of some shapes may have been refused that are tried."""


def refused_ops(graph: Graph, findings: LogFindings) -> tuple[frozenset[int], dict[str, tuple[int, ...]]]:
    """Finds the ops a log says were refused.

    The log names the tensor for some reasons and only the op type for others; a reason that speaks of dimensions or
    rank then means the ops of that type that touch a tensor of rank 5 or more, any other reason means all of the
    type. If the number of ops that the log states does not come out with all of them, and does with those of some
    shapes only, it is those.

    Returns:
        Op indices, and the same by "OP: reason".
    """
    by_reason = {f"{r.op}: {r.reason}": _ops_of(graph, r) for r in findings.refused}
    everything = frozenset(i for ops in by_reason.values() for i in ops)
    if findings.cpu_ops and on_gpu(graph, findings, everything) is None:
        by_reason = _of_some_shapes(graph, findings, by_reason)
    return frozenset(i for ops in by_reason.values() for i in ops), by_reason


def _ops_of(graph: Graph, refused: RefusedOp) -> tuple[int, ...]:
    same = [op for op in graph.ops if op.type == refused.op]
    named = set(refused.tensors)
    if named:
        hit = [op for op in same if any(graph.tensors[t].name in named for t in (*op.inputs, *op.outputs))]
        if hit:
            return tuple(op.index for op in hit)
    if re.search(r"(?i)rank|dimension|\b[45]d\b|permutation", refused.reason):
        high = [op for op in same if any(len(graph.tensors[t].shape) > 4 for t in (*op.inputs, *op.outputs))]
        if high:
            return tuple(op.index for op in high)
    return tuple(op.index for op in same)


def _of_some_shapes(
    graph: Graph, findings: LogFindings, by_reason: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Leaves out the ops of shapes without which the log's number comes out; all stay where several answers fit."""
    ways: list[list[tuple[int, ...]]] = []
    for ops in by_reason.values():
        shapes: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for op in (graph.ops[i] for i in ops):
            shapes.setdefault(tuple(graph.tensors[t].shape for t in op.inputs if t >= 0), []).append(op.index)
        groups = list(shapes.values())
        if 2 ** len(groups) * prod(len(way) for way in ways) > MOST_WAYS:
            return by_reason
        counts = range(1, len(groups) + 1)
        ways.append([tuple(sorted(chain(*some))) for n in counts for some in combinations(groups, n)])
    fits = [way for way in product(*ways) if on_gpu(graph, findings, frozenset(chain(*way))) is not None]
    return dict(zip(by_reason, fits[0], strict=True)) if len(fits) == 1 else by_reason


def on_gpu(graph: Graph, findings: LogFindings, refused: frozenset[int]) -> frozenset[int] | None:
    """Works out which ops ran on the GPU.

    TensorFlow Lite cuts the graph into runs of supported and unsupported ops, each run taking every op whose inputs
    are ready, and gives the delegate the largest; of several as large, as layers of one kind make them, the first (it
    sorts by size, which keeps a few in order; of many it is not known which). Doing the same and arriving at the number
    of ops that the log states is what makes it known.

    Returns:
        Op indices, or None when the count does not come out.
    """
    everything = frozenset(op.index for op in graph.ops)
    if findings.gpu_ops is None:
        return None
    if findings.gpu_ops == 0:
        return frozenset()
    if not findings.cpu_ops:
        return everything
    parts = _partitions(graph.ops, refused)
    largest = sorted(parts, key=len, reverse=True)[:1]
    tied = sum(len(part) == len(largest[0]) for part in parts) if largest else 0
    for chosen in (largest if tied == 1 or len(parts) <= KEPT_IN_ORDER else [], parts):
        ops = frozenset(i for part in chosen for i in part)
        if len(ops) == findings.gpu_ops:
            return ops
    return None


def _partitions(ops: Sequence[Op], refused: frozenset[int]) -> list[list[int]]:
    """The supported runs, in order."""
    made_by = {t: op.index for op in ops for t in op.outputs}
    done: set[int] = set()
    waiting = list(ops)
    parts: list[list[int]] = []
    kind = None
    while waiting:
        ready = next((op for op in waiting if _ready(op, made_by, done)), None)
        if ready is None:
            return parts
        kind = ready.index in refused
        part: list[int] = []
        rest = []
        for op in waiting:
            if (op.index in refused) == kind and _ready(op, made_by, done):
                part.append(op.index)
                done.add(op.index)
            else:
                rest.append(op)
        waiting = rest
        if not kind:
            parts.append(part)
    return parts


def _ready(op: Op, made_by: Mapping[int, int], done: set[int]) -> bool:
    return all(made_by.get(t) is None or made_by[t] in done for t in op.inputs)


def of_block(ops: Sequence[Op], gpu: frozenset[int] | None, refused: frozenset[int]) -> Residency:
    """Where a block's ops ran."""
    if not ops:
        return Residency.UNKNOWN
    if gpu is None:
        return Residency.MIXED if any(op.index in refused for op in ops) else Residency.UNKNOWN
    here = sum(op.index in gpu for op in ops)
    return Residency.GPU if here == len(ops) else Residency.MIXED if here else Residency.CPU
