"""InstanceNorm whose squares leave fp16's range."""

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

KINDS = {nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3}


class ScaledInstanceNorm(nn.Module):
    """InstanceNorm that squares values of at most 1.

    With d = x - mean(x) over the positions of a channel and any s > 0, d / sqrt(mean(d^2) + eps) equals
    (d/s) / sqrt(mean((d/s)^2) + eps/s^2); `normalised` takes the largest |d| of each channel for s.

    Limits: the input itself has to fit fp16 (65504). A channel in which one value is more than sqrt(N) * 2^11 times
    all others loses those others, as fp16 does anyway.
    """

    def __init__(self, original: nn.Module, *, axes: int) -> None:
        super().__init__()
        adopt(self, original)
        self.positions = axes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises each channel of x, (N, C, ...) or (C, ...)."""
        shape = x.shape
        if len(shape) == self.positions + 1:
            x = x.unsqueeze(0)
        channels = (1, x.shape[1], *[1] * self.positions)
        axes = tuple(range(2, x.ndim))
        y = normalised(x - x.mean(axes, keepdim=True), axes, self.eps)
        if self.weight is not None:
            y = y * self.weight.reshape(channels)
        if self.bias is not None:
            y = y + self.bias.reshape(channels)
        return y.reshape(shape)


def propose(region: Region) -> Iterator[Replacement]:
    """Fits torch's InstanceNorm modules without running statistics."""
    module = region.module
    axes = next((n for kind, n in KINDS.items() if isinstance(module, kind)), None)
    if axes is None or type(module).forward is not nn.InstanceNorm2d.forward:
        return
    if module.running_mean is not None or module.running_var is not None:
        return
    yield Replacement(
        "ScaledInstanceNorm",
        source_of(normalised, ScaledInstanceNorm),
        {"axes": axes},
        changes=(Change(region.class_name, "", "channels are divided by their largest value before they are squared"),),
    )


REWRITE = Rewrite(
    name="instance-norm",
    title="InstanceNorm of channels divided by their largest value",
    causes=(Cause.OVERFLOW,),
    symptom="zeros or NaN after an InstanceNorm of values above about 256",
    why="the squares of the centred values, or their sum, pass 65504; rsqrt(inf) is 0",
    rewrite="divide the centred channel by its largest magnitude; the factor cancels in the normalised result",
    limits="the input itself has to fit fp16; with running statistics nothing of this happens",
    propose=propose,
    upstream="google-ai-edge/LiteRT#9249",
)
