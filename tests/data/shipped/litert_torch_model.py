"""The module that litert_torch.tflite was made of."""

from __future__ import annotations

import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self, width: int, gain: float) -> None:
        super().__init__()
        self.gain = gain
        self.pre_norm = nn.LayerNorm(width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.out_proj(self.pre_norm(x * self.gain)))


class Net(nn.Module):
    """Ids in; the LayerNorm of the second of three mixers overflows fp16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tok_emb = nn.Embedding(17, 16)
        self.layers = nn.ModuleList(Mixer(16, gain) for gain in (1.0, 400.0, 1.0))
        self.head = nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok_emb(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def inputs() -> tuple[torch.Tensor]:
    return (torch.arange(8).reshape(1, 8) * 2 % 17,)


model = Net().eval()
