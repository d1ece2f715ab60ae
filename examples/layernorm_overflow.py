"""A transformer encoder in which one LayerNorm is fed activations in the thousands.

What goes wrong: LayerNorm squares the distance from the mean. 1500 squared is 2.25 million, fp16 ends at 65504, so the
variance becomes infinite, 1 / sqrt(infinity) is 0, and the block hands on zeros: no NaN, no error, just a dead branch.
PyTorch and the same .tflite on the CPU are right. Real models get here through a few outlier channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH, HEADS, LENGTH = 64, 4, 16


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.view(1, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(x).split(WIDTH, -1))
        weights = torch.softmax(q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(1, LENGTH, WIDTH))


class Block(nn.Module):
    """Attention and an MLP, each after a LayerNorm; `gain` scales what the second LayerNorm sees."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x * self.gain))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(gain=1500.0 if index == 3 else 1.0) for index in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


torch.manual_seed(0)
model = Encoder().eval()
inputs = (torch.randn(1, LENGTH, WIDTH),)
