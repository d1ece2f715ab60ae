"""The model that `bisect-litert doctor` tests itself with: a norm in the middle whose squares leave fp16's range.

self_test.tflite beside it is litert_torch.convert of it, for machines without PyTorch.
"""

from __future__ import annotations

import torch
from torch import nn

WIDTH = 16


class Norm(nn.Module):
    """A layer norm that is fed values in the thousands."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scales up, then normalises."""
        y: torch.Tensor = self.norm(x * 4000.0)
        return y


class Model(nn.Module):
    """Three blocks; the second is at fault."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.overflow, self.after = nn.Linear(WIDTH, WIDTH), Norm(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One after the other."""
        y: torch.Tensor = self.after(self.overflow(self.before(x)))
        return y


torch.manual_seed(0)
model = Model().eval()
inputs = torch.randn(4, WIDTH)
