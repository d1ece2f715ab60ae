"""What is written fast has to be what the library would write, and run as such."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_models import Converted, run_cpu, run_xnnpack

from bisect_litert.errors import RunnerError
from bisect_litert.graphs import packing
from bisect_litert.graphs.cutting import cut
from bisect_litert.graphs.editor import with_taps
from bisect_litert.graphs.emulation import Rounding, emulate
from bisect_litert.graphs.graph import Graph

Once = Callable[[str], Converted]


def fields(value: object) -> object:
    """A schema object as nested dicts and lists, to be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [fields(item) for item in value]
    return {k: fields(v) for k, v in vars(value).items()} if hasattr(value, "__dict__") else value


@pytest.mark.parametrize("name", ["blocks", "convolutions", "masked"])
def test_reads_back_as_what_the_library_writes(converted: Once, tmp_path: Path, name: str) -> None:
    from ai_edge_litert.tools import flatbuffer_utils

    graph, _ = with_taps(converted(name).graph, [op.outputs[0] for op in converted(name).graph.ops], copies=True)
    packing.write_model(graph.model, tmp_path / "ours.tflite")
    flatbuffer_utils.write_model(graph.model, str(tmp_path / "theirs.tflite"))
    ours, theirs = (flatbuffer_utils.read_model(str(tmp_path / f"{who}.tflite")) for who in ("ours", "theirs"))
    for side in (ours, theirs):  # buffers may be numbered in another order; their content may not differ
        for tensor in side.subgraphs[0].tensors:
            tensor.buffer = fields(side.buffers[tensor.buffer].data)
        for entry in side.metadata:
            entry.buffer = fields(side.buffers[entry.buffer].data)
        side.buffers = None
    assert fields(ours) == fields(theirs)


@pytest.mark.parametrize("name", ["blocks", "convolutions", "sums", "masked"])
def test_runs_as_what_the_library_writes(converted: Once, tmp_path: Path, name: str) -> None:
    from ai_edge_litert.tools import flatbuffer_utils

    case = converted(name)
    for graph in (case.graph, emulate(case.graph, Rounding.HALF), emulate(case.graph, Rounding.SIGNIFICAND)):
        flatbuffer_utils.write_model(graph.model, str(tmp_path / "theirs.tflite"))
        theirs = run_cpu(Graph.read(tmp_path / "theirs.tflite"), case.inputs, tmp_path)
        ours = run_cpu(graph, case.inputs, tmp_path)
        for label, value in theirs.outputs.items():
            np.testing.assert_array_equal(ours.outputs[label], value)
        for label, value in run_xnnpack(Graph.read(tmp_path / "theirs.tflite"), case.inputs, tmp_path).items():
            np.testing.assert_array_equal(run_xnnpack(graph, case.inputs, tmp_path)[label], value)


def test_weights_are_aligned_as_the_runtime_wants_them(converted: Once, tmp_path: Path) -> None:
    graph = converted("convolutions").graph
    packing.write_model(graph.model, tmp_path / "m.tflite")
    whole = (tmp_path / "m.tflite").read_bytes()
    places = [whole.find(bytes(b.data)) for b in graph.model.buffers if b.data is not None and len(b.data) >= 64]
    assert places
    assert all(place > 0 and place % 16 == 0 for place in places)


def test_weights_that_no_op_reads_are_left_out(converted: Once, tmp_path: Path) -> None:
    case = converted("convolutions")
    op = case.graph.ops[-1]
    small = cut(case.graph, [op], [op.inputs[0]], [op.outputs[0]]).graph
    packing.write_model(case.graph.model, tmp_path / "whole.tflite")
    packing.write_model(small.model, tmp_path / "small.tflite")
    sizes = [(tmp_path / f"{n}.tflite").stat().st_size for n in ("whole", "small")]
    held = sum(len(b.data) for b in case.graph.model.buffers if b.data is not None)
    assert sizes[0] > held
    assert sizes[1] < sizes[0] - held / 2


def test_a_model_beyond_the_format_is_an_error(
    converted: Once, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_LIMIT", 1000)
    with pytest.raises(RunnerError, match=r"more than a \.tflite file"):
        packing.write_model(converted("convolutions").graph.model, tmp_path / "m.tflite")
