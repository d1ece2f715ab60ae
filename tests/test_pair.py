"""A model and the file that ships: matched by name and by value, judged against PyTorch, nothing converted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bisect_litert
from bisect_litert.errors import ConversionError, InputsError
from bisect_litert.files import port_matching, tflite_file
from bisect_litert.graphs.editor import Editor
from bisect_litert.graphs.graph import Graph
from bisect_litert.graphs.quantisation import Quantisation
from bisect_litert.record import RunRecord
from bisect_litert.vocabulary import Cause, Mark, TapOrigin

SHIPPED = Path(__file__).parent / "data" / "shipped"


@pytest.fixture(autouse=True)
def no_conversion(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The models of the files can be imported, and converting one is an error."""
    monkeypatch.syspath_prepend(str(SHIPPED))
    import litert_torch

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was converted")

    monkeypatch.setattr(litert_torch, "convert", refuse)
    yield
    for name in ("litert_torch_model", "onnx2tf_model", "onnx2tf_weights"):
        sys.modules.pop(name, None)


def pair(name: str, file: Path | None = None, **options: Any) -> RunRecord:
    from importlib import import_module

    module = import_module(f"{name}_model")
    inputs = module.inputs() if callable(module.inputs) else module.inputs
    return bisect_litert.bisect(module.model, inputs, tflite=file or SHIPPED / f"{name}.tflite", **options)


def edited(tmp_path: Path, change: Any) -> Path:
    graph = Graph.read(SHIPPED / "litert_torch.tflite")
    editor = Editor(graph)
    change(graph, editor)
    return editor.graph().write(tmp_path / "edited.tflite")


def head_weight(graph: Graph) -> int:
    op = next(op for op in reversed(graph.ops) if op.type == "FULLY_CONNECTED")
    return op.inputs[1]


def test_an_nhwc_file_is_matched_block_by_block() -> None:
    record = pair("onnx2tf")
    assert (record.target, record.reference) == ("gpu", "PyTorch")
    assert [(c.block, c.cause) for c in record.culprits] == [("norm", Cause.OVERFLOW)]
    assert record.culprits[0].source.startswith("onnx2tf_model.py:")
    layouts = {b.name: b.taps[0].layout for b in record.blocks}
    assert layouts["stage.1"] == "permute 0,2,3,1"
    assert [b.mark for b in record.blocks[:2]] == [Mark.OK] * 2
    assert any("0,2,3,1 (proved by the outputs)" in note for note in record.verdict.notes)


def test_blocks_that_were_fused_away_have_no_partner() -> None:
    record = pair("onnx2tf", blocks=["stage.*.*", "norm", "head"])
    origin = {b.name: b.taps[0].origin for b in record.blocks if b.taps}
    assert origin == {
        "stage.0.conv": TapOrigin.NONE,
        "stage.0.act": TapOrigin.GRAPH,
        "stage.1.conv": TapOrigin.NONE,
        "stage.1.act": TapOrigin.GRAPH,
        "norm": TapOrigin.GRAPH,
        "head": TapOrigin.GRAPH,
    }
    assert [c.block for c in record.culprits] == ["norm"]
    (note,) = [n for n in record.verdict.notes if n.startswith("No tensor of the file")]
    assert "stage.0.conv, stage.1.conv" in note


def test_a_file_of_another_batch_of_weights_is_a_wrong_conversion(tmp_path: Path) -> None:
    def change(graph: Graph, editor: Any) -> None:
        t = head_weight(graph)
        value = graph.constant(t)
        assert value is not None
        editor.fill(t, value * 1.5)

    record = pair("litert_torch", edited(tmp_path, change))
    assert ("head", Cause.CONVERSION) in [(c.block, c.cause) for c in record.culprits]
    assert any("does not give the model's output" in note for note in record.verdict.notes)


def test_a_block_in_the_middle_that_the_file_changes_is_found_by_what_follows(tmp_path: Path) -> None:
    """No tensor from there on holds what PyTorch has; going on from the right one gives the file's own output."""

    def change(graph: Graph, editor: Any) -> None:
        t = next(op for op in graph.ops if op.type == "FULLY_CONNECTED").inputs[1]
        value = graph.constant(t)
        assert value is not None
        editor.fill(t, value * 1.5)

    record = pair("litert_torch", edited(tmp_path, change))
    assert [(c.block, c.cause) for c in record.culprits] == [
        ("layers.0", Cause.CONVERSION),
        ("layers.1", Cause.OVERFLOW),
    ]
    assert {b.name: b.taps[0].origin for b in record.blocks if b.taps}["layers.2"] is TapOrigin.GRAPH


def test_quantised_weights_are_not_called_a_wrong_conversion(tmp_path: Path) -> None:
    from ai_edge_litert import schema_py_generated as schema

    def change(graph: Graph, editor: Any) -> None:
        t = head_weight(graph)
        value = graph.constant(t)
        assert value is not None
        scale = float(np.abs(value).max()) / 127
        way = Quantisation((scale,), (0,), 0)
        new = editor.add_tensor("head/int8", value.shape, schema.TensorType.INT8, way.stored(value, np.dtype(np.int8)))
        editor.subgraph.tensors[new].quantization = schema.QuantizationParametersT()
        editor.subgraph.tensors[new].quantization.scale = [scale]
        editor.subgraph.tensors[new].quantization.zeroPoint = [0]
        editor.rewire(t, new)

    record = pair("litert_torch", edited(tmp_path, change))
    assert [(c.block, c.cause) for c in record.culprits] == [("layers.1", Cause.OVERFLOW)]
    assert any("its conversion is not judged" in note for note in record.verdict.notes)


def test_values_tell_inputs_apart_that_nothing_else_does() -> None:
    from test_file_blocks import make

    graph = make([("SUB", ["x", "x"], "unused"), ("TANH", ["x"], "out")], ["out"])
    first = np.arange(4, dtype=np.float32).reshape(2, 2)
    ways = port_matching.feeds(graph, [("a", first), ("b", first + 10)])
    assert [dict(w.layouts)["x"][0] for w in ways] == ["a", "a", "b", "b"]
    assert np.array_equal(ways[1].values["x"], first.T)
    wanted = {"y": np.tanh(first.T)}
    proofs = [port_matching.match_outputs(graph, wanted, {2: np.tanh(w.values["x"])}, 1e-3) for w in ways]
    assert [p["y"].proved for p in proofs] == [True, True, False, False]
    assert [p["y"].layout.permutation for p in proofs[:2]] == [(1, 0), (0, 1)]


def test_inputs_go_by_name_first() -> None:
    graph = tflite_file.read(SHIPPED / "keras.tflite").graph
    image, other = np.zeros((1, 3, 8, 8), np.float32), np.zeros((1, 8, 8, 3), np.float32)
    (feed, *_) = port_matching.feeds(graph, [("other", other), ("image", image)])
    name, layout = feed.layouts["image"]
    assert (name, layout.permutation) == ("image", (0, 2, 3, 1))


def test_inputs_of_another_size_are_refused() -> None:
    from onnx2tf_model import model

    with pytest.raises(InputsError, match=r"takes image FLOAT32 \[1, 8, 8, 3\]"):
        bisect_litert.bisect(model, torch.zeros(2, 3, 8, 8), tflite=SHIPPED / "onnx2tf.tflite")


def test_a_file_of_another_model_is_refused() -> None:
    with pytest.raises(ConversionError, match="None of the outputs"):
        bisect_litert.bisect(nn.Conv2d(3, 2, 1), torch.zeros(1, 3, 8, 8), tflite=SHIPPED / "onnx2tf.tflite")


def test_nan_in_the_inputs_is_one_error_through_every_door(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bisect_litert import cli

    np.savez(tmp_path / "in.npz", x=np.full((4, 6, 8), np.nan, np.float32))
    model = "import torch\nmodel = torch.nn.ReLU()\ninputs = torch.ones(4, 6, 8) * float('nan')\n"
    (tmp_path / "m.py").write_text(model)
    file = SHIPPED / "rows_int8.tflite"  # its integers would not show it any more
    module = tmp_path / "m.py"
    for words in ((file, "--inputs", tmp_path / "in.npz"), (module,), (module, "--tflite", file)):
        assert cli.main([*map(str, words), "--out", str(tmp_path / "r"), "-q"]) == 125
        assert "holds NaN (192 of 192 elements)" in capsys.readouterr().err
        assert not (tmp_path / "r").exists()
