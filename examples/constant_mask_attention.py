"""Attention with a causal mask in a buffer: the GPU kernel gives every head the scores of the first one.

What goes wrong: softmax(q @ k^T * scale + mask) at batch 1, with a constant mask of shape [1, 1, S, S]. LiteRT's GPU
delegate reads the sum at index 0 of the heads for all of them. Nothing is NaN, every row still sums to 1, and fp32 on
the GPU is wrong in the same way, so this is no matter of precision. `masked_fill`, `is_causal=True`, the mask as an
input of the model, or batch 2 are right.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH, HEADS, LENGTH = 64, 4, 16


class CausalAttention(nn.Module):
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.triu(torch.full((1, 1, LENGTH, LENGTH), -1e4), 1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.view(1, LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(x).split(WIDTH, -1))
        weights = torch.softmax(q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5 + self.mask, -1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(1, LENGTH, WIDTH))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.linear(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"mlp_in": FeedForward(), "attention": CausalAttention(), "mlp_out": FeedForward()})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x


torch.manual_seed(0)
model = Decoder().eval()
inputs = (torch.randn(1, LENGTH, WIDTH),)
