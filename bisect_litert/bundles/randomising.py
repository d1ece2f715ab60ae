"""Random numbers in place of a reproduction's weights or inputs, as long as it still fails the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from bisect_litert.bundles.shrinking import Shrinker, Trial
from bisect_litert.graphs.cutting import compact
from bisect_litert.graphs.editor import Editor
from bisect_litert.graphs.emulation import Rounding, round_array
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.metrics import FP16_MAX

Maker = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def _normal(like: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.normal(float(like.mean()), float(like.std()) or 1.0, like.shape)


def _uniform(like: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(float(like.min()), float(like.max()), like.shape)


def _two_values(like: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    low, high = float(like.min()), float(like.max())
    return np.where(rng.random(like.shape) < 0.5, low, high)


WAYS: Mapping[str, Maker] = {
    "normal numbers of the same mean and spread": _normal,
    "uniform numbers between the smallest and the largest": _uniform,
    "the smallest and the largest value, at random": _two_values,
}
"""What is tried in turn, by how a report calls it."""


def weights_of(graph: Graph) -> list[int]:
    """Returns the constants that count as weights: floats of more than one element."""
    return [t.index for t in graph.tensors if t.constant and t.is_float and t.size > 1]


def without_weights(trial: Trial, shrinker: Shrinker) -> tuple[Trial, str] | None:
    """Returns the trial with random weights and how they were made; None when no way keeps the fault."""
    weights = weights_of(trial.graph)
    if not weights:
        return trial, "it holds none"
    for how, make in WAYS.items():
        rng = np.random.default_rng(0)
        editor = Editor(trial.graph)
        for t in weights:
            value = trial.graph.constant(t)
            if value is None:
                return None
            editor.fill(t, _made(make, value, rng))
        again = shrinker.run(compact(editor.graph()), trial.inputs, trial.tolerance, trial.ops)
        if again.shows:
            return again, how
    return None


def without_inputs(trial: Trial, shrinker: Shrinker) -> tuple[Trial, str] | None:
    """Returns the trial with random inputs and how they were made; None when no way keeps the fault."""
    for how, inputs in random_inputs(trial.inputs, shrinker.exact):
        again = shrinker.run(trial.graph, inputs, trial.tolerance, trial.ops)
        if again.shows:
            return again, how
    return None


def _made(make: Maker, like: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Other values of the same shape and type; an infinity among the old ones makes some ways fail by itself."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(make(like.astype(np.float64), rng)).astype(like.dtype)


def random_weights(weights: Mapping[str, np.ndarray]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yields other weights, and how they were made; what is no float or has one element stays."""
    for how, make in WAYS.items():
        rng = np.random.default_rng(0)
        yield (
            how,
            {
                name: _made(make, value, rng) if value.dtype.kind == "f" and value.size > 1 else value
                for name, value in weights.items()
            },
        )


def random_inputs(inputs: Mapping[str, np.ndarray], exact: bool) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yields other inputs, and how they were made.

    Args:
        inputs: By name.
        exact: Leave them unrounded; else those that fp16 holds are rounded to it.
    """
    for how, make in WAYS.items():
        rng = np.random.default_rng(0)
        made: dict[str, np.ndarray] = {}
        for name, value in inputs.items():
            if value.dtype.kind != "f":
                top = int(value.max(initial=0))
                low = int(value.min(initial=0))
                made[name] = rng.integers(low, top, value.shape, endpoint=True).astype(value.dtype)
                continue
            finite = value[np.isfinite(value)].astype(np.float64)
            new = np.asarray(make(finite, rng) if finite.size == value.size else _normal(finite, rng))
            new = np.resize(new, value.shape).astype(value.dtype)
            fits = exact or value.dtype != np.float32 or float(np.abs(new).max(initial=0.0)) > FP16_MAX
            made[name] = new if fits else round_array(new, Rounding.HALF)
        yield how, made
