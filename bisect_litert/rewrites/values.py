"""A tensor that is stored smaller or larger than it is: true value = stored * 2^exponent.

Powers of two change no digit, so scaling is exact in fp32 as long as nothing leaves fp32's own range. What is stored
has to fit fp16 with headroom, and where small values matter (under a logarithm, a root, a divisor) they have to be held
too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch

from bisect_litert.rewrites.contract import CannotRewrite
from bisect_litert.rewrites.tracing import Traced

FP16_MAX = 65504.0
HEADROOM = 3
"""A value that is scaled is left this many octaves below 2^16, for inputs larger than the measured ones."""
TOP = 15
"""A value stored as it is may reach 2^TOP."""
AIM = 16 - HEADROOM
BOTTOM = -14
"""2^-14 is the smallest fp16 number with all its digits."""
SMALLEST = -24
"""2^-24 is the smallest one at all."""
FAINT = -10
"""A value whose peak lies below 2^FAINT is scaled up: the rest of it would lose digits."""
STEP = 14
"""Largest exponent of one factor: 2^16 is no fp16 number."""


@dataclass(frozen=True)
class Value:
    """One tensor of the rewritten module."""

    stored: Traced
    exponent: int = 0

    @property
    def peak(self) -> float:
        """Largest finite magnitude of what is stored."""
        return peak_of(self.stored.values)

    @property
    def is_float(self) -> bool:
        """Whether it is of a floating-point type; others are never scaled."""
        return bool(self.stored.dtype.is_floating_point)

    @property
    def true_peak(self) -> float:
        """Largest finite magnitude of the true value."""
        return math.ldexp(self.peak, self.exponent)


def peak_of(values: Sequence[torch.Tensor]) -> float:
    """Largest finite magnitude; 0 when all are zero."""
    return max((_extreme(value)[0] for value in values), default=0.0)


def low_of(values: Sequence[torch.Tensor]) -> float:
    """Smallest finite magnitude above zero; inf when there is none."""
    return min((_extreme(value)[1] for value in values), default=inf)


def _extreme(value: torch.Tensor) -> tuple[float, float]:
    sizes = value.detach().abs()
    sizes = sizes[torch.isfinite(sizes) & (sizes > 0)]
    return (float(sizes.max()), float(sizes.min())) if sizes.numel() else (0.0, inf)


def shift_for(peak: float, low: float, *, prefer: int = 0, small_matters: bool = False) -> int:
    """Chooses by which power of two to divide what would be stored as it is.

    Args:
        peak: Its largest magnitude.
        low: Its smallest one above zero.
        prefer: Taken where it fits: the shift that stores the true value.
        small_matters: Whether a logarithm, root or divisor reads it, so that small values have to be held.

    Returns:
        The shift; 0 where it can be stored as it is.
    """
    if peak == 0 or not math.isfinite(peak):
        return 0
    top = math.ceil(math.log2(peak))
    bottom = math.floor(math.log2(low)) if small_matters else top

    def fits(shift: int) -> bool:
        return top - shift <= TOP and top - shift >= FAINT and bottom - shift >= BOTTOM

    for shift in (prefer, 0):
        if fits(shift):
            return shift
    if small_matters and bottom - top < 0:
        # As far up as small values need, no further than headroom allows.
        return max(top - AIM, min(0, bottom - BOTTOM)) if top <= TOP else top - AIM
    return top - AIM if top > TOP else top - 2


def scale(value: Value, exponent: int) -> Value:
    """Returns the same value stored with another exponent, by multiplications with powers of two fp16 can hold."""
    stored, left = value.stored, value.exponent - exponent
    known: dict[int, Traced] = stored.node.meta.setdefault("scaled", {})
    if left in known:
        return Value(known[left], exponent)
    todo = left
    while todo:
        step = max(-STEP, min(STEP, todo))
        stored = stored * 2.0**step
        todo -= step
    known[left] = stored
    return Value(stored, exponent)


def true(value: Value, what: str = "a value") -> Traced:
    """Returns the tensor itself.

    Raises:
        CannotRewrite: fp16 cannot hold it.
    """
    if value.exponent == 0:
        return value.stored
    if value.true_peak > FP16_MAX:
        raise CannotRewrite(f"{what} reaches {value.true_peak:.3g}, which fp16 cannot hold, and it is needed as it is")
    return scale(value, 0).stored


def align(values: Sequence[Value], exponent: int | None = None) -> tuple[list[Traced], int]:
    """Returns the values stored with one exponent: the given one, else the largest of theirs."""
    common = max(v.exponent for v in values) if exponent is None else exponent
    return [scale(v, common).stored for v in values], common
