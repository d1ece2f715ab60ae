"""What fp16 can hold, and when a comparison is out of line: what readers of a record judge by, without numpy."""

from __future__ import annotations

from math import isnan

from bisect_litert.block_record import Comparison

FP16_MAX = 65504.0
FP16_UNIT = 2.0**-11
"""Largest relative error of rounding to fp16's 11 significant bits (IEEE 754-2019, binary16): half a unit in the last
place."""
FP16_NORMAL = 2.0**-14
"""Smallest magnitude that fp16 holds with all its digits."""


def out_of_line(comparison: Comparison | None, allowed: float) -> bool:
    """Whether a comparison shows more than an allowed relative L2 error, or anything non-finite that the reference
    has not."""
    if comparison is None:
        return False
    if not comparison.finite_agreement:
        return True
    return not isnan(comparison.relative_l2) and comparison.relative_l2 > allowed
