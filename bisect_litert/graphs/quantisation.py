"""How integers of a .tflite tensor stand for real numbers: scale * (stored - zero point), per tensor or per channel."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Scale and zero point of a tensor."""

    scales: tuple[float, ...]
    """One, or one per channel."""
    zero_points: tuple[int, ...]
    """As many, or one."""
    axis: int
    """The channels' axis."""

    @classmethod
    def of(cls, tensor: Any) -> Quantisation | None:
        """Returns what the schema's tensor says; None for a tensor that is not quantised, or in blocks."""
        found = tensor.quantization
        scales = [] if found is None or found.scale is None else [float(s) for s in found.scale]
        if not scales or found.detailsType:
            return None
        zeros = [] if found.zeroPoint is None else [int(z) for z in found.zeroPoint]
        return cls(tuple(scales), tuple(zeros) or (0,), int(found.quantizedDimension or 0))

    def real(self, stored: np.ndarray) -> np.ndarray:
        """Returns the real numbers that integers stand for, float32."""
        scale, zero = self._along(stored.shape)
        real: np.ndarray = ((stored.astype(np.float64) - zero) * scale).astype(np.float32)
        return real

    def stored(self, real: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        """Returns the integers that stand for real numbers, to the nearest; what is out of range, or no number, takes
        the end of the range."""
        scale, zero = self._along(real.shape)
        limits = np.iinfo(dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            wanted = np.round(np.asarray(real, np.float64) / scale) + zero
        wanted = np.where(np.isnan(wanted), limits.max, wanted)
        return np.clip(wanted, limits.min, limits.max).astype(dtype)

    @property
    def noise(self) -> float:
        """Root mean square of what rounding to the nearest step costs, in real numbers (the coarsest channel's)."""
        return max(self.scales) / sqrt(12)

    def _along(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Scales and zero points, shaped to be broadcast to a tensor."""
        wide = [1] * len(shape)
        if len(self.scales) > 1:
            wide[self.axis] = len(self.scales)
        scale = np.asarray(self.scales, np.float64).reshape(wide)
        zero = np.asarray(self.zero_points, np.float64).reshape(wide if len(self.zero_points) > 1 else [1] * len(shape))
        return scale, zero


def unpack_int4(data: np.ndarray, count: int) -> np.ndarray:
    """Returns int8 values of packed 4-bit ones, two in a byte, the lower half first."""
    raw = np.asarray(data, np.uint8)
    both = np.stack([raw & 0xF, raw >> 4], -1).reshape(-1)[:count].astype(np.int8)
    return np.where(both > 7, both - 16, both).astype(np.int8)
