"""What a reference and a target tensor say about each other, read piece by piece: no tensor is ever held whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, inf, nan, prod, sqrt

import numpy as np

from bisect_litert.tui.tensor_pair import TensorPair

CHUNK = 1 << 20
"""Elements per piece."""
MOST_BINS = 512
"""Positions along an axis that are told apart; longer axes are binned."""
MOST_SLICES = 1 << 20
WORST = 12
HEAT_CELLS = 16, 64
"""Most rows and columns of the heat map."""
LOW_EXPONENT, HIGH_EXPONENT = -40, 40
"""Powers of two that the histogram tells apart; what lies beyond is counted in the outer bins."""


@dataclass(frozen=True, slots=True)
class SideFacts:
    """One tensor by itself. Extremes, mean and deviation are over its finite elements, nan when there are none."""

    minimum: float
    maximum: float
    mean: float
    deviation: float
    peak: float
    smallest: float
    """Smallest |value| that is not zero."""
    zeros: int
    nans: int
    infinities: int
    histogram: np.ndarray
    """How many elements have 2**e <= |value| < 2**(e+1), for e from LOW_EXPONENT to HIGH_EXPONENT."""


@dataclass(frozen=True, slots=True)
class Element:
    """One element of both tensors."""

    index: tuple[int, ...]
    reference: float
    target: float


@dataclass(frozen=True, slots=True)
class AxisFacts:
    """Where along one axis the error sits; positions may be binned."""

    axis: int
    length: int
    per_bin: int
    """Positions in one bin."""
    error: np.ndarray
    """Relative L2 error at each position: norm of the difference there over the norm of the reference there."""
    nonfinite: np.ndarray
    """Elements at each position that are NaN or infinite in the target only."""
    zeros: np.ndarray
    """Elements at each position that are zero in the target, and in the reference are not small."""
    elements: int
    """At one position, a full bin counted."""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The slice with the largest error along its last two axes, coarse enough to draw."""

    index: tuple[int | None, ...]
    """Position on every axis, None on the ones drawn."""
    axes: tuple[int, int]
    rows: np.ndarray
    """First position in each row of cells."""
    columns: np.ndarray
    level: np.ndarray
    """Largest |difference| in each cell over the root mean square of the reference; inf where something is not finite
    in the target only."""
    zeroed: np.ndarray
    """Whether all of a cell is zero in the target and not in the reference."""


@dataclass(frozen=True, slots=True)
class PairFacts:
    """Everything the block screen shows of one tensor."""

    shape: tuple[int, ...]
    reference: SideFacts
    target: SideFacts
    worst: tuple[Element, ...]
    axes: tuple[AxisFacts, ...]
    """Of axes longer than one."""
    heat: HeatMap | None
    new_nonfinite: int
    new_zeros: int
    bytes_read: int
    truth: str = "torch"
    """What the reference is called."""


def read_facts(
    pair: TensorPair,
    on_progress: Callable[[float], None] = lambda share: None,
    stopped: Callable[[], bool] = lambda: False,
    truth: str = "torch",
) -> PairFacts | None:
    """Reads both tensors once, and the worst slice once more.

    Args:
        pair: The two files.
        on_progress: Told the share that is done.
        stopped: Asked between pieces; the result is None once it says so.
        truth: What to call the reference.

    Raises:
        TensorError: A file turned out to be damaged.
    """
    total = _Total(pair.shape, _visible(pair))
    done, size = 0, max(1, int(prod(pair.shape)))
    for index, start in pieces(pair.shape):
        if stopped():
            return None
        reference, target = pair.read(index)
        total.add(reference, target, start)
        done += reference.size
        on_progress(done / size)
    heat = _heat(pair, total) if size > 1 and 0 not in pair.shape else None
    return PairFacts(
        shape=pair.shape,
        reference=total.sides[0].facts(),
        target=total.sides[1].facts(),
        worst=tuple(total.worst()),
        axes=tuple(a.facts() for a in total.axes),
        heat=heat,
        new_nonfinite=total.new_nonfinite,
        new_zeros=total.new_zeros,
        bytes_read=pair.bytes_read,
        truth=truth,
    )


def pieces(shape: tuple[int, ...]) -> Iterator[tuple[tuple[int | slice, ...], tuple[int, ...]]]:
    """Yields indices of consecutive parts of at most CHUNK elements, each with the position of its first element."""
    axis = next((i for i in range(len(shape)) if prod(shape[i + 1 :]) <= CHUNK), 0)
    if not shape:
        yield (), ()
        return
    step = max(1, CHUNK // max(1, prod(shape[axis + 1 :])))
    for lead in np.ndindex(shape[:axis]):
        for start in range(0, shape[axis], step):
            yield (*lead, slice(start, start + step)), (*lead, start, *[0] * (len(shape) - axis - 1))


def _visible(pair: TensorPair) -> float:
    """Returns the |reference| from which a zero in the target is news: a tenth of the root mean square."""
    power, count = 0.0, 0
    for index, _ in pieces(pair.shape):
        reference = pair.read_one(0, index)
        finite = reference[np.isfinite(reference)]
        power, count = power + float(finite @ finite), count + finite.size
    return 0.1 * sqrt(power / count) if count else 0.0


class _Side:
    """Running sums over one tensor."""

    def __init__(self) -> None:
        self.low, self.high, self.small = inf, -inf, inf
        self.count = self.zeros = self.nans = self.infinities = 0
        self.mean = self.squares = 0.0
        self.histogram = np.zeros(HIGH_EXPONENT - LOW_EXPONENT + 1, np.int64)

    def add(self, values: np.ndarray) -> None:
        finite = values[np.isfinite(values)]
        nans = int(np.count_nonzero(np.isnan(values)))
        self.nans += nans
        self.infinities += values.size - finite.size - nans
        if not finite.size:
            return
        self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
        # Chan's update of mean and sum of squared deviations: no digits lost to a large mean.
        mean, n = float(finite.mean()), self.count + finite.size
        delta = mean - self.mean
        self.squares += float(np.square(finite - mean).sum()) + delta**2 * self.count * finite.size / n
        self.mean += delta * finite.size / n
        self.count = n
        sizes = np.abs(finite)
        sizes = sizes[sizes > 0]
        self.zeros += finite.size - sizes.size
        if sizes.size:
            self.small = min(self.small, float(sizes.min()))
            exponents = np.clip(np.frexp(sizes)[1] - 1, LOW_EXPONENT, HIGH_EXPONENT) - LOW_EXPONENT
            self.histogram += np.bincount(exponents, minlength=self.histogram.size)

    def facts(self) -> SideFacts:
        known = self.count > 0
        return SideFacts(
            minimum=self.low if known else nan,
            maximum=self.high if known else nan,
            mean=self.mean if known else nan,
            deviation=sqrt(self.squares / self.count) if known else nan,
            peak=max(abs(self.low), abs(self.high)) if known else nan,
            smallest=self.small if self.small < inf else nan,
            zeros=self.zeros,
            nans=self.nans,
            infinities=self.infinities,
            histogram=self.histogram,
        )


class _Axis:
    """Running sums along one axis."""

    def __init__(self, axis: int, shape: tuple[int, ...]) -> None:
        self.axis, self.length = axis, shape[axis]
        self.per_bin = max(1, ceil(self.length / MOST_BINS))
        bins = ceil(self.length / self.per_bin)
        self.error, self.power = np.zeros(bins), np.zeros(bins)
        self.nonfinite, self.zeros = np.zeros(bins, np.int64), np.zeros(bins, np.int64)
        self.elements = prod(shape) // self.length * self.per_bin

    def add(self, fields: tuple[np.ndarray, ...], start: tuple[int, ...]) -> None:
        """Adds squared error, power, new non-finites and new zeros of a piece; its axes are the tensor's last."""
        mine = self.axis - (len(start) - fields[0].ndim)
        for total, field in zip((self.error, self.power, self.nonfinite, self.zeros), fields, strict=True):
            if mine < 0:
                total[start[self.axis] // self.per_bin] += field.sum()
                continue
            along = field.sum(axis=tuple(i for i in range(field.ndim) if i != mine))
            at = (start[self.axis] + np.arange(along.size)) // self.per_bin
            np.add.at(total, at, along)

    def facts(self) -> AxisFacts:
        with np.errstate(divide="ignore", invalid="ignore"):
            level = np.sqrt(self.error / self.power)
        level[self.error == 0] = 0.0
        return AxisFacts(self.axis, self.length, self.per_bin, level, self.nonfinite, self.zeros, self.elements)


class _Total:
    """Running sums over a pair."""

    def __init__(self, shape: tuple[int, ...], visible: float) -> None:
        self.shape, self.visible = shape, visible
        self.sides = (_Side(), _Side())
        self.axes = [_Axis(i, shape) for i, length in enumerate(shape) if length > 1]
        self.new_nonfinite = self.new_zeros = 0
        slices = prod(shape[:-2]) if len(shape) > 2 else 1
        self.slices = np.zeros(slices) if 0 < slices <= MOST_SLICES else None
        self._worst: list[tuple[float, int, float, float]] = []

    def add(self, reference: np.ndarray, target: np.ndarray, start: tuple[int, ...]) -> None:
        self.sides[0].add(reference)
        self.sides[1].add(target)
        ok = np.isfinite(reference) & np.isfinite(target)
        difference = np.subtract(target, reference, where=ok, out=np.zeros_like(target))
        bad = ~np.isfinite(target) & (target != reference) & ~(np.isnan(target) & np.isnan(reference))
        zero = (target == 0) & (np.abs(reference) > self.visible)
        squares = np.square(difference)
        power = np.square(reference, where=ok, out=np.zeros_like(reference))
        self.new_nonfinite += int(bad.sum())
        self.new_zeros += int(zero.sum())
        for axis in self.axes:
            axis.add((squares, power, bad, zero), start)
        first = int(np.ravel_multi_index(start, self.shape)) if start else 0
        badness = np.where(bad, inf, np.sqrt(squares)).reshape(-1)
        self._keep_worst(badness, reference.reshape(-1), target.reshape(-1), first)
        if self.slices is not None:
            self._add_slices(np.where(bad, 1e300, squares), first)

    def _keep_worst(self, badness: np.ndarray, reference: np.ndarray, target: np.ndarray, first: int) -> None:
        if not badness.size:
            return
        most = min(WORST, badness.size)
        # The first of those that are not finite; they are all as bad, and a partition would name any of them.
        top = np.flatnonzero(np.isinf(badness))[:most]
        if top.size < most:
            top = np.argpartition(badness, badness.size - most)[badness.size - most :]
        rows = [(float(badness[i]), first + int(i), float(reference[i]), float(target[i])) for i in top]
        rows = [row for row in rows if row[0] > 0]
        self._worst = sorted([*self._worst, *rows], key=lambda row: (-row[0], row[1]))[:WORST]

    def _add_slices(self, squares: np.ndarray, first: int) -> None:
        assert self.slices is not None
        area = prod(self.shape[-2:])
        if squares.ndim > 2:
            sums = squares.sum(axis=(-2, -1)).reshape(-1)
            at = first // area
            self.slices[at : at + sums.size] += sums
        else:
            self.slices[first // area if area else 0] += squares.sum()

    def worst(self) -> Iterator[Element]:
        for _, flat, reference, target in self._worst:
            index = tuple(int(i) for i in np.unravel_index(flat, self.shape)) if self.shape else ()
            yield Element(index, reference, target)

    def worst_slice(self) -> tuple[int, ...]:
        """Returns the position, on all axes but the last two, of the slice with the largest error."""
        lead = self.shape[:-2]
        if self.slices is not None and self.slices.size:
            return tuple(int(i) for i in np.unravel_index(int(self.slices.argmax()), lead)) if lead else ()
        first = next(self.worst(), None)
        return first.index[: len(lead)] if first else (0,) * len(lead)


def _heat(pair: TensorPair, total: _Total) -> HeatMap | None:
    shape = pair.shape
    lead = total.worst_slice() if len(shape) > 2 else ()
    height, width = (shape[-2], shape[-1]) if len(shape) > 1 else (1, shape[0])
    down, across = ceil(height / HEAT_CELLS[0]), ceil(width / HEAT_CELLS[1])
    rows, columns = np.arange(0, height, down), np.arange(0, width, across)
    level, zeroed = np.zeros((rows.size, columns.size)), np.ones((rows.size, columns.size), bool)
    side = total.sides[0]
    scale = sqrt(side.squares / side.count + side.mean**2) if side.count else 0.0
    step = max(1, CHUNK // max(1, width) // down) * down
    for first in range(0, height, step):
        part = slice(first, min(height, first + step))
        reference, target = pair.read((*lead, part) if len(shape) > 1 else (slice(None),))
        reference, target = reference.reshape(-1, width), target.reshape(-1, width)
        bad = ~np.isfinite(target) & (target != reference) & ~(np.isnan(target) & np.isnan(reference))
        both = np.isfinite(reference) & np.isfinite(target)
        off = np.where(bad, inf, 0.0)
        np.abs(np.subtract(target, reference, where=both, out=np.zeros_like(target)), where=both, out=off)
        zero = (target == 0) & (np.abs(reference) > total.visible)
        at = np.arange(0, off.shape[0], down)
        where = slice(first // down, first // down + at.size)
        level[where] = _reduced(np.maximum, off, at, columns)
        zeroed[where] = _reduced(np.logical_and, zero, at, columns)
    level = level / scale if scale > 0 else np.where(level > 0, inf, 0.0)
    kept: tuple[int | None, ...] = (*lead, None, None) if len(shape) > 1 else (None,)
    axes = (len(shape) - 2, len(shape) - 1) if len(shape) > 1 else (-1, 0)
    return HeatMap(kept, axes, rows, columns, level, zeroed)


def _reduced(how: np.ufunc, values: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    result: np.ndarray = how.reduceat(how.reduceat(values, rows, axis=0), columns, axis=1)
    return result
