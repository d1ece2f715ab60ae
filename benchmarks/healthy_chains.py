"""Chains of healthy blocks, with a plain residual block before and behind each (healthy_blocks.py).

Left out of the blocks, since the runtime is known to be wrong there (docs/thresholds.md): elementwise ops of a tensor
of rank 1 to 3 with a constant whose outer size is above 1, padded average pooling, rank-3 padding, resizing to odd
sizes, a batched matmul of a tensor with itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from healthy_images import IMAGE_C, IMAGES, SIDE  # type: ignore[import-not-found]
from healthy_tokens import JUMPS, TOKENS, C, T  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.nn import functional as F


class PlainTokens(nn.Module):
    """Adds what a block gave to the trunk, then a residual MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(C), nn.Linear(C, 2 * C), nn.Linear(2 * C, C)

    def forward(self, x: Tensor, given: Tensor | None = None) -> Tensor:
        x = self.norm(x if given is None else x + given)
        return x + self.down(F.gelu(self.up(x)))


class PlainImages(nn.Module):
    """Adds what a block gave to the trunk, brought to its size, then a residual convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(IMAGE_C, IMAGE_C, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor, given: Tensor | None = None) -> Tensor:
        if given is not None:
            if given.shape[-1] == 2 * SIDE:
                given = F.avg_pool2d(given, 2)
            elif given.shape[-1] == SIDE // 2:
                given = F.interpolate(given, scale_factor=2, mode="nearest")
            x = 0.7 * (x + given)
        return x + self.b(F.relu(self.a(x)))


class Chain(nn.Module):
    """Healthy blocks with a plain one before and behind each."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        tokens = names[0] not in IMAGES
        plain = PlainTokens if tokens else PlainImages
        self.plain = nn.ModuleDict({"first": plain(), **{f"behind_{name}": plain() for name in names}})
        self.healthy = nn.ModuleDict({name: {**TOKENS, **IMAGES, **JUMPS}[name]() for name in names})
        self.scales = dict.fromkeys(names, 1.0)

    def forward(self, x: Tensor, **extras: Tensor) -> Tensor:
        x = self.plain["first"](x)
        for name, block in self.healthy.items():
            x = self.plain[f"behind_{name}"](x, block(x, **extras) * self.scales[name])
        return x

    def calibrate(self, x: Tensor, **extras: Tensor) -> None:
        """Keeps what is added to the trunk at a root mean square of 1: a trunk of large numbers is not healthy."""
        with torch.no_grad():
            x = self.plain["first"](x)
            for name, block in self.healthy.items():
                given = block(x, **extras)
                self.scales[name] = min(1.0, 1.0 / float(given.square().mean().sqrt()))
                x = self.plain[f"behind_{name}"](x, given * self.scales[name])


class TokenChain(Chain):
    """With the inputs that token blocks may want."""

    def forward(  # type: ignore[override]
        self, x: Tensor, ids: Tensor, positions: Tensor, bias: Tensor, hide: Tensor
    ) -> Tensor:
        return super().forward(x, ids=ids, positions=positions, bias=bias, hide=hide)


def chain(names: Sequence[str], seed: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns a model of the named blocks and its inputs, drawn with a seed."""
    torch.manual_seed(seed)
    if names[0] in IMAGES:
        images = Chain(names).eval()
        x = torch.randn(1, IMAGE_C, SIDE, SIDE)
        images.calibrate(x)
        return images, {"x": x}
    hidden = torch.ones(T, T).triu(1).bool()[None, None]
    inputs = {
        "x": torch.randn(1, T, C),
        "ids": torch.randint(0, 100, (1, T)),
        "positions": (torch.arange(T) % 16).float()[None],
        "bias": torch.randn(1, 1, T, T).masked_fill(hidden, -1e4),
        "hide": hidden,
    }
    tokens = TokenChain(names).eval()
    tokens.calibrate(**inputs)
    return tokens, inputs
