"""Whose weights are in the file: copies, rounded and folded ones are the model's, another checkpoint's are not; and
what rounding them costs is no excuse for a wrong kernel. One conversion, the real delegate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from test_pair import no_conversion  # noqa: F401 (fixture)
from torch import nn

import bisect_litert
from bisect_litert.errors import ConversionError, ExitCode
from bisect_litert.files.weight_matching import match_weights
from bisect_litert.graphs.conversion import convert
from bisect_litert.graphs.editor import Editor
from bisect_litert.graphs.graph import Graph
from bisect_litert.graphs.quantisation import Quantisation
from bisect_litert.record import RunRecord
from bisect_litert.vocabulary import OTHER_WEIGHTS, Cause

ROWS = 4


class Rows(nn.Module):
    """Its sum with a constant of its own rank and more than one outer row is what the GPU gets wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)
        self.register_buffer("rows", torch.linspace(-1, 1, ROWS).reshape(ROWS, 1, 1).expand(ROWS, 6, 16).clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) + self.rows


class Net(nn.Module):
    """`unused` has the shape of `head`'s weights, and the file does not hold it."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.unused = nn.Linear(5, 16)
        self.first, self.second, self.head = nn.Linear(16, 16), Rows(), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(torch.tanh(self.first(x))))


def sample() -> torch.Tensor:
    return torch.randn(ROWS, 6, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("net")
    convert(Net().eval(), (sample(),), {}, folder / "net.tflite", folder / "log")
    return folder / "net.tflite"


@pytest.fixture(scope="module")
def rounded(shipped: Path) -> Path:
    """The same with 8-bit weights that the ops read themselves."""
    from ai_edge_litert import schema_py_generated as schema

    graph = Graph.read(shipped)
    editor = Editor(graph)
    for op in graph.ops:
        if op.type != "FULLY_CONNECTED":
            continue
        t = op.inputs[1]
        value = graph.constant(t)
        assert value is not None
        scale = float(np.abs(value).max()) / 127
        stored = Quantisation((scale,), (0,), 0).stored(value, np.dtype(np.int8))
        new = editor.add_tensor(graph.tensors[t].name, value.shape, schema.TensorType.INT8, stored)
        editor.subgraph.tensors[new].quantization = schema.QuantizationParametersT()
        editor.subgraph.tensors[new].quantization.scale = [scale]
        editor.subgraph.tensors[new].quantization.zeroPoint = [0]
        editor.rewire(t, new)
    return editor.graph().write(shipped.with_name("rounded.tflite"))


def parameters(model: nn.Module) -> list[tuple[str, np.ndarray]]:
    return [(name, p.detach().numpy()) for name, p in model.named_parameters()]


def used(model: nn.Module) -> list[tuple[str, np.ndarray]]:
    return [(name, value) for name, value in parameters(model) if not name.startswith("unused")]


def pair(model: nn.Module, file: Path) -> RunRecord:
    return bisect_litert.bisect(model.eval(), sample(), tflite=file)


def test_copies_and_rounded_copies_are_the_models(shipped: Path, rounded: Path) -> None:
    for file in (shipped, rounded):
        found = match_weights(Graph.read(file), used(Net()))
        assert (found.same, dict(found.other), found.sentence("a")) == (3, {}, "")


def test_another_checkpoint_is_told_with_how_many_and_the_worst(shipped: Path) -> None:
    other = Net(1)
    with torch.no_grad():
        other.head.weight.copy_(Net().head.weight)
        other.first.weight *= 100
    found = match_weights(Graph.read(shipped), used(other))
    assert (found.same, set(found.other)) == (1, {"first.weight", "second.fc.weight"})
    said = found.sentence("a.tflite")
    assert said.startswith(
        "a.tflite was made from other weights: 2 of 3 weights that have a counterpart in it differ, and "
    )
    assert found.other["second.fc.weight"] > 1


def test_a_factor_per_channel_is_what_converters_fold(shipped: Path) -> None:
    model = Net()
    with torch.no_grad():
        model.first.weight *= torch.linspace(0.5, 2, 16)[:, None]
        model.second.fc.weight *= torch.linspace(0.5, 2, 16)
    assert match_weights(Graph.read(shipped), used(model)).same == 3


def test_what_has_no_counterpart_tells_nothing(shipped: Path) -> None:
    found = match_weights(Graph.read(shipped), [("w", np.eye(7, dtype=np.float32)), ("ones", np.ones((16, 16), "f4"))])
    assert (found.same, dict(found.other)) == (0, {})


@pytest.mark.usefixtures("no_conversion")
def test_a_file_that_shares_no_weight_is_not_compared(shipped: Path, rounded: Path) -> None:
    for file in (shipped, rounded):
        with pytest.raises(ConversionError, match=r"was made from other weights: 3 of 3 .* differ, and") as caught:
            pair(Net(1), file)
        assert caught.value.exit_code is ExitCode.CANNOT_TEST
        assert "checkpoint" in caught.value.hint


@pytest.mark.usefixtures("no_conversion")
def test_one_weight_of_another_checkpoint_is_no_wrong_conversion(shipped: Path) -> None:
    model = Net()
    with torch.no_grad():
        model.head.weight.copy_(Net(1).head.weight)
    record = pair(model, shipped)
    found = {c.block: c for c in record.culprits}
    assert (found["second"].cause, found["second"].kind) == (Cause.WRONG_KERNEL, "")
    head = found["head"]
    assert (head.cause, head.kind, head.confidence) == (Cause.CONVERSION, OTHER_WEIGHTS, "low")
    assert head.evidence[0].startswith("net.tflite was made from other weights: 1 of 3 ")
    assert "head.weight is off by" in head.evidence[0]
    assert "a file made of this checkpoint would raise it" in head.confidence_reason
    assert "checkpoint" in head.advice
    assert head.evidence[0] in record.verdict.notes


@pytest.mark.usefixtures("no_conversion")
def test_rounded_weights_are_no_excuse_for_a_wrong_kernel(rounded: Path) -> None:
    record = pair(Net(), rounded)
    assert [(c.block, c.cause) for c in record.culprits] == [("second", Cause.WRONG_KERNEL)]
    (culprit,) = record.culprits
    assert [o.type for o in culprit.ops if o.index == culprit.op] == ["ADD"]
    assert any("precision is not the reason" in said for said in culprit.evidence)
    assert not any("only, so fp16" in said for said in culprit.evidence)
