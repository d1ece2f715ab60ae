"""Tap points whose PyTorch values differ cannot be one tensor of the graph: which is whose, where several nearly are.

A block that changes its input by less than fp32 explains (a branch behind a layer scale of 1e-6, a slow iteration)
leaves tensors that each fit every one of the points. What tells them apart is the order in which they come: the graph
computes them as PyTorch does, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from bisect_litert.graphs.graph import REARRANGES, Graph
from bisect_litert.measuring.pieces import let_go
from bisect_litert.taps.tapper import Partner


@dataclass(frozen=True, slots=True)
class Claim:
    """A tap point and the tensors that may hold it."""

    key: str
    fits: Sequence[Partner]
    chosen: Partner


def part(claims: Sequence[Claim], taken: Mapping[str, np.ndarray], graph: Graph) -> dict[str, frozenset[int]]:
    """Parts tap points that were given one tensor though their values differ.

    Args:
        claims: In execution order.
        taken: PyTorch's value at each, by key.
        graph: The converted graph.

    Returns:
        By tap key, the tensors among which its partner has to be; only of points that have to give way, or that others
        have to give way to. Where the graph has fewer tensors than there are values nothing is said.
    """
    found: dict[str, frozenset[int]] = {}
    sources = {p.tensor: _source(graph, p.tensor) for claim in claims for p in claim.fits}
    for rivals in _rivals(claims, taken, sources):
        order = sorted({sources[p.tensor] for claim in rivals for p in claim.fits}, key=lambda t: _position(graph, t))
        groups = list(_alike(rivals, taken))
        for claim, source in zip(rivals, _aligned(groups, order, sources), strict=False):
            found[claim.key] = frozenset(p.tensor for p in claim.fits if sources[p.tensor] == source)
    return found


def _source(graph: Graph, tensor: int) -> int:
    """The tensor whose numbers another one holds."""
    made = graph.producer.get(tensor)
    while made is not None and made.type in REARRANGES:
        tensor = made.inputs[0]
        made = graph.producer.get(tensor)
    return tensor


def _position(graph: Graph, tensor: int) -> int:
    made = graph.producer.get(tensor)
    return -1 if made is None else made.index


def _rivals(
    claims: Sequence[Claim], taken: Mapping[str, np.ndarray], sources: Mapping[int, int]
) -> Iterator[list[Claim]]:
    """Points of which some were given one tensor and differ, with all that were given a tensor which may be theirs."""
    by_tensor: dict[int, list[Claim]] = {}
    for claim in claims:
        by_tensor.setdefault(sources[claim.chosen.tensor], []).append(claim)
    told: set[str] = set()
    for sharing in by_tensor.values():
        if sharing[0].key in told or all(_same(sharing[0], other, taken) for other in sharing[1:]):
            continue
        members = {claim.key for claim in sharing}
        while True:
            within = {sources[p.tensor] for claim in claims if claim.key in members for p in claim.fits}
            more = {claim.key for claim in claims if sources[claim.chosen.tensor] in within} - members
            if not more:
                break
            members |= more
        told |= members
        yield [claim for claim in claims if claim.key in members]


def _same(one: Claim, other: Claim, taken: Mapping[str, np.ndarray]) -> bool:
    """Whether two points hold the same numbers, in the order in which a tensor that fits both has them."""
    layouts = {p.tensor: p.layout for p in one.fits}
    shared = next((p for p in other.fits if p.tensor in layouts), None)
    if shared is None:
        return False
    mine, others = taken[one.key], taken[other.key]
    flat = (mine.size,)
    same = np.array_equal(layouts[shared.tensor].from_torch(mine, flat), shared.layout.from_torch(others, flat))
    let_go(mine, others)
    return same


def _alike(claims: Sequence[Claim], taken: Mapping[str, np.ndarray]) -> Iterator[list[Claim]]:
    """Joins what comes one after the other and holds the same numbers: it may share a tensor."""
    group: list[Claim] = []
    for claim in claims:
        if group and not _same(group[-1], claim, taken):
            yield group
            group = []
        group.append(claim)
    if group:
        yield group


def _aligned(groups: Sequence[Sequence[Claim]], order: Sequence[int], sources: Mapping[int, int]) -> list[int]:
    """Gives every group a source of its own, in order, so that the errors add up to least.

    Returns:
        A source per claim, or nothing where there is no such choice.
    """
    costs = np.zeros((len(groups), len(order)))
    place = {source: i for i, source in enumerate(order)}
    for row, group in enumerate(groups):
        for claim in group:
            least: dict[int, float] = {}
            for p in claim.fits:
                at = place[sources[p.tensor]]
                least[at] = min(p.error, least.get(at, inf))
            costs[row] += [least.get(at, inf) for at in range(len(order))]
    total = np.full((len(groups) + 1, len(order) + 1), inf)
    total[0] = 0.0
    for row in range(len(groups)):
        for at in range(len(order)):
            total[row + 1, at + 1] = min(total[row + 1, at], total[row, at] + costs[row, at])
    if not np.isfinite(total[-1, -1]):
        return []
    chosen: list[int] = []
    at = len(order)
    for row in range(len(groups), 0, -1):
        while total[row, at - 1] <= total[row, at]:
            at -= 1
        at -= 1
        chosen[:0] = [order[at]] * len(groups[row - 1])
    return chosen
