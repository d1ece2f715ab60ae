"""Tensors compared: one pass in float64 over chunks, with everything non-finite counted and nothing replaced."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf, isnan, log10, nan, sqrt

import numpy as np

from bisect_litert.record import Comparison

FP16_MAX = 65504.0
FP16_UNIT = 2.0**-11
"""Largest relative error of rounding to fp16's 11 significant bits (IEEE 754-2019, binary16): half a unit in the last
place."""
FP16_NORMAL = 2.0**-14
"""Smallest magnitude that fp16 holds with all its digits."""
GAP_OCTAVES = 6
"""Empty octaves (a factor of 64) that part two scales: more than the spread of a product of two normal numbers leaves
open."""
SMALL_SIDE = 4
"""Different numbers that a smaller scale has at least: of normal numbers, the smallest one alone is 64 times below all
others in 1 tensor of 80, whatever its size; the smallest four are in 1 of 16 million."""
CHUNK = 1 << 20


def compare(*, reference: np.ndarray, target: np.ndarray, unwritten: int = 0) -> Comparison:
    """Compares a target with a reference of the same size.

    Relative L2 error, correlation, SNR and scale are taken over the elements that are finite on both sides; the
    others are counted.
    Where both are infinite with the same sign, or both are NaN, they agree and are left out.

    Args:
        reference: The trusted tensor, any shape, any real or boolean dtype.
        target: Same number of elements, in the same order.
        unwritten: Elements known to hold the output buffer's sentinel; they are non-finite in `target` already.

    Raises:
        ValueError: The sizes differ.
    """
    if reference.size != target.size:
        raise ValueError(f"cannot compare {reference.shape} with {target.shape}")
    ref_flat, out_flat = reference.reshape(-1), target.reshape(-1)
    ref_power = sum(_power(ref_flat[i : i + CHUNK]) for i in range(0, ref_flat.size, CHUNK))
    visible = 0.1 * sqrt(ref_power / ref_flat.size) if ref_flat.size else 0.0
    t = _Totals()
    for start in range(0, ref_flat.size, CHUNK):
        t.add(ref_flat[start : start + CHUNK], out_flat[start : start + CHUNK], visible)
    return Comparison(
        elements=int(ref_flat.size),
        relative_l2=t.relative_l2(),
        correlation=t.correlation(),
        snr_db=t.snr_db(),
        scale=t.cross / t.ref_power if t.ref_power > 0 else nan,
        max_abs_error=t.max_error if t.common else nan,
        reference_peak=t.ref_peak,
        target_peak=t.out_peak,
        nonfinite=t.nonfinite,
        new_nonfinite=t.new_nonfinite,
        reference_nonfinite=t.ref_nonfinite,
        zeros=t.zeros,
        new_zeros=t.new_zeros,
        saturated=t.saturated,
        unwritten=unwritten,
    )


def compare_by_scale(*, reference: np.ndarray, target: np.ndarray, unwritten: int = 0) -> Comparison:
    """As `compare`, with the error taken scale by scale where a tensor holds numbers of two scales.

    Beside a mask of -1e4 the scores it was added to vanish in a norm, however wrong they are. So where a gap of
    `GAP_OCTAVES` empty octaves parts the magnitudes, the worse side's relative L2 error, correlation, SNR, scale and
    largest error count. What lies beyond 65504, which fp16 cannot hold, is left to the counts (`new_nonfinite`,
    `saturated`, `target_peak`).
    """
    whole = compare(reference=reference, target=target, unwritten=unwritten)
    if reference.dtype.kind != "f" or reference.size < 2:
        return whole
    sizes, out = np.abs(reference.reshape(-1)), target.reshape(-1)
    held = sizes < FP16_MAX
    cut = _gap(sizes)
    if not held.any() or (cut is None and whole.reference_peak < FP16_MAX):
        return whole
    sides = [held] if cut is None else [sizes < cut, held & (sizes >= cut)]
    flat = reference.reshape(-1)
    parts = [compare(reference=flat[side], target=out[side]) for side in sides if side.any()]
    worst = max(parts, key=lambda part: -1.0 if isnan(part.relative_l2) else part.relative_l2)
    return replace(
        whole,
        relative_l2=worst.relative_l2,
        correlation=worst.correlation,
        snr_db=worst.snr_db,
        scale=worst.scale,
        max_abs_error=worst.max_abs_error,
    )


def _gap(sizes: np.ndarray) -> float | None:
    """Magnitude that parts a tensor's numbers in two scales, among those that fp16 holds with all its digits; None
    for one scale.

    Numbers that spread, as sums and products do, leave no gap. A side with fewer than one in a hundred is no scale of
    its own, nor are a few numbers that happen to be near zero.
    """
    usual = sizes[(sizes >= FP16_NORMAL) & (sizes < FP16_MAX)]
    if usual.size < 2:
        return None
    counts = np.bincount(np.frexp(usual)[1] + 20, minlength=40)
    filled = np.flatnonzero(counts)
    for low, high in pairwise(filled):
        above = int(counts[high:].sum())
        if high - low > GAP_OCTAVES and min(above, usual.size - above) * 100 >= usual.size:
            cut = 2.0 ** (int(high) - 20 - 1)
            # Rows that repeat, as padding makes them, repeat their number near zero too; fp16 tells them from others.
            if np.unique(usual[usual < cut].astype(np.float16)).size >= SMALL_SIDE:
                return cut
    return None


def true_infinities(reference: np.ndarray, target: np.ndarray) -> bool:
    """Whether all that is newly non-finite in a target is an infinity of the right sign where the reference passes
    65504.

    That is what fp16 makes of a large number, and may be harmless: a softmax takes -1e9 and -infinity alike.
    """
    with np.errstate(invalid="ignore"):
        beyond = (np.abs(reference) >= FP16_MAX) & (target == np.copysign(np.inf, reference))
    return bool((np.isfinite(target) | beyond | ~np.isfinite(reference)).all())


def out_of_line(comparison: Comparison | None, allowed: float) -> bool:
    """Whether a comparison shows more than an allowed relative L2 error, or anything non-finite that the reference
    has not."""
    if comparison is None:
        return False
    if not comparison.finite_agreement:
        return True
    return not isnan(comparison.relative_l2) and comparison.relative_l2 > allowed


def _power(chunk: np.ndarray) -> float:
    values = np.asarray(chunk, np.float64)
    return float(np.sum(np.square(values), where=np.isfinite(values)))


class _Totals:
    """Running sums over chunks. Moments are taken about the first finite pair, so that a large mean costs no digits."""

    def __init__(self) -> None:
        self.common = self.nonfinite = self.new_nonfinite = self.ref_nonfinite = 0
        self.zeros = self.new_zeros = self.saturated = 0
        self.ref_power = self.error_power = self.cross = self.max_error = self.ref_peak = self.out_peak = 0.0
        self._shift: tuple[float, float] | None = None
        self._sums = np.zeros(5)

    def add(self, reference: np.ndarray, target: np.ndarray, visible: float) -> None:
        ref, out = np.asarray(reference, np.float64), np.asarray(target, np.float64)
        ref_ok, out_ok = np.isfinite(ref), np.isfinite(out)
        self.ref_nonfinite += int(ref.size - np.count_nonzero(ref_ok))
        self.nonfinite += int(out.size - np.count_nonzero(out_ok))
        # An infinity of the reference may come out as any huge value; a NaN or the other infinity in its place is new,
        # as is anything non-finite in place of a number.
        replaced = ~out_ok & (ref_ok | (np.isinf(ref) & (out != ref)))
        self.new_nonfinite += int(np.count_nonzero(replaced))
        self.zeros += int(np.count_nonzero(out == 0))
        self.new_zeros += int(np.count_nonzero((out == 0) & (np.abs(ref) > visible) & ref_ok))
        self.saturated += int(np.count_nonzero((np.abs(out) >= FP16_MAX) & (np.abs(ref) < FP16_MAX)))
        if ref_ok.any():
            self.ref_peak = max(self.ref_peak, float(np.abs(ref[ref_ok]).max()))
        if out_ok.any():
            self.out_peak = max(self.out_peak, float(np.abs(out[out_ok]).max()))
        both = ref_ok & out_ok
        if not both.all():
            ref, out = ref[both], out[both]
        if not ref.size:
            return
        error = out - ref
        self.common += ref.size
        self.ref_power += float(ref @ ref)
        self.error_power += float(error @ error)
        self.cross += float(out @ ref)
        self.max_error = max(self.max_error, float(np.abs(error).max()))
        if self._shift is None:
            self._shift = (float(ref[0]), float(out[0]))
        r, o = ref - self._shift[0], out - self._shift[1]
        self._sums += (r.sum(), o.sum(), r @ r, o @ o, r @ o)

    def relative_l2(self) -> float:
        if not self.common:
            return nan
        if self.ref_power == 0:
            return 0.0 if self.error_power == 0 else inf
        return sqrt(self.error_power / self.ref_power)

    def snr_db(self) -> float:
        if not self.common:
            return nan
        if self.error_power == 0:
            return inf
        return 10 * log10(self.ref_power / self.error_power) if self.ref_power else -inf

    def correlation(self) -> float:
        if not self.common:
            return nan
        r, o, rr, oo, ro = self._sums / self.common
        var_r, var_o = rr - r * r, oo - o * o
        # Below float64's own noise a variance is that of a constant, and correlation is undefined.
        if var_r <= 1e-14 * max(rr, 1e-300) or var_o <= 1e-14 * max(oo, 1e-300):
            return nan
        return float(np.clip((ro - r * o) / sqrt(var_r * var_o), -1.0, 1.0))
