"""Decides where each block is tapped: in the graph that ships where its value is found, by a second conversion where
it is not."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bisect_litert.errors import BisectError
from bisect_litert.graphs.editor import Editor
from bisect_litert.graphs.emulation import SPLIT_LIMIT
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.pieces import let_go
from bisect_litert.measuring.readings import OUTPUT, Forward, Tap
from bisect_litert.taps.fingerprints import Tensors
from bisect_litert.taps.parting import Claim, part
from bisect_litert.taps.tapper import NEAR, Finder, Layout, Partner
from bisect_litert.vocabulary import TapOrigin

LOOSEST = 1e-2
"""A tensor further off than this is no proof of anything, however chaotic the model."""
TIGHTEST = 1e-5


@dataclass(frozen=True, slots=True)
class Tapping:
    """The taps and the graph they live in."""

    graph: Graph
    """Without any tap outputs yet."""
    taps: tuple[Tap, ...]
    outputs: Mapping[str, str]
    """Signature output by the model's own output label."""
    values: Mapping[int, np.ndarray]
    """CPU values of the graph's tensors, by index."""
    notes: tuple[str, ...] = ()
    shipped: Tapping | None = None
    """Where the graph is that of a second conversion: the taps that the graph that ships has."""

    @property
    def tame(self) -> frozenset[int]:
        """Tensors whose CPU values are finite and far from float32's end."""
        known = self.values if isinstance(self.values, Tensors) else Tensors(self.values)
        found = set()
        for t in known:
            look = known.look(t)
            fits = not look.print.nonfinite and look.print.low > -SPLIT_LIMIT and look.print.high < SPLIT_LIMIT
            if look.kind == "f" and look.size and fits:
                found.add(t)
        return frozenset(found)

    def right(self, taken: Mapping[str, np.ndarray]) -> Mapping[int, np.ndarray]:
        """The right value of every tensor, in the graph's layout: PyTorch's at the taps, the CPU's elsewhere.

        Args:
            taken: PyTorch's value at each tap, by key.
        """
        return _Right(self, taken)


class _Right(Mapping[int, np.ndarray]):
    """Puts a tensor into the graph's layout when it is asked for, since that may be a copy, and few are."""

    def __init__(self, tapping: Tapping, taken: Mapping[str, np.ndarray]) -> None:
        self._tapping, self._taken = tapping, taken
        self._taps = {t.tensor: t for t in tapping.taps if t.tensor >= 0 and t.layout is not None}

    def __getitem__(self, tensor: int) -> np.ndarray:
        tap = self._taps.get(tensor)
        if tap is None or tap.layout is None:
            return self._tapping.values[tensor]
        return tap.layout.from_torch(self._taken[tap.key], self._tapping.graph.tensors[tensor].shape)

    def __iter__(self) -> Iterator[int]:
        return iter(dict.fromkeys([*self._tapping.values, *self._taps]))

    def __len__(self) -> int:
        return len({*self._tapping.values, *self._taps})


def locate(
    graph: Graph,
    points: Sequence[Any],
    taken: Mapping[str, np.ndarray],
    values: Mapping[int, np.ndarray],
    tolerance: Mapping[str, float],
    known: Mapping[str, int] = {},
    returned: Mapping[int, np.ndarray] = {},
    loosest: float = LOOSEST,
    near: float = NEAR,
) -> tuple[Tap, ...]:
    """Finds each tap point's tensor in the graph.

    Args:
        graph: The converted graph.
        points: The reference's tap points, in execution order.
        taken: PyTorch's value at each, by key.
        values: CPU values of the graph's tensors, by index.
        tolerance: Relative L2 difference that fp32 explains at each, by key.
        known: Tensors that are known to be a tap's, by key, in PyTorch's layout.
        returned: What the model returns in PyTorch, by the tensor of the graph that is that output. A block that
            returns the same needs no other proof.
        loosest: Tolerances above this are taken for this.
        near: See `tapper.Finder`.
    """
    inputs = {port.tensor for port in graph.inputs}
    partners = _partners(graph, points, taken, values, tolerance, known, loosest, near)
    taps: list[Tap] = []
    for point in points:
        value, tensor, layout = taken[point.key], -1, None
        origin = TapOrigin.NONE
        if point.key in known:
            tensor, layout, origin = known[point.key], _plain(value.shape), TapOrigin.REEXPORT
        elif value.size and value.dtype == np.float32:
            partner = partners.get(point.key)
            if partner is not None:
                tensor, layout, origin = partner.tensor, partner.layout, TapOrigin.GRAPH
            else:
                same = [t for t, out in returned.items() if out.shape == value.shape and np.array_equal(out, value)]
                if same:
                    tensor, layout, origin = same[0], _plain(value.shape), TapOrigin.GRAPH
            let_go(value)
        if tensor in inputs:
            tensor, layout, origin = -1, None, TapOrigin.INPUT
        elif tensor >= 0 and tensor not in graph.computed:
            tensor, layout, origin = -1, None, TapOrigin.CONSTANT
        taps.append(
            Tap(
                key=point.key,
                block=point.block_key,
                module=point.block,
                class_name=point.class_name,
                call=point.call,
                label=point.label,
                shape=tuple(value.shape),
                dtype=str(value.dtype),
                origin=origin,
                tensor=tensor,
                layout=layout,
            )
        )
    return tuple(taps)


def _partners(
    graph: Graph,
    points: Sequence[Any],
    taken: Mapping[str, np.ndarray],
    values: Mapping[int, np.ndarray],
    tolerance: Mapping[str, float],
    known: Mapping[str, int],
    loosest: float,
    near: float,
) -> dict[str, Partner]:
    """The tensor that holds each tap point, by key; no two points whose values differ are given one where there are
    others."""
    finder = Finder(graph, values, near)
    claims: list[Claim] = []
    before = -1
    for point in points:
        value, chosen = taken[point.key], None
        if point.key not in known and value.size and value.dtype == np.float32:
            allowed = min(loosest, max(TIGHTEST, tolerance.get(point.key, 1e-4)))
            fits = finder.fits(value, point.block, allowed)
            chosen = finder.choose(fits, point.block, before)
            let_go(value)
            if chosen is not None:
                claims.append(Claim(point.key, fits, chosen))
        before = chosen.tensor if chosen is not None else known.get(point.key, -1)
    found = {claim.key: claim.chosen for claim in claims}
    modules = {point.key: point.block for point in points}
    fitting = {claim.key: claim.fits for claim in claims}
    for key, among in part(claims, taken, graph).items():
        best = finder.choose([p for p in fitting[key] if p.tensor in among], modules[key])
        if best is not None:
            found[key] = best
    return found


def _plain(shape: tuple[int, ...]) -> Layout:
    return Layout(tuple(shape), tuple(range(len(shape))))


def missing(taps: Sequence[Tap]) -> list[str]:
    """Float taps that have no place in the graph yet."""
    return [t.key for t in taps if t.origin is TapOrigin.NONE and t.dtype == "float32" and 0 not in t.shape]


def as_constants(taps: Sequence[Tap], constant: Container[str]) -> tuple[Tap, ...]:
    """Returns the taps, those without a place that follow from no input marked as constants of the graph.

    Args:
        taps: As located.
        constant: Keys of what follows from no input.
    """
    return tuple(
        replace(t, origin=TapOrigin.CONSTANT) if t.origin is TapOrigin.NONE and t.key in constant else t for t in taps
    )


def reexport(
    wrap: Callable[[Sequence[str]], Any], keys: Sequence[str], outputs: Sequence[str], convert: Callable[[Any], Graph]
) -> tuple[Graph, dict[str, int], dict[str, str]] | None:
    """Converts the model again with taps added in PyTorch.

    Returns:
        The graph without the taps as outputs, the tensor of each tap, and the signature output of each of the model's
        own; None when the tapped model does not convert.
    """
    try:
        graph = convert(wrap(keys))
    except BisectError:
        return None
    ports = graph.outputs
    if len(ports) != len(outputs) + len(keys):
        return None
    own, extra = ports[: len(outputs)], ports[len(outputs) :]
    editor = Editor(graph)
    editor.drop_outputs()
    for port in own:
        editor.add_output(port.name, port.tensor)
    tensors = {key: port.tensor for key, port in zip(keys, extra, strict=True)}
    return editor.graph(), tensors, {label: port.name for label, port in zip(outputs, own, strict=True)}


def owners(tapped: Tapping, truth: Forward, outputs: Mapping[str, int]) -> dict[str, str]:
    """The block each output of the model belongs to: the one that returns it, else what follows them all."""
    found: dict[str, str] = {}
    for label, tensor in outputs.items():
        same = [t for t in tapped.taps if t.tensor == tensor and tensor >= 0]
        value = truth.outputs[label]
        same = same or [t for t in tapped.taps if t.shape == value.shape and np.array_equal(truth.taps[t.key], value)]
        found[label] = same[-1].block if same else OUTPUT
    return found
