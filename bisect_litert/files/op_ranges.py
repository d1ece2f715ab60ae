"""Blocks for graphs whose names tell nothing: stretches of ops that end where few tensors are alive."""

from __future__ import annotations

from math import ceil

from bisect_litert.graphs.graph import Graph

BLOCKS = 20
"""How many stretches to aim at: few enough to read, many enough to narrow a thousand ops down to fifty."""


def split(graph: Graph) -> list[tuple[int, int]]:
    """Returns first and last op of each stretch, in order.

    The aim is `BLOCKS` stretches of one length; each ends within half a length of that where the fewest tensors, and of
    those the fewest bytes, are handed on.
    """
    ops = graph.ops
    if not ops:
        return []
    length = ceil(len(ops) / BLOCKS)
    alive = _alive(graph)
    found: list[tuple[int, int]] = []
    start = 0
    while start < len(ops):
        wanted = start + length - 1
        window = range(max(start, wanted - length // 2), min(len(ops), wanted + length // 2 + 1))
        if not window or wanted + length // 2 >= len(ops) - 1:
            end = len(ops) - 1
        else:
            end = min(window, key=lambda i: (*alive[i], abs(i - wanted)))
        found.append((start, end))
        start = end + 1
    return found


def name(first: int, last: int) -> str:
    """Returns how a stretch is called."""
    return f"ops {first}-{last}" if first < last else f"op {first}"


def _alive(graph: Graph) -> list[tuple[int, int]]:
    """How many tensors, and of how many elements, are still to be read after each op."""
    last_read = {t: max(op.index for op in ops) for t, ops in graph.consumers.items()}
    last_read.update({port.tensor: len(graph.ops) for port in graph.outputs})
    counts = [0] * len(graph.ops)
    sizes = [0] * len(graph.ops)
    for t, op in graph.producer.items():
        if t in graph.computed:
            for i in range(op.index, min(last_read.get(t, op.index), len(graph.ops))):
                counts[i] += 1
                sizes[i] += graph.tensors[t].size
    return list(zip(counts, sizes, strict=True))
