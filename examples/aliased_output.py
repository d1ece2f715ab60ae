"""A model that also returns a tensor that it goes on computing with.

What goes wrong: up to ai-edge-litert 2.1.5 the GPU hands back another tensor's values for such an output; since 2.1.6
it is right. What the model computes from the tensor is right in all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Step(nn.Module):
    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x + self.size


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Step(1.5), Step(2.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.first(x)
        return hidden, self.second(hidden)


torch.manual_seed(0)
model = Model().eval()
inputs = (torch.randn(4, 16),)
