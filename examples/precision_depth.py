"""Thirty-two blocks, none of them at fault, whose rounding errors grow from block to block until the result is off.

What goes wrong: tanh(W x) with a gain of 2 stretches small differences a little in every block. fp16 rounds to 11 bits;
32 blocks later that rounding has grown to 18% of the signal. No block is out of line at its own inputs, so there is no
block to repair: keep the deep part in fp32 or on the CPU, or make the network less sensitive.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

WIDTH, DEPTH, GAIN = 64, 32, 2.0


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        nn.init.normal_(self.linear.weight, std=GAIN / math.sqrt(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


torch.manual_seed(0)
model = nn.Sequential(*(Step() for _ in range(DEPTH))).eval()
inputs = torch.randn(1, 16, WIDTH)
