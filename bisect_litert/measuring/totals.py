"""Running sums over pieces of two tensors, in float64: all that a comparison says, from one look at each element."""

from __future__ import annotations

from math import inf, log10, nan, sqrt

import numpy as np

from bisect_litert.measuring.pieces import dot

FP16_MAX = 65504.0


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
        self._last_power = 0.0
        self._shift: tuple[float, float] | None = None
        self._sums = np.zeros(5)
        self._work = np.empty((3, size))

    def add(self, reference: np.ndarray, target: np.ndarray) -> None:
        """Adds a piece, at most `size` elements."""
        self.elements += reference.size
        if not reference.size:
            return
        low, high = float(reference.min()), float(reference.max())
        least, most = float(target.min()), float(target.max())
        zero = target == 0
        zeros = int(np.count_nonzero(zero))
        self.zeros += zeros
        self.flushed = self.flushed or (zeros > 0 and bool((reference[zero] != 0).any()))
        if low > -inf and high < inf and least > -inf and most < inf:  # NaN compares as none of these
            self._peaks(low, high, least, most)
            if max(-least, most) >= FP16_MAX:
                self._count_saturated(reference, target)
            self._add_finite(reference, target)
            self.whole_power += self._last_power
        else:
            self._add_some(reference, target)

    def _add_some(self, reference: np.ndarray, target: np.ndarray) -> None:
        """Adds a piece in which something is not finite."""
        ref, out = reference.astype(np.float64), target.astype(np.float64)
        ref_ok, out_ok = np.isfinite(ref), np.isfinite(out)
        self.ref_nonfinite += int(ref.size - np.count_nonzero(ref_ok))
        self.nonfinite += int(out.size - np.count_nonzero(out_ok))
        # An infinity of the reference may come out as any huge value; a NaN or the other infinity in its place is new,
        # as is anything non-finite in place of a number.
        replaced = ~out_ok & (ref_ok | (np.isinf(ref) & (out != ref)))
        self.new_nonfinite += int(np.count_nonzero(replaced))
        self._count_saturated(ref, out)
        for values, fine, peaks in ((ref, ref_ok, (1, 0)), (out, out_ok, (0, 1))):
            if fine.any():
                peak = float(np.abs(values[fine]).max())
                self._peaks(0.0, peak * peaks[0], 0.0, peak * peaks[1])
        some = ref[ref_ok]
        self.whole_power += dot(some, some)
        both = ref_ok & out_ok
        if both.any():
            self._add_finite(ref[both], out[both])

    def _peaks(self, low: float, high: float, least: float, most: float) -> None:
        self.ref_peak = max(self.ref_peak, -low, high)
        self.out_peak = max(self.out_peak, -least, most)

    def _count_saturated(self, reference: np.ndarray, target: np.ndarray) -> None:
        self.saturated += int(np.count_nonzero((np.abs(target) >= FP16_MAX) & (np.abs(reference) < FP16_MAX)))

    def _add_finite(self, reference: np.ndarray, target: np.ndarray) -> None:
        ref, out, error = self._work[:, : reference.size]
        ref[:] = reference
        out[:] = target
        np.subtract(out, ref, out=error)
        ref_power, out_power, off = dot(ref, ref), dot(out, out), dot(error, ref)
        ref_sum, out_sum = float(ref.sum()), float(out.sum())
        self._last_power = ref_power
        self.common += ref.size
        self.ref_power += ref_power
        self.error_power += dot(error, error)
        self.cross += ref_power + off
        self.max_error = max(self.max_error, float(error.max()), -float(error.min()))
        if self._shift is None:
            self._shift = (_shift(ref, ref_sum, ref_power), _shift(out, out_sum, out_power))
        if self._shift == (0.0, 0.0):
            self._sums += (ref_sum, out_sum, ref_power, out_power, ref_power + off)
            return
        ref -= self._shift[0]
        out -= self._shift[1]
        self._sums += (ref.sum(), out.sum(), dot(ref, ref), dot(out, out), dot(ref, out))

    def relative_l2(self) -> float:
        """Error over reference, in the 2-norm; nan when nothing is finite on both sides."""
        if not self.common:
            return nan
        if self.ref_power == 0:
            return 0.0 if self.error_power == 0 else inf
        return sqrt(self.error_power / self.ref_power)

    def snr_db(self) -> float:
        """10 * log10(reference power / error power)."""
        if not self.common:
            return nan
        if self.error_power == 0:
            return inf
        return 10 * log10(self.ref_power / self.error_power) if self.ref_power else -inf

    def correlation(self) -> float:
        """Pearson's; nan for a constant."""
        if not self.common:
            return nan
        r, o, rr, oo, ro = self._sums / self.common
        var_r, var_o = rr - r * r, oo - o * o
        # Below float64's own noise a variance is that of a constant, and correlation is undefined.
        if var_r <= 1e-14 * max(rr, 1e-300) or var_o <= 1e-14 * max(oo, 1e-300):
            return nan
        return float(np.clip((ro - r * o) / sqrt(var_r * var_o), -1.0, 1.0))


def _shift(values: np.ndarray, total: float, power: float) -> float:
    """What to take off before squaring: nothing where the mean is of the size that the values differ by, so that the
    squares lose no digits to it, however large the pieces after this one."""
    mean = total / values.size
    return 0.0 if mean * mean <= 64 * (power / values.size - mean * mean) else float(values[0])
