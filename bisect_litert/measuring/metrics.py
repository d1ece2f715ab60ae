"""Tensors compared: one pass in float64 over pieces, with everything non-finite counted and nothing replaced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import inf, isnan, nan, sqrt

import numpy as np

from bisect_litert.block_record import Comparison
from bisect_litert.measuring.limits import FP16_MAX, FP16_NORMAL, FP16_UNIT, out_of_line
from bisect_litert.measuring.pieces import PIECE, chosen, flat_pieces, pairs
from bisect_litert.measuring.totals import Totals

__all__ = [
    "FP16_MAX",
    "FP16_NORMAL",
    "FP16_UNIT",
    "compare",
    "compare_by_scale",
    "compare_output",
    "out_of_line",
    "true_infinities",
]

GAP_OCTAVES = 6
"""Empty octaves (a factor of 64) that part two scales: more than the spread of a product of two normal numbers leaves
open."""
SMALL_SIDE = 4
"""Different numbers that a smaller scale has at least: of normal numbers, the smallest one alone is 64 times below all
others in 1 tensor of 80, whatever its size; the smallest four are in 1 of 16 million."""
SAMPLED = 1 << 12
"""Elements that show whether a tensor could hold two scales at all; a side of one in a hundred is missed once in 10**17
times."""
OCTAVES = 40
"""From 2**-20 to above 65504."""


def compare(*, reference: np.ndarray, target: np.ndarray, unwritten: int = 0, terms: float = 0.0) -> Comparison:
    """Compares a target with a reference of the same size.

    Relative L2 error, correlation, SNR and scale are taken over the elements that are finite on both sides; the
    others are counted.
    Where both are infinite with the same sign, or both are NaN, they agree and are left out.

    Args:
        reference: The trusted tensor, any shape, any real or boolean dtype.
        target: Same number of elements, in the same order.
        unwritten: Elements known to hold the output buffer's sentinel; they are non-finite in `target` already.
        terms: Where the reference is noise (noise.py), the 2-norm that its error is relative to; else 0. What else is
            said of single values there (correlation, scale, zeros) means nothing and is left out.

    Raises:
        ValueError: The sizes differ.
    """
    return _compare(reference, target, unwritten, terms=terms)


def _compare(
    reference: np.ndarray,
    target: np.ndarray,
    unwritten: int = 0,
    within: tuple[float, float] | None = None,
    terms: float = 0.0,
) -> Comparison:
    """As `compare`, of the elements whose reference's magnitude is `within` two numbers, the second one excluded."""
    if reference.size != target.size:
        raise ValueError(f"cannot compare {reference.shape} with {target.shape}")
    t = Totals(min(PIECE, reference.size))
    for ref, out in _sides(reference, target, within):
        t.add(ref, out)
    new_zeros = 0
    if t.flushed and not terms:  # a second look, since what is visible is known only now
        visible = np.float64(0.1 * sqrt(t.whole_power / t.elements))
        for ref, out in _sides(reference, target, within):
            sizes = np.abs(ref)
            lost = out == 0
            lost &= sizes > visible
            lost &= sizes < inf
            new_zeros += int(np.count_nonzero(lost))
    return Comparison(
        elements=t.elements,
        relative_l2=t.relative_l2(terms),
        correlation=nan if terms else t.correlation(),
        snr_db=t.snr_db(terms),
        scale=t.cross / t.ref_power if t.ref_power > 0 and not terms else nan,
        max_abs_error=t.max_error if t.common else nan,
        reference_peak=t.ref_peak,
        target_peak=t.out_peak,
        nonfinite=t.nonfinite,
        new_nonfinite=t.new_nonfinite,
        reference_nonfinite=t.ref_nonfinite,
        zeros=t.zeros,
        new_zeros=new_zeros,
        saturated=t.saturated,
        unwritten=unwritten,
        terms=terms,
    )


def _sides(
    reference: np.ndarray, target: np.ndarray, within: tuple[float, float] | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for ref, out in pairs(reference, target):
        if within is None:
            yield ref, out
        else:
            sizes = np.abs(ref)
            side = np.flatnonzero((sizes >= within[0]) & (sizes < within[1]))
            yield ref.take(side), out.take(side)


def compare_output(*, reference: np.ndarray, target: np.ndarray, unwritten: int = 0, terms: float = 0.0) -> Comparison:
    """As `compare`, of what a model returns: integers and booleans stand for themselves, as classes and indices do, and
    are equal or not, so that of them the share that differs takes the error's place."""
    whole = compare(reference=reference, target=target, unwritten=unwritten, terms=terms)
    if reference.dtype.kind == "f":
        return whole
    differ = np.count_nonzero(reference.reshape(-1) != target.reshape(-1)) / max(1, reference.size)
    return replace(whole, relative_l2=differ, correlation=nan, snr_db=nan, scale=nan)


def compare_by_scale(
    *, reference: np.ndarray, target: np.ndarray, unwritten: int = 0, terms: float = 0.0
) -> Comparison:
    """As `compare`, with the error taken scale by scale where a tensor holds numbers of two scales.

    Beside a mask of -1e4 the scores it was added to vanish in a norm, however wrong they are. So where a gap of
    `GAP_OCTAVES` empty octaves parts the magnitudes, the worse side's relative L2 error, correlation, SNR, scale and
    largest error count. What lies beyond 65504, which fp16 cannot hold, is left to the counts (`new_nonfinite`,
    `saturated`, `target_peak`).
    """
    whole = compare_output(reference=reference, target=target, unwritten=unwritten, terms=terms)
    if reference.dtype.kind != "f" or reference.size < 2 or terms:
        return whole
    cut = _gap(reference)
    if cut is None and whole.reference_peak < FP16_MAX:
        return whole
    sides = [(0.0, FP16_MAX)] if cut is None else [(0.0, cut), (cut, FP16_MAX)]
    parts = [part for side in sides if (part := _compare(reference, target, within=side)).elements]
    if not parts:
        return whole
    worst = max(parts, key=lambda part: -1.0 if isnan(part.relative_l2) else part.relative_l2)
    return replace(
        whole,
        relative_l2=worst.relative_l2,
        correlation=worst.correlation,
        snr_db=worst.snr_db,
        scale=worst.scale,
        max_abs_error=worst.max_abs_error,
    )


def _gap(values: np.ndarray) -> float | None:
    """Magnitude that parts a tensor's numbers in two scales, among those that fp16 holds with all its digits; None
    for one scale.

    Numbers that spread, as sums and products do, leave no gap. A side with fewer than one in a hundred is no scale of
    its own, nor are a few numbers that happen to be near zero.
    """
    # A gap is one among any of the numbers, and both its sides are common enough to be in a sample.
    if values.size > SAMPLED and not _cuts(_octaves(_sample(values))):
        return None
    counts = sum((_octaves(piece) for piece in flat_pieces(values)), np.zeros(OCTAVES, np.int64))
    for cut, above in _cuts(counts):
        if min(above, counts.sum() - above) * 100 >= counts.sum() and _several_below(values, cut):
            return cut
    return None


def _sample(values: np.ndarray) -> np.ndarray:
    """Returns `SAMPLED` of a tensor's elements, without a copy of a permuted view."""
    places = (_places() * values.size).astype(np.intp)
    return values.reshape(-1)[places] if values.flags.c_contiguous else values[np.unravel_index(places, values.shape)]


@cache
def _places() -> np.ndarray:
    """Random numbers from 0 to 1: drawing them takes longer than looking at the elements."""
    return np.random.default_rng(0).random(SAMPLED)


def _octaves(values: np.ndarray) -> np.ndarray:
    """Counts magnitudes by octave, from 2**-20 on; those that fp16 does not hold with all digits are left out."""
    sizes = np.abs(values)
    if values.dtype != np.float32:
        usual = chosen(sizes, (sizes >= FP16_NORMAL) & (sizes < FP16_MAX))
        return np.bincount(np.frexp(usual)[1] + 20, minlength=OCTAVES)
    # The exponents as they are stored: 127 for [1, 2), which is octave 21 here.
    counts = np.bincount(sizes.view(np.uint32) >> 23, minlength=256)[106 : 106 + OCTAVES]
    counts[:7] = 0
    if counts[36]:
        counts[36] -= np.count_nonzero((sizes >= FP16_MAX) & (sizes < 2.0**16))
    counts[37:] = 0
    return counts


def _cuts(counts: np.ndarray) -> list[tuple[float, int]]:
    """Returns where enough octaves in a row are empty, each with how many numbers lie above."""
    filled = np.flatnonzero(counts)
    return [
        (2.0 ** (int(high) - 20 - 1), int(counts[high:].sum()))
        for low, high in pairwise(filled)
        if high - low > GAP_OCTAVES
    ]


def _several_below(values: np.ndarray, cut: float) -> bool:
    """Whether a smaller scale holds several numbers: rows that repeat, as padding makes them, repeat their number near
    zero too. fp16 tells them from others."""
    found: set[float] = set()
    for piece in flat_pieces(values):
        sizes = np.abs(piece)
        small = chosen(sizes, (sizes >= FP16_NORMAL) & (sizes < cut))
        found.update(np.unique(small.astype(np.float16)).tolist())
        if len(found) >= SMALL_SIDE:
            return True
    return False


def true_infinities(reference: np.ndarray, target: np.ndarray) -> bool:
    """Whether all that is newly non-finite in a target is an infinity of the right sign where the reference passes
    65504.

    That is what fp16 makes of a large number, and may be harmless: a softmax takes -1e9 and -infinity alike.
    """
    for ref, out in pairs(reference, target):
        fine = np.isfinite(out)
        if not fine.all():
            fine |= (np.abs(ref) >= FP16_MAX) & (out == np.copysign(np.inf, ref))
            fine |= ~np.isfinite(ref)
            if not fine.all():
                return False
    return True
