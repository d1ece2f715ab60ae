"""Six layers with a constant each, all of one shape and none contiguous: in the .tflite some have another one's value.

litert-torch 0.10 knows a constant by shape, strides and the address of its memory. A strided one is copied first; the
copy is gone when the next one is copied, which may get the same address and is then taken for the one before.
`.contiguous()` on the buffers, as the model keeps them, is enough.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

HEADS, PLACES = 2, 64


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.randn(PLACES, PLACES, HEADS).permute(2, 0, 1)[None])

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x + self.bias)


model = nn.Sequential(*(Biased() for _ in range(6))).eval()
inputs = torch.randn(1, HEADS, PLACES, PLACES)
