"""Buffers handed to the wrong owner: an output that comes back with the values of what it was made from."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.metrics import compare

SAME = 2e-2
"""Relative L2 difference up to which a GPU tensor is taken for another one's value: what fp16 costs, no more."""
APART = 1e-1
"""Relative L2 difference from which two tensors are certainly not one another's value."""
FUSED = 6
"""Ops that a fused chain may hold, as proving.LONGEST_REGION has it: the buffer may be that of its first operand."""


def operand_in_place_of(graph: Graph, tensor: int, seen: np.ndarray, values: Mapping[int, np.ndarray]) -> int | None:
    """Finds the operand whose values an output buffer holds, or the operand's own operand, and so on.

    Only a tensor that other ops read as well gets another one's buffer (docs/taps.md), so any other is left alone. Ops
    that are fused write one buffer, so it may be that of the first one's operand (x of (x + a) + b).

    Args:
        graph: The converted graph.
        tensor: The tensor that was read back.
        seen: What came back, in the graph's element order.
        values: CPU values of the graph's tensors, by index.

    Returns:
        That tensor's index, of several the nearest; None when the tensor holds its own value or something else.
    """
    op, own = graph.producer.get(tensor), values.get(tensor)
    if op is None or own is None or tensor not in graph.consumers or own.size < 2 or own.size != seen.size:
        return None
    flat = np.asarray(seen).reshape(-1)
    if _difference(own, flat) < APART:
        return None
    visited: set[int] = set()
    near = list(op.inputs)
    for _ in range(FUSED):
        further: list[int] = []
        for operand in dict.fromkeys(t for t in near if t not in visited):
            visited.add(operand)
            other = values.get(operand)
            # What is not of its size is no buffer for it, and ops of other sizes end a fusion.
            if other is None or other.size != flat.size or other.dtype.kind != "f":
                continue
            if _difference(own, other) >= APART and _difference(other, flat) < SAME:
                return operand
            maker = graph.producer.get(operand)
            further += list(maker.inputs) if maker is not None else []
        near = further
    return None


def _difference(reference: np.ndarray, target: np.ndarray) -> float:
    found = compare(reference=reference, target=target)
    return found.relative_l2 if found.finite_agreement and found.relative_l2 == found.relative_l2 else np.inf
