"""Which of many tensors may hold a value: what permutations and reshapes leave alone, taken once of each.

Everything is computed in pieces, so that no tensor is ever copied whole, and compared for all tensors at once.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Generic, TypeVar

import numpy as np

from bisect_litert.measuring.pieces import chosen, dot, flat_pieces, let_go, pairs

SAMPLE = 4096
"""Elements compared before a whole tensor is: a wrong permutation shows in far fewer."""
FLOAT32_MAX = float(np.finfo(np.float32).max)

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What permutations and reshapes leave alone."""

    nonfinite: int
    norm: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of a tensor once it was looked at."""

    size: int
    kind: str
    """numpy's letter for its kind of numbers."""
    print: Fingerprint
    sample: np.ndarray
    """Elements at even distances, of the flat tensor: see `sampled`."""


class Tensors(Mapping[K, np.ndarray]):
    """Tensors of which each is looked at once, however often it is asked what it may hold.

    Args:
        arrays: Tensors, by whatever names them.
    """

    def __init__(self, arrays: Mapping[K, np.ndarray]) -> None:
        self._arrays = arrays
        self._looks: dict[K, Look] = {}

    def __getitem__(self, key: K) -> np.ndarray:
        return self._arrays[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def look(self, key: K) -> Look:
        """Returns what is known of a tensor."""
        if key not in self._looks:
            self._looks[key] = look_at(self[key])
        return self._looks[key]


def look_at(values: np.ndarray) -> Look:
    """Looks at a tensor."""
    sample = np.array(values.reshape(-1)[sampled(values.size)])
    return Look(values.size, values.dtype.kind, fingerprint(values), sample)


def sampled(size: int) -> np.ndarray:
    """Where elements are compared first, in a flat tensor of a size."""
    return np.linspace(0, size - 1, min(SAMPLE, size)).astype(np.int64) if size else np.zeros(0, np.int64)


class Fingerprints(Generic[K]):
    """Tensors to look values up in.

    Args:
        values: Tensors, by whatever names them.
        only: Look in these alone.
    """

    def __init__(self, values: Mapping[K, np.ndarray], only: Collection[K] | None = None) -> None:
        known = values if isinstance(values, Tensors) else Tensors(values)
        self._groups: dict[tuple[int, str], tuple[list[K], np.ndarray]] = {}
        members: dict[tuple[int, str], list[K]] = {}
        for key in known:
            if only is None or key in only:
                look = known.look(key)
                members.setdefault((look.size, look.kind), []).append(key)
        for group, keys in members.items():
            prints = [known.look(key).print for key in keys]
            self._groups[group] = keys, np.array([(p.nonfinite, p.norm, p.low, p.high) for p in prints])

    def near(self, value: np.ndarray, tolerance: float) -> Sequence[K]:
        """Returns what may hold a value, up to a relative L2 difference; all others certainly do not."""
        keys, table = self._groups.get((value.size, value.dtype.kind), ([], np.zeros((0, 4))))
        mine = fingerprint(value)
        slack = 2 * tolerance * np.maximum(table[:, 1], mine.norm) + 1e-30
        # The norms and the extremes of two tensors differ by at most the norm of their difference.
        close = (table[:, 0] == mine.nonfinite) & (np.abs(table[:, 1] - mine.norm) <= slack)
        close &= (np.abs(table[:, 2] - mine.low) <= slack) & (np.abs(table[:, 3] - mine.high) <= slack)
        return [keys[i] for i in np.flatnonzero(close)]


def fingerprint(values: np.ndarray) -> Fingerprint:
    """Returns a tensor's fingerprint."""
    nonfinite, power, low, high = 0, 0.0, inf, -inf
    for piece in flat_pieces(values):
        least, most = float(np.minimum.reduce(piece)), float(np.maximum.reduce(piece))
        if _plain(least, most):
            wide = piece.astype(np.float64)
        else:
            wide = _widened(piece)
            finite = np.isfinite(wide)
            nonfinite += wide.size - int(np.count_nonzero(finite))
            wide = chosen(wide, finite)
            if not wide.size:
                continue
            least, most = float(np.minimum.reduce(wide)), float(np.maximum.reduce(wide))
        power += dot(wide, wide)
        low, high = min(low, least), max(high, most)
    let_go(values)
    if low > high:  # nothing was finite
        return Fingerprint(nonfinite, 0.0, 0.0, 0.0)
    return Fingerprint(nonfinite, sqrt(power), low, high)


def similar(a: Fingerprint, b: Fingerprint, tolerance: float) -> bool:
    """Whether two tensors of one size may hold the same value."""
    slack = 2 * tolerance * max(a.norm, b.norm) + 1e-30
    near = (abs(x - y) <= slack for x, y in ((a.norm, b.norm), (a.low, b.low), (a.high, b.high)))
    return a.nonfinite == b.nonfinite and all(near)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """L2 distance of two tensors of one size over finite pairs; infinite when they differ in what is not finite."""
    power = 0.0
    for left, right in pairs(a, b):
        if all(_plain(np.minimum.reduce(part), np.maximum.reduce(part)) for part in (left, right)):
            d = left.astype(np.float64)
            d -= right.astype(np.float64)
        else:
            x, y = _widened(left), _widened(right)
            fx, fy = np.isfinite(x), np.isfinite(y)
            if not np.array_equal(fx, fy) or not np.array_equal(chosen(x, ~fx), chosen(y, ~fy), equal_nan=True):
                return inf
            d = chosen(x, fx) - chosen(y, fy)
        power += dot(d, d)
    let_go(a, b)
    return sqrt(power)


def _plain(low: float, high: float) -> bool:
    """Whether numbers from one to another are finite and stand for themselves; NaN is neither below nor above."""
    return bool(low > -FLOAT32_MAX and high < FLOAT32_MAX)


def _widened(piece: np.ndarray) -> np.ndarray:
    """Float64, with float32's largest number taken for infinity: CPU kernels clamp sums to it, and masks are made of
    either."""
    wide = piece.astype(np.float64)
    beyond = np.abs(wide) >= FLOAT32_MAX
    if beyond.any():
        wide[beyond] = np.copysign(inf, wide[beyond])
    return wide
