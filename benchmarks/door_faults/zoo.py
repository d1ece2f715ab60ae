"""Faults that not every door can see: one of the conversion, and one of some versions of the runtime."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn


class Halve(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5


class Odd(nn.Module):
    """Nearest resizing to sizes that are no multiple: the converter rounds to other pixels than PyTorch."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.interpolate(x, size=(11, 13), mode="nearest")


class Step(nn.Module):
    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x + self.size


class Chain(nn.Module):
    def __init__(self, *blocks: nn.Module, returns: str = "") -> None:
        super().__init__()
        self.enc = nn.Sequential(OrderedDict((f"b{i}", block) for i, block in enumerate(blocks)))
        self.returns = returns

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        kept = x
        for name, block in self.enc.named_children():
            x = block(x)
            kept = x if name == self.returns else kept
        return (kept, x) if self.returns else x


def load(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a model in eval mode and its inputs."""
    torch.manual_seed(0)
    if name == "conversion_nearest":
        return Chain(nn.Conv2d(3, 4, 1), Odd(), Halve()).eval(), (torch.randn(1, 3, 7, 9),)
    if name == "aliased_output":
        return Chain(Step(1.5), Step(2.5), returns="b0").eval(), (torch.randn(4, 16),)
    raise KeyError(name)
