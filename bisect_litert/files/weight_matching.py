"""A file's constants and the module's weights: was the file made of this checkpoint?

Another checkpoint makes every block differ on the CPU, which looks like a wrong conversion of all of them. A weight is
looked for among the constants of its shape, in any order of axes; quantised ones are read as what they stand for.
Converters fold factors into weights (BatchNorm into a convolution): what differs by a factor per channel is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan

import numpy as np

from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.metrics import compare
from bisect_litert.taps.tapper import orders

SAME = 1e-4
"""Relative L2 difference up to which a weight is the same: what a converter stores is a copy."""
HALF = 2**-10
"""The same for weights stored in fp16."""
STEPS = 3.0
"""Times the rounding noise of a quantised weight up to which it is the same."""
SAMPLE = 256
"""Elements that are looked at before all of them are."""
MAX_TRIED = 8
"""Constants of one shape that a weight which is none of them is compared with in full."""


@dataclass(frozen=True)
class Weights:
    """What of a module's weights a file holds."""

    same: int = 0
    """Weights that it holds, up to rounding and a factor per channel."""
    other: Mapping[str, float] = field(default_factory=dict)
    """By parameter name, how far the constant in its place is off (relative L2); nan when that is not finite."""

    def sentence(self, file: str) -> str:
        """What is to be said of it; empty when the file holds what it should."""
        if not self.other:
            return ""
        worst = max(self.other, key=lambda name: (isnan(self.other[name]), self.other[name]))
        total = self.same + len(self.other)
        differ = (
            f"{len(self.other)} of {total} weights that have a counterpart in it differ" if total > 1 else "it differs"
        )
        level = (
            "is not finite there" if isnan(self.other[worst]) else f"is off by {self.other[worst]:.3g} (relative L2)"
        )
        return f"{file} was made from other weights: {differ}, and {worst} {level}."


def match_weights(graph: Graph, parameters: Sequence[tuple[str, np.ndarray]]) -> Weights:
    """Looks for a module's weights in a file.

    Args:
        graph: The file.
        parameters: By name, float. What has fewer than two axes, or one value throughout, says nothing and is left out.
    """
    constants: dict[tuple[int, ...], list[int]] = {}
    for tensor in graph.tensors:
        if tensor.constant and tensor.size > 1 and (tensor.is_real or tensor.dtype == "FLOAT16"):
            constants.setdefault(_kind(tensor.shape), []).append(tensor.index)
    held: set[int] = set()
    missing: list[tuple[str, np.ndarray]] = []
    same = 0
    for name, value in parameters:
        if value.ndim < 2 or value.dtype.kind != "f" or value.size < 2 or np.all(value == value.flat[0]):
            continue
        found = next((t for t in constants.get(_kind(value.shape), ()) if _is_copy(graph, t, value)), None)
        if found is None:
            missing.append((name, value))
        else:
            same += 1
            held.add(found)
    other: dict[str, float] = {}
    for name, value in missing:
        free = [t for t in constants.get(_kind(value.shape), ()) if t not in held]
        # Names carry the module path, and files keep the order: the likeliest first.
        free.sort(key=lambda t: not _named(graph.tensors[t].name, name))
        ways = [(t, *_difference(graph, t, value)) for t in free[:MAX_TRIED]]
        if not ways:
            continue  # folded into something else: nothing tells
        t, error, scaled = min(ways, key=lambda way: (not way[2], np.inf if isnan(way[1]) else way[1]))
        held.add(t)
        if scaled:
            same += 1
        else:
            other[name] = error
    return Weights(same, other)


def _kind(shape: Sequence[int]) -> tuple[int, ...]:
    """What shapes have in common that an order of axes, or one of size 1, does not change."""
    return tuple(sorted(n for n in shape if n != 1))


def _named(tensor: str, parameter: str) -> bool:
    path = parameter.rpartition(".")[0]
    return bool(path) and (path in tensor or path.replace(".", "_") in tensor)


def _tolerance(graph: Graph, t: int, value: np.ndarray) -> float:
    tensor = graph.tensors[t]
    if tensor.quantisation is not None:
        level = float(np.sqrt(np.mean(np.square(value, dtype=np.float64))))
        return STEPS * tensor.quantisation.noise / level if level else SAME
    return HALF if tensor.dtype == "FLOAT16" else SAME


def _ways(value: np.ndarray, shape: Sequence[int]) -> Iterator[np.ndarray]:
    """Views of a weight in the orders of axes that have a constant's shape."""
    wanted = [n for n in shape if n != 1]
    for order in orders(value.shape):
        if [value.shape[axis] for axis in order if value.shape[axis] != 1] == wanted:
            yield value.transpose(order)


def _is_copy(graph: Graph, t: int, value: np.ndarray) -> bool:
    held = graph.real_constant(t)
    if held is None:
        return False
    tolerance, where = (
        _tolerance(graph, t, value),
        np.linspace(0, value.size - 1, min(SAMPLE, value.size), dtype=np.int64),
    )
    sample = held.reshape(-1)[where]
    for way in _ways(value, held.shape):
        some = way[np.unravel_index(where, way.shape)]
        # A sample of a copy is a copy; of a rounded one it is off by no more than a few times its share.
        if _off(some, sample) <= 4 * tolerance and _off(way, held) <= tolerance:
            return True
    return False


def _off(reference: np.ndarray, target: np.ndarray) -> float:
    found = compare(reference=np.ascontiguousarray(reference).reshape(-1), target=target.reshape(-1))
    level = found.relative_l2 if found.finite_agreement else float("nan")
    return level if isfinite(level) else float("inf")


def _difference(graph: Graph, t: int, value: np.ndarray) -> tuple[float, bool]:
    """How far a constant is off in the best order of axes, and whether a factor per channel explains it."""
    held = graph.real_constant(t)
    if held is None:
        return float("nan"), False
    tolerance, best = _tolerance(graph, t, value), float("inf")
    for way in _ways(value, held.shape):
        target = held.reshape(way.shape)
        best = min(best, _off(way, target))
        if any(
            _off(_scaled(way, target, axis), target) <= tolerance for axis in range(way.ndim) if way.shape[axis] > 1
        ):
            return best, True
    return (best if isfinite(best) else float("nan")), False


def _scaled(value: np.ndarray, target: np.ndarray, axis: int) -> np.ndarray:
    """A weight times the factor per channel that brings it closest to a constant."""
    others = tuple(a for a in range(value.ndim) if a != axis)
    power = np.sum(np.square(value, dtype=np.float64), axis=others, keepdims=True)
    shared = np.sum(value.astype(np.float64) * target, axis=others, keepdims=True)
    factor = np.divide(shared, power, out=np.zeros_like(shared), where=power > 0)
    scaled: np.ndarray = value * factor
    return scaled
