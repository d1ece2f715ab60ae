"""What every normalisation here shares: it is written into the user's file with the class that needs it."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def normalised(d: torch.Tensor, axes: Sequence[int], eps: float) -> torch.Tensor:
    """d / sqrt(mean(d^2) + eps) over some axes, squaring nothing above 1.

    For any s > 0 it equals (d/s) / sqrt(mean((d/s)^2) + eps/s^2). Here s is the largest |d|, so d/s lies in [-1, 1],
    its squares cannot pass 65504, and their mean is at least 1/N. s is at least sqrt(eps) (and at least 2^-14, the
    smallest fp16 number with all its digits), so zeros are divided by no zero, and eps/s^2 is written as
    (sqrt(eps)/s)^2, which is at most 1.
    """
    smallest = max(eps**0.5, 2.0**-14)
    s = d.abs().amax(axes, keepdim=True).clamp(min=smallest)
    d = d / s
    e = (eps**0.5 / smallest) * (smallest / s)
    return d * torch.rsqrt((d * d).mean(axes, keepdim=True) + e * e)
