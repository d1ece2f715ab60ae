"""Sizes of a cut that still fails: dimensions are halved as long as the same cause shows.

Which dimensions have to change together follows from what each op does with its shapes (`shape_rules.py`); an op whose
rule is not known keeps its own. Inputs and constants are cut to the part where the fault is worst. Every step is run; a
rule that is wrong costs a try and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from bisect_litert.bundles.reproduction import tolerance
from bisect_litert.bundles.shrinking import Shrinker, Trial
from bisect_litert.graphs.axes import Axes
from bisect_litert.graphs.cutting import compact
from bisect_litert.graphs.graph import Graph
from bisect_litert.graphs.shape_rules import read_axes
from bisect_litert.vocabulary import Cause

MAX_SECONDS = 90.0
MAX_TRIES = 48
SMALL = 512
"""Bytes of inputs, results and constants under which nothing is gained."""


def halved(trial: Trial, shrinker: Shrinker) -> Trial:
    """Returns the trial with its dimensions cut down, the largest first, as far as the fault still shows."""
    if shrinker.kept.cause == Cause.HANG:  # each step would take the time limit
        return trial
    deadline, before = time.monotonic() + MAX_SECONDS, shrinker.tries
    axes = read_axes(trial.graph)
    graph, best, start = trial.graph, trial, size_of(trial)

    def step(atom: int, smaller: int) -> bool:
        """Cuts an atom to a size, if the fault shows in what is left."""
        nonlocal graph, best
        for first in _starts(axes, best, graph, atom, smaller):
            if time.monotonic() > deadline or shrinker.tries - before >= MAX_TRIES:
                return False
            made = axes.cut(graph, atom, first, smaller)
            at = {port.name: port.tensor for port in graph.inputs}
            inputs = {name: axes.part(at[name], value, atom, first, smaller) for name, value in best.inputs.items()}
            limit = tolerance(made, made.ops, shrinker.settings)
            again = shrinker.run(compact(made), inputs, limit, best.ops)
            if again.shows:
                graph, best = made, again
                axes.sizes[atom] = smaller
                return True
        return False

    for atom in sorted(axes.free(), key=lambda a: -_touched(axes, a, trial.graph)):
        # One element first: most faults do not mind, and it saves the way there.
        if size_of(best) <= SMALL or step(atom, 1):
            continue
        while axes.sizes[atom] > 3 and size_of(best) > SMALL and step(atom, axes.sizes[atom] // 2):
            pass
    if best is not trial:
        shrinker.say(f"sizes: {start} bytes before, {size_of(best)} after, still fails")
    return best


def size_of(trial: Trial) -> int:
    """Returns the bytes of a trial's inputs, results and constants."""
    constants = sum(4 * t.size for t in trial.graph.tensors if t.constant)
    return constants + sum(v.nbytes for v in (*trial.inputs.values(), *trial.expected.values()))


def _touched(axes: Axes, atom: int, graph: Graph) -> int:
    """Elements of the inputs, results and constants that an atom is part of."""
    ports = {port.tensor for port in (*graph.inputs, *graph.outputs)}
    tensors = {t for t, _ in axes.tensors(atom) if t in ports or graph.tensors[t].constant}
    return sum(graph.tensors[t].size for t in tensors)


def _starts(axes: Axes, best: Trial, graph: Graph, atom: int, smaller: int) -> Iterator[int]:
    """Where the part that stays may begin: around the worst result, or the largest input, then at the front."""
    at = {port.name: port.tensor for port in (*graph.inputs, *graph.outputs)}
    largest = ((name, _largest(value)) for name, value in best.inputs.items() if value.dtype.kind == "f")
    places = (axes.place(at[name], index, atom) for name, index in (*best.worst.items(), *largest))
    centre = next((place for place in places if place is not None), 0)
    start = max(0, min(centre - smaller // 2, axes.sizes[atom] - smaller))
    yield start
    if start:
        yield 0


def _largest(value: np.ndarray) -> tuple[int, ...]:
    sizes = np.where(np.isfinite(value), np.abs(value), 0)
    return tuple(int(n) for n in np.unravel_index(int(np.argmax(sizes)), value.shape))
