"""BatchNorm of the batch's own statistics, whose squares leave fp16's range."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from bisect_litert.rewrites.contract import Change, Replacement, Rewrite
from bisect_litert.rewrites.normalising import normalised
from bisect_litert.rewrites.preamble import adopt
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.sources import source_of
from bisect_litert.vocabulary import Cause

KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class ScaledBatchNorm(nn.Module):
    """BatchNorm of the batch's own statistics that squares values of at most 1.

    With d = x - mean(x) over the batch and the positions of a channel and any s > 0, d / sqrt(mean(d^2) + eps) equals
    (d/s) / sqrt(mean((d/s)^2) + eps/s^2); `normalised` takes the largest |d| of each channel for s.

    Limits: the input itself has to fit fp16 (65504). A channel in which one value is more than sqrt(N) * 2^11 times
    all others loses those others, as fp16 does anyway.
    """

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        adopt(self, original)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises each channel of x, axis 1."""
        axes = (0, *range(2, x.ndim))
        channels = (1, x.shape[1], *[1] * (x.ndim - 2))
        y = normalised(x - x.mean(axes, keepdim=True), axes, self.eps)
        if self.weight is not None:
            y = y * self.weight.reshape(channels)
        return y if self.bias is None else y + self.bias.reshape(channels)


def propose(region: Region) -> Iterator[Replacement]:
    """Fits torch's BatchNorm modules that have no running statistics."""
    module = region.module
    if not isinstance(module, KINDS) or type(module).forward is not nn.BatchNorm2d.forward:
        return
    if module.running_mean is None and module.running_var is None:
        yield Replacement(
            "ScaledBatchNorm",
            source_of(normalised, ScaledBatchNorm),
            changes=(
                Change(region.class_name, "", "channels are divided by their largest value before they are squared"),
            ),
        )


REWRITE = Rewrite(
    name="batch-norm",
    title="BatchNorm of channels divided by their largest value",
    causes=(Cause.OVERFLOW,),
    symptom="zeros or NaN after a BatchNorm without running statistics",
    why="the squares of the centred values, or their sum, pass 65504; rsqrt(inf) is 0",
    rewrite="divide the centred channel by its largest magnitude; the factor cancels in the normalised result",
    limits="the input itself has to fit fp16; with running statistics nothing of this happens",
    propose=propose,
)
