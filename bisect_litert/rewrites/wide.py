"""Tensors of more than four axes, kept in memory order at four or fewer: all a GPU that ends at rank 4 needs to see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bisect_litert.rewrites.tracing import Traced
from bisect_litert.rewrites.values import Value, true

MOST = 4
TOGETHER = 16
"""Copies concatenated at once."""


@dataclass(frozen=True)
class Wide(Value):
    """A tensor of five or more axes.

    `stored` is the tensor as it was written, which is left out of the source when nothing reads it; `flat` has the same
    numbers in the same order in fewer axes.
    """

    flat: Traced | None = None


def wide(flat: Traced, shape: Sequence[int]) -> Value:
    """Returns numbers in memory order as a tensor of a shape."""
    stored = flat if tuple(flat.shape) == tuple(shape) else flat.reshape(*shape)
    return Value(stored) if len(shape) <= MOST else Wide(stored, 0, flat)


def flat_of(value: Value) -> Traced:
    """Returns a tensor's numbers in memory order, at rank 4 or less if that is known of it."""
    return value.flat if isinstance(value, Wide) and value.flat is not None else true(value)


def shaped(value: Value, shape: Sequence[int]) -> Traced:
    """Returns a tensor's numbers in memory order in a shape."""
    flat = flat_of(value)
    return flat if tuple(flat.shape) == tuple(shape) else flat.reshape(*shape)


def around(value: Value, axis: int) -> tuple[Traced, tuple[int, ...], tuple[int, ...]]:
    """Returns a tensor as (what lies before an axis, the axis, what lies behind it), and the sizes of both sides."""
    shape = tuple(value.stored.shape)
    axis %= len(shape)
    before, after = shape[:axis], shape[axis + 1 :]
    return shaped(value, (math.prod(before), shape[axis], math.prod(after))), before, after


def permuted(value: Value, order: Sequence[int]) -> Value:
    """Permutes axes by transpositions at rank 4: axes that stay together move as one, one block at a time."""
    shape = tuple(value.stored.shape)
    order = [axis % len(shape) for axis in order]
    result = [shape[axis] for axis in order]
    groups: list[list[int]] = []
    for axis in (a for a in order if shape[a] != 1):
        kept = [a for a in range(groups[-1][-1] + 1, axis) if shape[a] != 1] if groups else []
        if groups and axis > groups[-1][-1] and not kept:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    size = {g[0]: math.prod(shape[a] for a in g) for g in groups}
    target = [g[0] for g in groups]
    now = sorted(target)
    flat = flat_of(value)
    if len(now) <= MOST and target != now:
        flat = flat.reshape(*[size[g] for g in now]).permute(*[now.index(g) for g in target])
        now = target
    for place, group in enumerate(target):
        at = now.index(group)
        if at == place:
            continue
        parts = [now[:place], now[place:at], [group], now[at + 1 :]]
        flat = flat.reshape(*[math.prod(size[g] for g in part) for part in parts]).transpose(1, 2)
        now = [*parts[0], *parts[2], *parts[1], *parts[3]]
    return wide(flat, result)


def copies(x: Traced, count: int, axis: int) -> Traced:
    """Concatenates copies of a tensor along an axis."""
    if count <= 1:
        return x
    many, rest = divmod(count, TOGETHER)
    if not many:
        return _joined([x] * count, axis)
    whole = copies(_joined([x] * TOGETHER, axis), many, axis)
    return _joined([whole, copies(x, rest, axis)], axis) if rest else whole


def _joined(parts: list[Traced], axis: int) -> Traced:
    made: Traced = torch.cat(parts, axis)  # type: ignore[assignment,arg-type]
    return made


def together(shapes: Sequence[Sequence[int]], full: Sequence[int]) -> list[list[int]]:
    """Returns shapes that broadcast to `full` with as few axes as they allow: neighbours in which all of them are
    repeated, or none of the same ones is, become one axis."""
    wides = [[1] * (len(full) - len(s)) + list(s) for s in shapes]
    merged: list[list[int]] = [[] for _ in shapes]
    before: list[bool] | None = None
    for axis, length in enumerate(full):
        if length == 1:
            continue
        repeated = [w[axis] == 1 for w in wides]
        for sizes, w in zip(merged, wides, strict=True):
            if repeated == before:
                sizes[-1] *= w[axis]
            else:
                sizes.append(w[axis])
        before = repeated
    return [sizes or [1] for sizes in merged]
