"""How far two forwards of PyTorch's are from being one."""

from __future__ import annotations

import numpy as np

from bisect_litert.measuring.pieces import let_go, pairs

REPEAT_LIMIT = 1e-5
"""Largest difference between two eager runs, relative to the tensor's peak, that passes as another summation order
(fp32 has 6e-8 per operation); random numbers and state give differences of order one."""


def difference(name: str, one: np.ndarray | None, other: np.ndarray | None) -> str:
    """Returns how a tensor of two forwards differs, as the end of a sentence, or ""."""
    if one is None or other is None or one.shape != other.shape:
        return f"{name} has another shape"
    if all(np.array_equal(left, right) for left, right in pairs(one, other)):  # as nearly all are, and cheaper to see
        let_go(one, other)
        return ""
    distance = peak = 0.0
    for left, right in pairs(_real(one), _real(other)):
        odd = ~np.isfinite(left) | ~np.isfinite(right)
        if odd.any() and not np.array_equal(left[odd], right[odd], equal_nan=left.dtype.kind == "f"):
            return f"{name} is non-finite in other places"
        left, right = left[~odd].astype(np.float64), right[~odd].astype(np.float64)
        distance = max(distance, float(np.max(np.abs(left - right), initial=0.0)))
        peak = max(peak, float(np.max(np.abs(left), initial=0.0)))
    let_go(one, other)
    if distance > REPEAT_LIMIT * peak:
        return f"{name} differs by up to {distance:.3g} (its peak is {peak:.3g})"
    return ""


def _real(values: np.ndarray) -> np.ndarray:
    """Complex numbers as pairs of real ones."""
    return values.reshape(-1).view(values.real.dtype) if np.iscomplexobj(values) else values
