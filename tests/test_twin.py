"""What a run keeps of a culprit in PyTorch's terms: the right operators, and values that give what the model gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import Block, numbers
from torch import nn

from bisect_litert.bundles import twin
from bisect_litert.programs.exported import ExportedModel
from bisect_litert.programs.node_sets import Suspect
from bisect_litert.programs.torch_source import Twin


class Glue(nn.Module):
    """A block, code of its own, a normalisation called twice, and a result of two tensors that is taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = Block(8), nn.LayerNorm(8), Block(8)
        self.register_buffer("offsets", torch.arange(8))

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x) * 3
        x = self.norm(x) + (self.offsets + 1).to(torch.float32)
        value, _ = self.norm(x).max(-1, keepdim=True)
        return self.last(x / value)


@pytest.fixture(scope="module")
def model() -> ExportedModel:
    torch.manual_seed(0)
    return ExportedModel(Glue().eval(), (numbers(3, 8),), {}, decompose=False)


BLOCKS = ["first", "norm", "norm@2", "last"]


def kept(folder: Path, model: ExportedModel | None, block: str, **options: Any) -> Twin:
    suspect = Suspect(block, "", options.pop("module", ""), options.pop("operator", ""), **options)
    twin.keep(folder, suspect, model, BLOCKS)
    return Twin.load(folder)


def targets(found: Twin) -> list[list[str]]:
    return [[step.target for step in scope.steps] for scope in found.scopes]


def test_from_the_operator_to_the_block_with_what_runs_before_it(tmp_path: Path, model: ExportedModel) -> None:
    node = next(n for n in model.nodes() if n.target.startswith("aten.tanh") and "last" in n.within)
    found = kept(tmp_path, model, "last", module="last.fc", operator=node.name)
    names = targets(found)
    assert names[0] == ["aten.tanh.default"]
    assert names[1] == ["aten.linear.default", "aten.tanh.default", "aten.add.Tensor"]
    assert names[2][-3:] == names[1]
    assert {"aten.div.Tensor", "aten.max.dim", "getitem", "aten.to.dtype"} <= set(names[2])
    assert "with what runs right before it" in found.scopes[-1].what
    files = {path.name for path in tmp_path.iterdir()}
    assert files >= {"twin.json", "twin_weights.npz"}
    assert {h.name for h in found.scopes[1].weights} == {"p_last_fc_weight", "p_last_fc_bias"}


def test_the_second_call_has_inputs_of_its_own(tmp_path: Path, model: ExportedModel) -> None:
    one, two = kept(tmp_path / "1", model, "norm"), kept(tmp_path / "2", model, "norm@2")
    assert targets(one)[0] == targets(two)[0] == ["aten.layer_norm.default"]
    values = [
        np.load(tmp_path / part / f"twin_{found.scopes[0].inputs[0].name}.npy")
        for part, found in (("1", one), ("2", two))
    ]
    assert not np.array_equal(*values)


def test_what_it_is_made_of_gives_what_the_model_gave(tmp_path: Path, model: ExportedModel) -> None:
    found = kept(tmp_path, model, "last")
    scope = found.scopes[-1]
    weights = np.load(tmp_path / "twin_weights.npz", allow_pickle=False)
    inputs = [torch.from_numpy(np.load(tmp_path / f"twin_{h.name}.npy")) for h in scope.inputs]
    got = twin.build(scope, weights)(*inputs)
    torch.manual_seed(0)
    np.testing.assert_allclose(got.detach().numpy(), Glue().eval()(numbers(3, 8)).detach().numpy(), rtol=1e-5)


def test_a_cut_that_computes_something_else_is_not_kept(
    tmp_path: Path, model: ExportedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(twin, "SAME", -1.0)
    monkeypatch.setattr(np, "array_equal", lambda *_, **__: False)
    found = kept(tmp_path, model, "last")
    assert (found.scopes, found.why) == ((), "cut out, its operators do not give what they gave in the model")


def test_the_whole_model_returns_all_it_returns(tmp_path: Path) -> None:
    class Handed(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            y = x * 2
            return y, x, y

    exported = ExportedModel(Handed(), (numbers(2, 3),), {}, decompose=False)
    found = kept(tmp_path, exported, "(output)", whole=True)
    assert found.scopes[-1].outputs == ("mul", "x", "mul")


def test_why_there_is_none(tmp_path: Path, model: ExportedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept(tmp_path / "1", None, "last").why == "torch.export cannot trace the model"
    monkeypatch.setattr(twin, "LIMIT", 10)
    assert "more than" in kept(tmp_path / "3", model, "last").why
    assert [path.name for path in (tmp_path / "3").iterdir()] == ["twin.json"]


def test_an_operator_that_is_not_aten_is_said(tmp_path: Path) -> None:
    class Wrapped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v * 3, (x,))

    exported = ExportedModel(Wrapped(), (numbers(2, 3),), {}, decompose=False)
    found = kept(tmp_path, exported, "(model)")
    assert found.scopes == ()
    assert found.why
