"""A file's inputs and outputs, and the model's: names and shapes propose, values prove.

A file that another converter made keeps neither names nor the order of axes: onnx2tf turns NCHW into NHWC, inputs and
outputs as well. The inputs are right when, fed in that order, the file gives what the model gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from bisect_litert.graphs.graph import Graph, Tensor
from bisect_litert.taps.tapper import Layout, find_layout, orders

MAX_FEEDS = 24
"""Ways to feed a file that are tried; more are possible only with many inputs of one shape."""


@dataclass(frozen=True)
class Feed:
    """One way to hand the model's inputs to the file."""

    values: Mapping[str, np.ndarray]
    """By signature input name, in the file's layout."""
    layouts: Mapping[str, tuple[str, Layout]]
    """By signature input name: the model's input, and how its axes go."""


@dataclass(frozen=True, slots=True)
class Match:
    """The file's output for one of the model's."""

    port: str
    layout: Layout
    error: float
    """Relative L2 difference on the CPU; nan where only the size tells that the two belong together."""

    @property
    def proved(self) -> bool:
        """Whether the values are the same."""
        return self.error == self.error


def feeds(graph: Graph, given: Sequence[tuple[str, np.ndarray]]) -> list[Feed]:
    """Returns the ways in which the model's inputs fit the file's, the most plausible first.

    Args:
        graph: The file.
        given: The model's input tensors by name, in order.
    """
    return list(islice(_feeds(graph, given), MAX_FEEDS))


def _feeds(graph: Graph, given: Sequence[tuple[str, np.ndarray]]) -> Iterator[Feed]:
    ports = graph.inputs
    named = {_bare(name): index for index, (name, _) in enumerate(given)}
    options: list[list[tuple[int, Layout]]] = []
    for port in ports:
        tensor = graph.tensors[port.tensor]
        by_name = next((named[n] for n in (_bare(port.name), _bare(tensor.name)) if n in named), None)
        tensors = [by_name] if by_name is not None else range(len(given))
        options.append(
            [(i, layout) for i in tensors if _kinds_agree(given[i][1], tensor) for layout in ways(given[i][1], tensor)]
        )

    def chosen(taken: tuple[tuple[int, Layout], ...]) -> Iterator[tuple[tuple[int, Layout], ...]]:
        if len(taken) == len(ports):
            yield taken
            return
        used = {i for i, _ in taken}
        # In order first: a file without telling names still keeps the order, mostly.
        rest = sorted(options[len(taken)], key=lambda way: way[0] != len(taken))
        for way in rest:
            if way[0] not in used:
                yield from chosen((*taken, way))

    for taken in chosen(()):
        values, layouts = {}, {}
        for port, (i, layout) in zip(ports, taken, strict=True):
            tensor = graph.tensors[port.tensor]
            value = layout.from_torch(given[i][1], tensor.shape)
            values[port.name] = tensor.stored(value.astype(np.float32) if value.dtype.kind == "f" else value)
            layouts[port.name] = (given[i][0], layout)
        yield Feed(values, layouts)


def match_outputs(
    graph: Graph, wanted: Mapping[str, np.ndarray], values: Mapping[int, np.ndarray], tolerance: float
) -> dict[str, Match]:
    """Finds the file's output for each of the model's.

    Args:
        graph: The file.
        wanted: The model's outputs, by label.
        values: What the file's tensors hold on the CPU, by index, as real numbers.
        tolerance: Relative L2 difference up to which two outputs hold one value.

    Returns:
        By label. Outputs that no value proves are paired by name or in order, where the sizes agree; those that have
        nothing left to be paired with are missing.
    """
    free = {port.name: port.tensor for port in graph.outputs}
    fits: list[tuple[float, int, str, str, Layout]] = []
    for position, (label, value) in enumerate(wanted.items()):
        for name, t in free.items():
            held = values.get(t)
            if held is not None and held.size == value.size:
                found = find_layout(value, np.asarray(held), tolerance)
                if found is not None:
                    fits.append((found[1], abs(position - list(free).index(name)), label, name, found[0]))
    matched: dict[str, Match] = {}
    for error, _, label, name, layout in sorted(fits, key=lambda f: f[:2]):
        if label not in matched and name in free:
            matched[label] = Match(name, layout, error)
            del free[name]
    for label, value in wanted.items():
        tensors = graph.tensors
        left = [n for n, t in free.items() if tensors[t].size == value.size and _kinds_agree(value, tensors[t])]
        if label not in matched and left:
            name = next((n for n in left if _bare(n) == _bare(label)), left[0])
            matched[label] = Match(name, next(ways(value, tensors[free.pop(name)])), float("nan"))
    return {label: matched[label] for label in wanted if label in matched}


def ways(value: np.ndarray, tensor: Tensor) -> Iterator[Layout]:
    """The orders of axes in which a value has a tensor's shape, the plain one first; axes of size 1 do not count."""
    if value.size != tensor.size:
        return
    found = False
    for order in orders(value.shape):
        moved = [value.shape[axis] for axis in order]
        if [n for n in moved if n != 1] == [n for n in tensor.shape if n != 1]:
            found = True
            yield Layout(tuple(value.shape), order)
    if not found:
        yield Layout(tuple(value.shape), tuple(range(value.ndim)))


def _kinds_agree(value: np.ndarray, tensor: Tensor) -> bool:
    if value.dtype.kind == "f":
        return tensor.is_real or tensor.dtype.startswith("FLOAT")
    return not tensor.is_real and not tensor.dtype.startswith("FLOAT")


def _bare(name: str) -> str:
    """A name without what exporters put around it."""
    return re.sub(r":\d+$", "", name).removeprefix("serving_default_").lower()
