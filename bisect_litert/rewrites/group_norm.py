"""GroupNorm whose squares leave fp16's range, or whose broadcasts the GPU refuses."""

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


class ScaledGroupNorm(nn.Module):
    """GroupNorm that squares values of at most 1, at rank 4.

    The channels of a group and all positions are one row: (N, C, H, W) is read as (N * groups, C / groups, H, W). With
    d = x - mean(x) and any s > 0, d / sqrt(mean(d^2) + eps) equals (d/s) / sqrt(mean((d/s)^2) + eps/s^2); `normalised`
    takes the largest |d| of each row for s. Statistics are subtracted and multiplied without being repeated first,
    which would be a BROADCAST_TO.

    Limits: the input itself has to fit fp16 (65504). A row in which one value is more than sqrt(N) * 2^11 times all
    others loses those others, as fp16 does anyway.
    """

    def __init__(self, original: nn.GroupNorm) -> None:
        super().__init__()
        adopt(self, original)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises groups of the channels of x, axis 1."""
        shape = x.shape
        rest = [*shape[2:], 1, 1][:2] if len(shape) < 5 else [-1, shape[-1]]
        d = x.reshape(shape[0] * self.num_groups, shape[1] // self.num_groups, *rest)
        d = d - d.mean((1, 2, 3), keepdim=True)
        y = normalised(d, (1, 2, 3), self.eps).reshape(shape)
        channels = (1, shape[1], *[1] * (len(shape) - 2))
        if self.weight is not None:
            y = y * self.weight.reshape(channels)
        return y if self.bias is None else y + self.bias.reshape(channels)


def propose(region: Region) -> Iterator[Replacement]:
    """Fits torch.nn.GroupNorm and what subclasses it without a forward of its own."""
    if isinstance(region.module, nn.GroupNorm) and type(region.module).forward is nn.GroupNorm.forward:
        yield Replacement(
            "ScaledGroupNorm",
            source_of(normalised, ScaledGroupNorm),
            changes=(Change("GroupNorm", "", "groups are divided by their largest value before they are squared"),),
        )


REWRITE = Rewrite(
    name="group-norm",
    title="GroupNorm of groups divided by their largest value",
    causes=(Cause.OVERFLOW, Cause.REJECTED, Cause.CPU_FALLBACK),
    symptom="zeros or NaN after a GroupNorm of large values; BROADCAST_TO refused",
    why="the squares of the centred values pass 65504; the converter repeats the statistics with BROADCAST_TO",
    rewrite="divide the centred group by its largest magnitude, which cancels; let the arithmetic broadcast",
    limits="the input itself has to fit fp16",
    propose=propose,
    upstream="google-ai-edge/LiteRT#9249",
)
