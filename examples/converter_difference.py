"""Nearest-neighbour upsampling to an odd size: the converted model differs from PyTorch before any GPU is involved.

What goes wrong: F.interpolate(mode="nearest") from 7 x 9 to 11 x 13. The converted op picks other source pixels than
PyTorch does, so the .tflite file is wrong on the CPU too, and in the same way on the GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Resize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.interpolate(x, size=(11, 13), mode="nearest")


class Upscaler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.resize = Resize()
        self.head = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.resize(torch.relu(self.stem(image))))


torch.manual_seed(0)
model = Upscaler().eval()
inputs = {"image": torch.randn(1, 3, 7, 9)}
