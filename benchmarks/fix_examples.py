"""One small model per rewrite, with the fault it cures in its second block: for the catalogue and for tests.

`EXAMPLES[name]()` returns a module in eval mode and its inputs; the blocks are `blocks.0` to `blocks.2`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Mix(nn.Module):
    """A healthy block: a residual layer on the last axis."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the size of what it is given."""
        return x + torch.relu(self.layer(x))


class Image(nn.Module):
    """A healthy block on images."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the size of what it is given."""
        return torch.relu(self.layer(x))


class Scaled(nn.Module):
    """A module that is given values a factor too large."""

    def __init__(self, factor: float, inner: nn.Module) -> None:
        super().__init__()
        self.factor, self.inner = factor, inner

    def forward(self, x: Tensor) -> Tensor:
        """Multiplies and hands on."""
        return self.inner(x * self.factor)


class Root(nn.Module):
    """RMSNorm as models write it themselves."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last axis."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Does(nn.Module):
    """A function, with a tensor that the module holds."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], held: Tensor | None = None) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("held", torch.zeros(1) if held is None else held)

    def forward(self, x: Tensor) -> Tensor:
        """Calls it."""
        return self.function(x, self.held)


Example = tuple[nn.Module, tuple[Any, ...]]


def _between(middle: nn.Module, around: Callable[[], nn.Module], *shape: int) -> Example:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(around(), middle, around())

        def forward(self, x: Tensor) -> Tensor:
            return self.blocks(x)

    return Model().eval(), (torch.randn(*shape),)


def _tokens(middle: nn.Module, *shape: int) -> Example:
    shape = shape or (1, 16, 64)
    return _between(middle, lambda: Mix(shape[-1]), *shape)


def _image(middle: nn.Module) -> Example:
    return _between(middle, lambda: Image(8), 1, 8, 17, 17)


def _masked(x: Tensor, mask: Tensor) -> Tensor:
    q = x.reshape(1, 16, 4, 16).transpose(1, 2)
    scores = torch.softmax(q @ q.transpose(-1, -2) * 0.25 + mask, -1)
    return x + (scores @ q).transpose(1, 2).reshape(1, 16, 64)


def _shared_keys(x: Tensor, _: Tensor) -> Tensor:
    shared = torch.softmax(x[:1].transpose(-1, -2) @ x[:1] * 0.05, -1)
    return x + x @ shared


def _difference_of_squares(x: Tensor, _: Tensor) -> Tensor:
    """A norm whose variance is E[x^2] - E[x]^2."""
    mean = x.mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt((x * x).mean(-1, keepdim=True) - mean.pow(2) + 1e-5)


def _by_hand(x: Tensor, _: Tensor) -> Tensor:
    """A smooth maximum of x and 0, and a softmax with an epsilon instead of its maximum."""
    weights = torch.exp(x * 8)
    return torch.log(1 + weights) / 8 + weights / (weights.sum(-1, keepdim=True) + 1e-6)


def _windows(x: Tensor, _: Tensor) -> Tensor:
    parts = x.reshape(1, 4, 4, 4, 4, 8).permute(0, 1, 3, 2, 4, 5) * 2
    return parts.permute(0, 1, 3, 2, 4, 5).reshape(1, 16, 16, 8)


class Sampled(nn.Module):
    """An image read at points that are given."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Image(3), Points(), Image(3)])

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        """Samples between two layers."""
        return self.blocks[2](self.blocks[1](self.blocks[0](x), grid))


class Points(nn.Module):
    """Bilinear sampling."""

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        """Reads an image at points."""
        return F.grid_sample(x, grid, align_corners=False)


class Returning(nn.Module):
    """Returns its input beside its output."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Mix(64), Mix(64), Mix(64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The result, and what it was made of."""
        return self.blocks(x), x


class Turned(nn.Module):
    """Turns pairs of numbers by an angle that grows with the position."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 10000 ** (-torch.arange(0, 32) / 32))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding as models write it."""
        half = x.shape[-1] // 2
        angles = positions.to(x.dtype)[..., None] * self.frequencies
        c, s = angles.cos(), angles.sin()
        left, right = x[..., :half], x[..., half:]
        return torch.cat([left * c - right * s, left * s + right * c], -1)


class Placed(nn.Module):
    """Tokens at late positions."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Mix(64), Turned(), Mix(64)])

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Turns the tokens between two layers."""
        return self.blocks[2](self.blocks[1](self.blocks[0](x), positions))


EXAMPLES: dict[str, Callable[[], Example]] = {
    "layer-norm": lambda: _tokens(Scaled(1e3, nn.LayerNorm(64))),
    "rms-norm": lambda: _tokens(Scaled(1e3, Root(64))),
    "group-norm": lambda: _image(Scaled(3e3, nn.GroupNorm(2, 8))),
    "instance-norm": lambda: _image(Scaled(3e3, nn.InstanceNorm2d(8, affine=True))),
    "batch-norm": lambda: _image(Scaled(3e3, nn.BatchNorm2d(8, track_running_stats=False))),
    "exponentials": lambda: _tokens(Does(_by_hand)),
    "scale-tracking": lambda: _tokens(
        Does(lambda x, _: torch.softmax((x * 300) @ (x * 300).transpose(-1, -2), -1) @ x)
    ),
    "constant-operand": lambda: _tokens(Does(_masked, torch.triu(torch.full((1, 1, 16, 16), -1e4), 1))),
    "padding": lambda: _tokens(Does(lambda x, _: F.pad(x, (2, 3))[..., 1:-4]), 6, 16, 64),
    "padded-pooling": lambda: _image(Does(lambda x, _: F.avg_pool2d(x * 1.5, 3, 1, 1))),
    "batch-broadcast": lambda: _tokens(Does(_shared_keys), 4, 16, 64),
    "cancelling": lambda: _tokens(Does(lambda x, _: (x + 1000.0) - 1000.0)),
    "block-sums": lambda: _tokens(Does(lambda x, _: torch.cumsum(x.abs() + 1, 1) * 0.01), 1, 4096, 4),
    "integer-phase": lambda: (Placed().eval(), (torch.randn(1, 16, 64), torch.arange(4000, 4016)[None])),
    "rank-four": lambda: _tokens(Does(_windows), 1, 16, 16, 8),
    "clamp-to-one": lambda: _image(nn.Hardtanh(0, 1)),
    "reflection": lambda: _tokens(Does(lambda x, _: F.pad(x, (2, 2), mode="reflect")[..., 2:-2] * 2)),
    "picked-rows": lambda: _tokens(Does(lambda x, _: x[:, [*range(8, 16), *range(0, 8, 2), *range(1, 8, 2)]])),
    "flipped": lambda: _tokens(Does(lambda x, _: x.flip(-1)), 1, 8, 6),
    "grid-sampling": lambda: (Sampled().eval(), (torch.randn(2, 3, 8, 7), torch.rand(2, 4, 5, 2) * 2 - 1)),
    "nearest-resize": lambda: _image(Does(lambda x, _: F.interpolate(x, size=(11, 13), mode="nearest"))),
    "barriers": lambda: _tokens(Does(_difference_of_squares)),
    "returned-copies": lambda: (Returning().eval(), (torch.randn(1, 16, 64),)),
}


def load(name: str) -> Example:
    """Returns an example with the same numbers every time."""
    torch.manual_seed(0)
    return EXAMPLES[name]()
