"""The model that onnx2tf.tflite computes, in PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from onnx2tf_weights import weights


class Unit(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, 8, 3, padding=1)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.conv(x))


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(()))
        self.register_buffer("eps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.gain
        return x / torch.sqrt((x * x).mean(1, keepdim=True) + self.eps)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stage = nn.Sequential(Unit(3), Unit(8))
        self.norm = Norm()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(8, 4)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.norm(self.stage(picture))).flatten(1))


model = Net().eval()
model.load_state_dict({name: torch.from_numpy(value) for name, value in weights().items()})
inputs = (torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)),)
