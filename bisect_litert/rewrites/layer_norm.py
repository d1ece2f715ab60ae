"""LayerNorm whose squares leave fp16's range."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from bisect_litert.rewrites.contract import Change, Replacement, Rewrite
from bisect_litert.rewrites.preamble import adopt
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.sources import source_of
from bisect_litert.vocabulary import Cause


class ScaledLayerNorm(nn.Module):
    """LayerNorm that squares values of at most 1.

    With d = x - mean(x) and any s > 0, LayerNorm's d / sqrt(mean(d^2) + eps) equals
    (d/s) / sqrt(mean((d/s)^2) + eps/s^2). Here s is the largest |d| of each row, so d/s lies in [-1, 1], its squares
    cannot pass 65504, and their mean is at least 1/N. s is at least sqrt(eps) (and at least 2^-14, the smallest fp16
    number with all its digits), so a row of equal values divides by no zero, and eps/s^2 is written as
    (sqrt(eps)/s)^2, which is at most 1.

    Limits: the input itself has to fit fp16 (65504). A row in which one value is more than sqrt(N) * 2^11 times all
    others loses those others, as fp16 does anyway.
    """

    def __init__(self, original: nn.LayerNorm) -> None:
        super().__init__()
        adopt(self, original)
        self.axes = tuple(range(-len(original.normalized_shape), 0))
        self.smallest = max(original.eps**0.5, 2.0**-14)
        self.root_eps = original.eps**0.5 / self.smallest

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises the last axes of x."""
        d = x - x.mean(self.axes, keepdim=True)
        s = d.abs().amax(self.axes, keepdim=True).clamp(min=self.smallest)
        d = d / s
        e = self.root_eps * (self.smallest / s)
        y = d * torch.rsqrt((d * d).mean(self.axes, keepdim=True) + e * e)
        if self.weight is not None:
            y = y * self.weight
        return y if self.bias is None else y + self.bias


def propose(region: Region) -> Iterator[Replacement]:
    """Fits torch.nn.LayerNorm and what subclasses it without a forward of its own."""
    if isinstance(region.module, nn.LayerNorm) and type(region.module).forward is nn.LayerNorm.forward:
        yield Replacement(
            "ScaledLayerNorm",
            source_of(ScaledLayerNorm),
            changes=(Change("LayerNorm", "", "rows are divided by their largest value before they are squared"),),
        )


REWRITE = Rewrite(
    name="layer-norm",
    title="LayerNorm of rows divided by their largest value",
    causes=(Cause.OVERFLOW,),
    symptom="zeros, or NaN, after a LayerNorm whose input has values above about 256",
    why="the squares of the centred values, or their sum, pass 65504; rsqrt(inf) is 0",
    rewrite="divide the centred row by its largest magnitude; the factor cancels in the normalised result",
    limits="the input itself has to fit fp16",
    propose=propose,
    upstream="google-ai-edge/LiteRT#9249",
)
