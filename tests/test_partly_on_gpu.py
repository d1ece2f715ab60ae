"""Models of which the GPU refuses a part: that part has fp32's range, so emulated fp16 may fail before the GPU does."""

from __future__ import annotations

import torch
from torch import nn

from bisect_litert import bisect
from bisect_litert.vocabulary import Cause, Residency


class Refused(nn.Module):
    """Leaves its scale behind, in ops that the GPU has no rank for."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x) * self.scale
        return x.view(2, 2, 2, 2, 2).permute(4, 1, 3, 0, 2)


class Rescaled(nn.Module):
    """Takes the scale back, and so needs what fp16 lost of it."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(torch.relu(x.reshape(4, 8)) / self.scale))))


class Model(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.refused, self.rescaled = Refused(scale), Rescaled(scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rescaled(self.refused(x))


def test_range_is_the_cause_also_where_emulated_fp16_had_lost_it_before() -> None:
    torch.manual_seed(0)
    record = bisect(Model(3e6).eval(), (torch.randn(4, 8),), blocks="*")
    assert [b.residency for b in record.blocks] == [Residency.CPU, Residency.MIXED], record.placement
    (culprit,) = record.culprits
    assert (culprit.block, culprit.cause, culprit.kind) == ("rescaled", Cause.OVERFLOW, "")
    assert "because all of it ran on the CPU: refused" in " ".join(record.verdict.notes)
