"""A language-model head that comes out exactly zero after its RMSNorm.

What goes wrong: RMSNorm takes the mean of the squares. With activations around 400 that mean passes fp16's 65504 and
becomes infinite, and x * rsqrt(infinity) is 0 for every token: all logits are zero, and argmax picks token 0.
The fix is to scale down before the square and to normalise the scaled values.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH, VOCABULARY = 64, 96


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = RMSNorm()
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Head(nn.Module):
    """The residual stream has grown large by the time it gets here, as it does in deep decoders."""

    def __init__(self, growth: float) -> None:
        super().__init__()
        self.growth = growth
        self.norm = RMSNorm()
        self.vocabulary = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.vocabulary(self.norm(x * self.growth))


def get_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(FeedForward() for _ in range(4)), Head(growth=400.0)).eval()


def get_inputs() -> tuple[Tensor, ...]:
    return (torch.randn(1, 12, WIDTH),)
