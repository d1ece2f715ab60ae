"""Running sums over pieces of two tensors, in float64: all that a comparison says, from one look at each element."""

from __future__ import annotations

from math import inf, log10, nan, sqrt

import numpy as np

from bisect_litert.measuring.limits import FP16_MAX
from bisect_litert.measuring.pieces import chosen, dot

KEPT = 2.0**-4
"""Share of two numbers that a difference of theirs keeps at least, so that it loses no more than four of its bits."""


class Totals:
    """Sums over a reference and a target. Where the first piece has a large mean, moments are taken about its first
    pair, so that the mean costs no digits."""

    def __init__(self, size: int) -> None:
        self.elements = self.common = self.nonfinite = self.new_nonfinite = self.ref_nonfinite = 0
        self.zeros = self.saturated = 0
        self.flushed = False
        """Whether the target holds a zero where the reference holds none."""
        self.ref_power = self.error_power = self.cross = self.max_error = self.ref_peak = self.out_peak = 0.0
        self.whole_power = 0.0
        """Of all that is finite in the reference, whatever the target holds there."""
        self._shift: tuple[float, float] | None = None
        self._sums = (0.0,) * 5
        self._work = np.empty((2, size))

    def add(self, reference: np.ndarray, target: np.ndarray) -> None:
        """Adds a piece, at most `size` elements."""
        self.elements += reference.size
        if not reference.size:
            return
        reference, target = _computable(reference), _computable(target)
        (low, high), (least, most) = _extremes(reference), _extremes(target)
        if not (least > 0 or most < 0):
            self._count_zeros(reference, target)
        if low > -inf and high < inf and least > -inf and most < inf:  # NaN compares as none of these
            self._peaks(low, high, least, most)
            if max(-least, most) >= FP16_MAX:
                self._count_saturated(reference, target)
            self.whole_power += self._add_finite(reference, target)
        else:
            self._add_some(reference, target)

    def _count_zeros(self, reference: np.ndarray, target: np.ndarray) -> None:
        zero = target == 0
        zeros = int(np.count_nonzero(zero))
        self.zeros += zeros
        if zeros and not self.flushed:
            zero &= reference != 0
            self.flushed = bool(zero.any())

    def _add_some(self, reference: np.ndarray, target: np.ndarray) -> None:
        """Adds a piece in which something is not finite."""
        ref_ok, out_ok = np.isfinite(reference), np.isfinite(target)
        self.ref_nonfinite += int(ref_ok.size - np.count_nonzero(ref_ok))
        self.nonfinite += int(out_ok.size - np.count_nonzero(out_ok))
        # An infinity of the reference may come out as any huge value; a NaN or the other infinity in its place is new,
        # as is anything non-finite in place of a number.
        replaced = ~out_ok & (ref_ok | (np.isinf(reference) & (target != reference)))
        self.new_nonfinite += int(np.count_nonzero(replaced))
        self._count_saturated(reference, target)
        both = np.flatnonzero(ref_ok & out_ok)
        ref_alone, out_alone = chosen(reference, ref_ok & ~out_ok), chosen(target, out_ok & ~ref_ok)
        self._peaks(*_extremes(ref_alone), *_extremes(out_alone))
        wide = ref_alone.astype(np.float64)
        self.whole_power += dot(wide, wide)
        if both.size:
            ref, out = reference.take(both), target.take(both)
            self._peaks(*_extremes(ref), *_extremes(out))
            self.whole_power += self._add_finite(ref, out)

    def _peaks(self, low: float, high: float, least: float, most: float) -> None:
        self.ref_peak = max(self.ref_peak, -low, high)
        self.out_peak = max(self.out_peak, -least, most)

    def _count_saturated(self, reference: np.ndarray, target: np.ndarray) -> None:
        self.saturated += int(np.count_nonzero((np.abs(target) >= FP16_MAX) & (np.abs(reference) < FP16_MAX)))

    def _add_finite(self, reference: np.ndarray, target: np.ndarray) -> float:
        """Adds numbers that are finite on both sides; returns the reference's power."""
        ref, error = self._work[:, : reference.size]
        np.copyto(ref, reference)
        np.copyto(error, target)
        error -= ref
        power, error_power, off = dot(ref, ref), dot(error, error), dot(error, ref)
        self.common += ref.size
        self.ref_power += power
        self.error_power += error_power
        self.max_error = max(self.max_error, float(np.maximum.reduce(error)), -float(np.minimum.reduce(error)))
        ref_sum = float(np.add.reduce(ref))
        out_sum = ref_sum + float(np.add.reduce(error))
        cross, out_power = power + off, power + 2 * off + error_power
        # Where little is left of the two, it is what rounding left of them.
        if not out_power > KEPT * (power + error_power):
            out = error
            np.copyto(out, target)
            cross, out_power, out_sum = dot(out, ref), dot(out, out), float(np.add.reduce(out))
        self.cross += cross
        if self._shift is None:
            self._shift = _shift(ref, ref_sum, power), _shift(target, out_sum, out_power)
        if self._shift == (0.0, 0.0):
            self._add_moments(ref_sum, out_sum, power, out_power, cross)
        else:
            out = error
            np.copyto(out, target)
            ref -= self._shift[0]
            out -= self._shift[1]
            sums = float(np.add.reduce(ref)), float(np.add.reduce(out))
            self._add_moments(*sums, dot(ref, ref), dot(out, out), dot(ref, out))
        return power

    def _add_moments(self, r: float, o: float, rr: float, oo: float, ro: float) -> None:
        known = self._sums
        self._sums = known[0] + r, known[1] + o, known[2] + rr, known[3] + oo, known[4] + ro

    def relative_l2(self, terms: float = 0.0) -> float:
        """Error over reference (or `terms`, if they are larger), in the 2-norm; nan when nothing is finite on both
        sides."""
        if not self.common:
            return nan
        if terms * terms > self.ref_power:
            return sqrt(self.error_power) / terms
        if self.ref_power == 0:
            return 0.0 if self.error_power == 0 else inf
        return sqrt(self.error_power / self.ref_power)

    def snr_db(self, terms: float = 0.0) -> float:
        """10 * log10(reference power / error power); the larger of reference and `terms`."""
        if not self.common:
            return nan
        if self.error_power == 0:
            return inf
        ratio = max(self.ref_power, terms * terms) / self.error_power
        return -inf if ratio == 0 else 10 * log10(ratio)

    def correlation(self) -> float:
        """Pearson's; nan for a constant."""
        if not self.common:
            return nan
        r, o, rr, oo, ro = (total / self.common for total in self._sums)
        var_r, var_o = rr - r * r, oo - o * o
        # Below float64's own noise a variance is that of a constant, and correlation is undefined.
        if var_r <= 1e-14 * max(rr, 1e-300) or var_o <= 1e-14 * max(oo, 1e-300):
            return nan
        value = (ro - r * o) / (sqrt(var_r) * sqrt(var_o))
        return min(max(value, -1.0), 1.0)  # in this order NaN stays NaN


def _computable(piece: np.ndarray) -> np.ndarray:
    """Float32 in place of 16-bit floats, whose every operation would convert them anew."""
    return piece.astype(np.float32) if piece.itemsize < 4 and piece.dtype.kind in "fV" else piece


def _extremes(values: np.ndarray) -> tuple[float, float]:
    """Returns the smallest and the largest; zeros, which are no peak, for an empty one."""
    return (float(np.minimum.reduce(values)), float(np.maximum.reduce(values))) if values.size else (0.0, 0.0)


def _shift(values: np.ndarray, total: float, power: float) -> float:
    """What to take off before squaring: nothing where the mean is of the size that the values differ by, so that the
    squares lose no digits to it, however large the pieces after this one."""
    mean = total / values.size
    return 0.0 if mean * mean <= 64 * (power / values.size - mean * mean) else float(values[0])
