"""A .pt2 archive is bisected as the module that was exported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bisect_litert import blocks, model_file
from bisect_litert.errors import InputsError, ModelFileError

SHIPPED = Path(__file__).parent / "data" / "shipped"


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.body(x) * scale


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList([Part(), Part()])
        self.shared = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        for part in self.parts:
            x = self.shared(part(x, scale))
        return {"y": x}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    program = torch.export.export(Whole().eval(), (torch.randn(2, 4),), {"scale": torch.ones(2, 4)})
    torch.export.save(program, tmp_path / "whole.pt2")
    return tmp_path / "whole.pt2"


def test_it_computes_what_the_module_did(archive: Path) -> None:
    loaded = model_file.load(str(archive))
    (x,), scale = loaded.args, loaded.kwargs["scale"]
    assert torch.equal(loaded.module(x, scale=scale)["y"], Whole().eval()(x, scale=scale)["y"])
    assert loaded.label == "whole.pt2"
    assert not loaded.notes


def test_blocks_are_chosen_as_in_the_module(archive: Path) -> None:
    module = model_file.load(str(archive)).module
    assert blocks.select(module) == blocks.select(Whole())
    assert blocks.select(module, ["parts.*.body.*"]) == blocks.select(Whole(), ["parts.*.body.*"])
    with pytest.raises(Exception, match=r"never called|matches only parts"):
        blocks.select(module, ["parts"])


@pytest.mark.parametrize("key", ["x", "0"])
def test_inputs_by_name_and_position(archive: Path, tmp_path: Path, key: str) -> None:
    np.savez(tmp_path / "in.npz", **{key: np.full((2, 4), 3.0, np.float32)})
    loaded = model_file.load(str(archive), inputs_path=tmp_path / "in.npz")
    assert torch.equal(loaded.args[0], torch.full((2, 4), 3.0))
    np.savez(tmp_path / "in.npz", other=np.zeros(3))
    with pytest.raises(InputsError, match="no input of Whole"):
        model_file.load(str(archive), inputs_path=tmp_path / "in.npz")


def test_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(b"PK\x03\x04 no")
    with pytest.raises(ModelFileError, match=r"m\.pt2 cannot be read by torch"):
        model_file.load(str(tmp_path / "m.pt2"))
    with pytest.raises(ModelFileError, match="There is no file"):
        model_file.load(str(tmp_path / "other.pt2"))


def test_op_and_line_are_found_and_nothing_is_printed_besides(tmp_path: Path) -> None:
    sys.path.insert(0, str(SHIPPED))
    try:
        from litert_torch_model import inputs, model
    finally:
        sys.path.remove(str(SHIPPED))
    torch.export.save(torch.export.export(model, inputs()), tmp_path / "net.pt2")
    done = subprocess.run(
        [sys.executable, "-m", "bisect_litert", "net.pt2", "-q"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == ""
    assert "OVERFLOW in layers.1" in done.stdout
    assert "in layers.1.pre_norm,\n           litert_torch_model.py:17" in done.stdout
