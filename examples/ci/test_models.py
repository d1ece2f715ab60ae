"""A test suite that holds models to their GPU result, by the fixture that comes with bisect-litert.

    pytest examples/ci/test_models.py
    pytest examples/ci/test_models.py --litert-emulated   # where there is no GPU: judge emulated fp16

Without a GPU and without that option the tests are skipped; `litert_without_gpu = "fail"` in the pytest settings makes
them fail, "emulate" lets emulated fp16 stand in.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from bisect_litert.pytest_plugin import Checker

MODELS = Path(__file__).parent.parent


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def test_encoder_is_right_on_the_gpu(bisect_litert: Checker) -> None:
    record = bisect_litert(Encoder().eval(), torch.randn(1, 8, 32), blocks="layers.*")
    assert record.placement.cpu_ops == 0


def test_encoder_file_is_right_in_fp32(bisect_litert: Checker) -> None:
    bisect_litert(MODELS / "healthy.py", fp32=True)
