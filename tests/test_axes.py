"""Which dimensions change together: what a cut graph computes is the same part of what the whole one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ai_edge_litert.interpreter import Interpreter
from small_models import numbers
from torch import nn

from bisect_litert.graphs.conversion import convert
from bisect_litert.graphs.cutting import compact
from bisect_litert.graphs.editor import Editor
from bisect_litert.graphs.graph import Graph
from bisect_litert.graphs.shape_rules import read_axes


class Attention(nn.Module):
    """Matmuls, transposes, reshapes, softmax, a broadcast constant and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(12, 16), nn.Linear(12, 16)
        self.register_buffer("bias", numbers(5, 1, seed=3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = (f(x).reshape(6, 5, 4, 4).transpose(1, 2) for f in (self.q, self.k))
        scores = torch.softmax(q @ k.transpose(-1, -2) + self.bias, -1)
        return (scores * 2).mean(1)


class Convolution(nn.Module):
    """Windows that keep the size, and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 7, 3, padding=1), nn.Conv2d(7, 5, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))).flatten(2)


def run(path: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(Interpreter(str(path)).get_signature_runner()(**inputs))


@pytest.mark.parametrize(
    ("module", "shape"), [(Attention(), (6, 5, 12)), (Convolution(), (2, 3, 9, 9))], ids=["attention", "convolution"]
)
def test_every_group_that_is_cut_leaves_a_graph_that_runs(module: nn.Module, shape: Any, tmp_path: Path) -> None:
    graph = convert(module.eval(), (numbers(*shape),), {}, tmp_path / "m.tflite", tmp_path / "log")
    (given,), (written,) = graph.inputs, graph.outputs
    value = np.asarray(numbers(*shape))
    value = value.reshape(graph.tensors[given.tensor].shape)
    whole = run(tmp_path / "m.tflite", {given.name: value})[written.name]
    axes = read_axes(graph)
    batch = axes.tensors(next(a for a in axes.free() if (given.tensor, 0) in axes.tensors(a)))
    for number, atom in enumerate(axes.free()):
        size = axes.sizes[atom] - 1
        made = compact(axes.cut(graph, atom, 1, size)).write(tmp_path / f"{number}.tflite")
        got = run(made, {given.name: axes.part(given.tensor, value, atom, 1, size)})[written.name]
        wanted = axes.part(written.tensor, whole, atom, 1, size)
        assert got.shape == wanted.shape
        if axes.tensors(atom) == batch:  # nothing is summed over it
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    # Twice over the same graph: a shape that is spelt out is found again after a cut.
    atom = next(a for a in axes.free() if axes.tensors(a) == batch)
    once = axes.cut(graph, atom, 0, axes.sizes[atom] - 1)
    axes.sizes[atom] -= 1
    got = run(compact(axes.cut(once, atom, 0, 1)).write(tmp_path / "twice.tflite"), {given.name: value[:1]})
    np.testing.assert_allclose(got[written.name], whole[:1], rtol=1e-4, atol=1e-5)


def test_dimensions_of_an_op_without_a_rule_stay() -> None:
    graph = Graph.read(Path(__file__).parent / "data" / "mlp.tflite")
    assert read_axes(graph).free()
    editor = Editor(graph)
    one = graph.ops[0].inputs[0]
    out = editor.add_tensor("n", [len(graph.tensors[one].shape)], 2)
    editor.add_op("SHAPE", [one], [out])
    held = read_axes(editor.graph())
    assert not any(t == one for atom in held.free() for t, _ in held.tensors(atom))
