"""Tensors that are nothing but rounding noise: what an error there is held against.

Where terms cancel to nothing (a softmax's sum minus 1, the mean of a centred row), fp32 gives the rounding of the terms
and not one digit of the result. No target can be held to such digits relatively. What can be asked of it is that it
rounds the terms no worse than it rounds other numbers. So an error there is taken relative to the terms' size, and
every limit then means what it means elsewhere. The size is told by what rounding leaves of the terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, sqrt

import numpy as np

from bisect_litert.graphs.graph import REARRANGES, Graph, Op
from bisect_litert.measuring.metrics import FP16_UNIT
from bisect_litert.measuring.pieces import dot, let_go, pairs

FP32_UNIT = 2.0**-24
"""Largest relative error of rounding to fp32's 24 significant bits."""
LOST = 2.0
"""Times the exact value that fp32's error has to exceed: then no number of the exact value's size is that far off, so
what fp32 gives is larger than the value, and mostly error."""
_MOVES = (*REARRANGES, "SLICE", "STRIDED_SLICE")
"""Ops that hand on an operand's numbers."""


@dataclass(frozen=True, slots=True)
class Noise:
    """A tensor of which fp32 holds no digit."""

    exact: float
    """Root mean square in fp64."""
    single: float
    """The same in fp32."""
    terms: float
    """2-norm of the terms that cancel: what an error is relative to."""

    def sentence(self, names: str) -> str:
        """Says so, and what an error is held against."""
        what = f"fp64 gives {self.exact:.1g} where fp32 gives {self.single:.1g}"
        return (
            f"{names} is fp32 noise: {what}. It has no digits to compare, so its error is taken relative to the terms "
            "that cancel there."
        )


@dataclass(frozen=True)
class Held:
    """A reference and what errors are held against where it is noise; a `readings.Forward`."""

    taps: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    noise: Mapping[str, Noise]
    """By tap key or output label."""

    @property
    def terms(self) -> dict[str, float]:
        """2-norms of the terms, by tap key or output label."""
        return {key: found.terms for key, found in self.noise.items()}


def find_noise(exact: Mapping[str, np.ndarray], single: Mapping[str, np.ndarray]) -> dict[str, Noise]:
    """Finds the tensors of which fp32 holds no digit; one that is all zero in fp32 may be one.

    Args:
        exact: In fp64, by tap key or output label.
        single: In fp32.
    """
    return {key: error.noise for key, error in fp32_errors(exact, single).items() if error.noise}


@dataclass(frozen=True, slots=True)
class Fp32Error:
    """What fp32 makes of one tensor."""

    relative_l2: float
    """2-norm of its error over that of the exact tensor; inf where that is zero and the error is not."""
    noise: Noise | None


def fp32_errors(exact: Mapping[str, np.ndarray], single: Mapping[str, np.ndarray]) -> dict[str, Fp32Error]:
    """Measures what fp32 costs float tensors; what is not finite in both is left out.

    Args:
        exact: In fp64, by tap key or output label.
        single: In fp32; those of another shape are left out.
    """
    found = {}
    for key, value in single.items():
        if value.dtype.kind != "f" or not value.size or key not in exact or exact[key].shape != value.shape:
            continue
        error, size, given = _norms(exact[key], value)
        root = sqrt(value.size)
        lost = given == 0 or error > LOST * size
        noise = Noise(size / root, given / root, error / FP32_UNIT) if lost else None
        found[key] = Fp32Error(error / size if size else inf if error else 0.0, noise)
    return found


def complete(
    noise: Mapping[str, Noise],
    single: Mapping[str, np.ndarray],
    rounded: Mapping[str, np.ndarray],
    at: Mapping[str, int],
    graph: Graph,
    values: Mapping[int, np.ndarray],
) -> dict[str, Noise]:
    """Measures the terms again, since the error of one run may be small by chance: by what rounding to 11 bits leaves
    of them, and where an addition makes the noise, by its operands.

    Args:
        noise: As `find_noise` has it.
        single: What the reference gives, by tap key or output label.
        rounded: The same in the run that rounds to 11 bits.
        at: The graph's tensor of each.
        graph: The converted graph.
        values: What its tensors hold on the CPU.

    Returns:
        Those that have terms; without any, a zero is a zero.
    """
    found = {}
    for key, seen in noise.items():
        terms = seen.terms
        if key in rounded and rounded[key].size == single[key].size:
            terms = max(terms, _norms(single[key], rounded[key])[0] / FP16_UNIT)
        terms = max(terms, _operands(graph, at.get(key, -1), values))
        if terms > 0:
            found[key] = replace(seen, terms=terms)
    return found


def _norms(exact: np.ndarray, seen: np.ndarray) -> tuple[float, float, float]:
    """2-norms of the difference and of both tensors, over what is finite in both."""
    sums = np.zeros(3)
    for one, other in pairs(exact, seen):
        ref, out = one.astype(np.float64), other.astype(np.float64)
        both = np.isfinite(ref) & np.isfinite(out)
        ref, out = ref[both], out[both]
        sums += (dot(out - ref, out - ref), dot(ref, ref), dot(out, out))
    let_go(exact, seen)
    error, size, given = np.sqrt(sums)
    return float(error), float(size), float(given)


def _operands(graph: Graph, tensor: int, values: Mapping[int, np.ndarray]) -> float:
    """2-norm of the larger terms that an addition or a sum puts together to a tensor; 0 where none makes it."""
    made = graph.producer.get(tensor)
    while made is not None and made.type in _MOVES:
        made = graph.producer.get(made.inputs[0])
    if made is None or not values:
        return 0.0
    size = graph.tensors[tensor].size
    if made.type in ("ADD", "SUB"):
        return sqrt(size) * max(_root_mean_square(graph, t, values) for t in made.inputs)
    if made.type in ("MEAN", "SUM"):
        share = 1.0 if made.type == "MEAN" else _reduced(graph, made)
        return sqrt(size * share) * _root_mean_square(graph, made.inputs[0], values)
    return 0.0


def _reduced(graph: Graph, op: Op) -> float:
    return graph.tensors[op.inputs[0]].size / max(1, graph.tensors[op.outputs[0]].size)


def _root_mean_square(graph: Graph, tensor: int, values: Mapping[int, np.ndarray]) -> float:
    value = values.get(tensor)
    value = graph.constant(tensor) if value is None else value
    if value is None or value.dtype.kind != "f" or not value.size:
        return 0.0
    finite = value[np.isfinite(value)].astype(np.float64).reshape(-1)
    return sqrt(dot(finite, finite) / finite.size) if finite.size else 0.0


def sentences(noise: Mapping[str, Noise], most: int = 5) -> list[str]:
    """Says which tensors are noise, the first ones in full; what a block and the model return alike is told once."""
    names: dict[tuple[float, float], list[str]] = {}
    for key, found in noise.items():
        names.setdefault((found.exact, found.single), []).append(key)
    told = [noise[keys[0]].sentence(" (and so ".join(keys[:2]) + ")" * (len(keys) > 1)) for keys in names.values()]
    return [*told[:most], f"So are {len(told) - most} more tensors."] if len(told) > most else told
