"""Finds each block's output among the converted graph's tensors: names propose, values prove.

A tensor is a partner when it holds the block's value, up to a permutation of axes and a reshape, as closely as fp32
arithmetic allows. Several tensors often do (a RESHAPE behind it, an activation that changed nothing on these inputs);
then the module path in the tensor's name decides, the op's own before those of what it reads, and the last of the
best-named wins, since a block's output is the end of the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from math import prod

import numpy as np

from bisect_litert.graphs.graph import Graph
from bisect_litert.graphs.owners import levels, reaches
from bisect_litert.taps.fingerprints import (
    Fingerprints,
    Look,
    Tensors,
    distance,
    fingerprint,
    look_at,
    sampled,
    similar,
)

NAMED_TOLERANCE = 1e-3
"""Relative L2 difference that a tensor named after the block may show. Plain CPU kernels add up one by one: a
GroupNorm over half a million elements is off by 1.4e-4, a mean over 1.5 million by 2.4e-5 (measured), where torch's
own fp32 error is 2e-7."""
NEAR = 10.0
MAX_PERMUTED_RANK = 6


@dataclass(frozen=True, slots=True)
class Layout:
    """How a .tflite tensor holds a PyTorch tensor: torch.transpose(permutation).reshape(tensor shape)."""

    torch_shape: tuple[int, ...]
    permutation: tuple[int, ...]

    @property
    def plain(self) -> bool:
        """Whether elements come in PyTorch's order."""
        return self.permutation == tuple(range(len(self.torch_shape)))

    def to_torch(self, values: np.ndarray) -> np.ndarray:
        """Returns a .tflite tensor in PyTorch's shape and order."""
        moved = [self.torch_shape[axis] for axis in self.permutation]
        torch_order: np.ndarray = np.asarray(values).reshape(moved).transpose(np.argsort(self.permutation))
        return torch_order

    def from_torch(self, values: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Returns a PyTorch tensor in the .tflite tensor's shape and order."""
        return np.ascontiguousarray(np.asarray(values).transpose(self.permutation)).reshape(tuple(shape))

    def describe(self, shape: Sequence[int]) -> str:
        """A word for people: "", "reshape" or "permute 0,2,3,1"."""
        if not self.plain:
            return "permute " + ",".join(map(str, self.permutation))
        return "" if tuple(shape) == self.torch_shape else "reshape"


@dataclass(frozen=True, slots=True)
class Partner:
    """A tensor of the graph that holds a block's output."""

    tensor: int
    layout: Layout
    error: float
    """Relative L2 difference from PyTorch's value on the CPU."""
    named: bool
    """Whether its name carries the block's module path."""


class Finder:
    """Finds tensors of a graph by the values they hold.

    Args:
        graph: The converted graph.
        values: CPU values of its tensors, by index; constants may be missing.
        near: Times the closest one's difference up to which a tensor may be the partner, if its name says so.
    """

    def __init__(self, graph: Graph, values: Mapping[int, np.ndarray], near: float = NEAR) -> None:
        self._graph, self._near = graph, near
        self._values = values if isinstance(values, Tensors) else Tensors(values)
        self._prints = Fingerprints(self._values, graph.computed)

    def find(self, value: np.ndarray, module: str, tolerance: float, behind: int = -1) -> Partner | None:
        """Finds the tensor that holds a block's output; see `fits` and `choose`."""
        return self.choose(self.fits(value, module, tolerance), module, behind)

    def fits(self, value: np.ndarray, module: str, tolerance: float) -> list[Partner]:
        """Finds the tensors that hold a block's output.

        Args:
            value: The block's output in PyTorch, float32.
            module: The block's module path.
            tolerance: Largest relative L2 difference that fp32 arithmetic explains at this place; a tensor named after
                the block may be off by `NAMED_TOLERANCE`.
        """
        fits: list[Partner] = []
        for t in self._prints.near(value, max(tolerance, NAMED_TOLERANCE)):
            named = _names(self._graph.tensors[t].name, module) > 0
            allowed = max(tolerance, NAMED_TOLERANCE) if named else tolerance
            found = _match(value, self._values.look(t), partial(self._values.__getitem__, t), allowed)
            if found is not None:
                fits.append(Partner(t, *found, named))
        return fits

    def choose(self, fits: Sequence[Partner], module: str, behind: int = -1) -> Partner | None:
        """Chooses among the tensors that hold a block's output.

        Args:
            fits: The tensors.
            module: The block's module path.
            behind: The tensor of what ran before the block, if known: where no name tells, it is not looked for before
                that.

        Returns:
            The best partner, or None when no tensor holds the value.
        """
        graph = self._graph
        if not fits:
            return None
        closest = min(p.error for p in fits)
        near = [p for p in fits if p.error <= max(self._near * closest, 1e-6)]
        best = max(_names(graph.tensors[p.tensor].name, module) for p in near)
        chosen = [p for p in near if _names(graph.tensors[p.tensor].name, module) == best]
        # The name of a constant that blocks share goes into the names of all that read it; an op's own comes first.
        # Where blocks hand on what they are given (a branch that starts at zero), values cannot tell them apart.
        chosen = [p for p in chosen if _names(_own(graph.tensors[p.tensor].name), module)] or chosen
        # Without a name to go by, the earliest holder is the one that computed it; with one, the block's last op is its
        # output.
        if best:
            return _last(chosen, graph)
        return _first([p for p in chosen if _position(p.tensor, graph) >= _position(behind, graph)] or chosen, graph)


def same_value(value: np.ndarray, other: np.ndarray, tolerance: float) -> bool:
    """Whether two tensors hold one value, up to a permutation of axes and a reshape."""
    if other.size != value.size or other.dtype.kind != value.dtype.kind:
        return False
    return find_layout(value, other, tolerance) is not None


def _position(tensor: int, graph: Graph) -> int:
    op = graph.producer.get(tensor)
    return -1 if op is None else op.index


def _last(partners: Sequence[Partner], graph: Graph) -> Partner:
    return max(partners, key=lambda p: _position(p.tensor, graph))


def _first(partners: Sequence[Partner], graph: Graph) -> Partner:
    return min(partners, key=lambda p: _position(p.tensor, graph))


def _names(tensor_name: str, module: str) -> int:
    """How many levels of a module path a tensor's name carries down to the path's end; 0 when it does not."""
    path = module.split(".")
    return max(reaches(levels(part), path) for part in tensor_name.split(";;"))


def _own(tensor_name: str) -> str:
    return tensor_name.split(";;")[0]


def find_layout(value: np.ndarray, other: np.ndarray, tolerance: float) -> tuple[Layout, float] | None:
    """Returns the order of axes in which a tensor of the same size holds a value, and the relative L2 difference; None
    where it does not."""
    look = look_at(other)
    if not similar(fingerprint(value), look.print, tolerance):
        return None
    return _match(value, look, lambda: other, tolerance)


def _match(
    value: np.ndarray, look: Look, other: Callable[[], np.ndarray], tolerance: float
) -> tuple[Layout, float] | None:
    """As `find_layout`; the other tensor is asked for only where what is known of it fits."""
    sample = sampled(look.size)
    norm = float(np.linalg.norm(np.nan_to_num(look.sample.astype(np.float64), posinf=0, neginf=0)))
    whole = look.print.norm
    best: tuple[Layout, float] | None = None
    for permutation in orders(value.shape):
        moved = value.transpose(permutation)
        picked = moved[np.unravel_index(sample, moved.shape)] if moved.ndim else moved.reshape(-1)
        if (
            distance(picked, look.sample)
            > 10 * tolerance * max(norm, whole * np.sqrt(sample.size / max(1, look.size))) + 1e-30
        ):
            continue
        error = distance(moved, other().reshape(-1))
        error = error / whole if whole else (0.0 if error == 0 else np.inf)
        # What holds in two orders up to fp32's noise (a symmetric matrix) is taken as it is.
        if error <= tolerance and (best is None or best[1] > max(10 * error, 1e-6)):
            best = (Layout(value.shape, permutation), float(error))
            if error < 1e-7:
                break
    return best


def orders(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yields axis orders that can differ in memory: plain first, then the others, axes of size 1 out of the way."""
    rank = len(shape)
    plain = tuple(range(rank))
    yield plain
    long_axes = [axis for axis in plain if shape[axis] != 1]
    ones = [axis for axis in plain if shape[axis] == 1]
    if not 2 <= len(long_axes) <= MAX_PERMUTED_RANK or prod(shape) <= 1:
        return
    # NHWC before anything else: it is what the converter does to convolutions.
    orders = sorted(
        permutations(long_axes),
        key=lambda o: o != (*long_axes[:-3], *long_axes[-2:], long_axes[-3]) if len(o) > 2 else True,
    )
    for order in orders:
        if list(order) != long_axes:
            yield (*ones, *order)
