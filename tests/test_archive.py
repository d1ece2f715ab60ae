"""A .pt2 archive is bisected as the module that was exported."""

from __future__ import annotations

import copy
import logging
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bisect_litert.errors import InputsError, ModelFileError
from bisect_litert.models import blocks, eager, model_file

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


def test_what_is_no_archive(
    tmp_path: Path, archive: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("torch.export"), "handlers", [caplog.handler])
    whole = archive.read_bytes()
    (tmp_path / "cut.pt2").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFileError, match=r"cut\.pt2 is no \.pt2 archive, or only a part of one\."):
        model_file.load(str(tmp_path / "cut.pt2"))
    with zipfile.ZipFile(tmp_path / "zip.pt2", "w") as file:
        file.writestr("zip/model.json", "{}")
    with pytest.raises(ModelFileError, match=r"zip\.pt2 cannot be read by torch [^:]*: it is no archive of \S+, or"):
        model_file.load(str(tmp_path / "zip.pt2"))
    with pytest.raises(ModelFileError, match="There is no file"):
        model_file.load(str(tmp_path / "other.pt2"))
    assert not caplog.records  # torch logs the traceback of what it tried first


def test_a_copy_says_nothing_of_what_torch_deprecates(archive: Path) -> None:
    module = model_file.load(str(archive)).module
    with pytest.warns(FutureWarning, match="LeafSpec"):
        copy.deepcopy(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eager.copy_module(module)


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
