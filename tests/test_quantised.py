"""Integers that stand for real numbers: read, written, computed with floats, and files of them bisected on the GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_files import bisected

from bisect_litert.files import tflite_file
from bisect_litert.graphs.dequantised import as_floats, has_integers, is_hybrid, with_real_weights
from bisect_litert.graphs.editor import Editor
from bisect_litert.graphs.graph import Graph
from bisect_litert.graphs.quantisation import Quantisation, unpack_int4
from bisect_litert.matrix import states
from bisect_litert.matrix.plan import Target
from bisect_litert.matrix.table import Code
from bisect_litert.vocabulary import Cause, Mark

SHIPPED = Path(__file__).parent / "data" / "shipped"


def compute(graph: Graph, folder: Path, **inputs: np.ndarray) -> np.ndarray:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    folder.mkdir(exist_ok=True)
    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    path = str(graph.write(folder / "m.tflite"))
    runner = Interpreter(model_path=path, experimental_op_resolver_type=plain).get_signature_runner()
    (out,) = runner(**inputs).values()
    return np.asarray(out)


def test_per_channel_there_and_back() -> None:
    way = Quantisation((0.5, 0.25), (0, 10), 1)
    stored = np.array([[1, 2], [-3, 127]], np.int8)
    real = way.real(stored)
    assert real.tolist() == [[0.5, -2.0], [-1.5, 29.25]]
    assert np.array_equal(way.stored(real, np.dtype(np.int8)), stored)
    assert way.stored(np.array([[1e9, -1e9], [np.inf, np.nan]]), np.dtype(np.int8)).tolist() == [
        [127, -128],
        [127, 127],
    ]


def test_four_bits_lower_half_first() -> None:
    assert unpack_int4(np.array([0x8F, 0x71], np.uint8), 3).tolist() == [-1, -8, 1]


@pytest.mark.parametrize(("file", "shape"), [("keras_int8.tflite", (1, 8, 8, 3)), ("rows_int8.tflite", (4, 6, 8))])
def test_a_graph_computed_with_floats_is_off_by_steps_only(tmp_path: Path, file: str, shape: tuple[int, ...]) -> None:
    graph = tflite_file.read(SHIPPED / file).graph
    assert has_integers(graph)
    (port,), (out,) = graph.inputs, graph.outputs
    x = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    whole = compute(graph, tmp_path / "integers", **{port.name: x}).astype(int)
    floats = compute(as_floats(graph), tmp_path / "floats", **{port.name: x})
    assert floats.dtype == np.float32
    steps = np.abs(graph.tensors[out.tensor].stored(floats).astype(int) - whole)
    assert steps.max() <= 3
    assert np.ptp(whole) > 30


def test_quantised_weights_become_what_they_stand_for(tmp_path: Path) -> None:
    graph = tflite_file.read(SHIPPED / "keras_dynamic.tflite").graph
    assert is_hybrid(graph)
    assert not has_integers(graph)
    exact = with_real_weights(graph)
    assert not is_hybrid(exact)
    assert len(exact.ops) == len(graph.ops)
    x = np.random.default_rng(0).standard_normal((1, 8, 8, 3)).astype(np.float32)
    rounds, does_not = (compute(g, tmp_path / n, image=x) for g, n in ((graph, "a"), (exact, "b")))
    assert not np.array_equal(rounds, does_not)
    assert np.linalg.norm(rounds - does_not) < 0.05 * np.linalg.norm(does_not)


def test_what_is_not_quantised_stays_as_it_is() -> None:
    graph = tflite_file.read(SHIPPED / "keras_fp16.tflite").graph
    assert as_floats(graph) is graph
    assert with_real_weights(graph) is graph


@pytest.mark.parametrize("file", ["keras_fp16.tflite", "keras_dynamic.tflite", "keras_int8.tflite"])
def test_a_healthy_quantised_file_is_left_alone(tmp_path: Path, file: str) -> None:
    record, done = bisected(file, cwd=tmp_path)
    assert (record.target, record.verdict.cause, done.returncode) == ("gpu", Cause.NONE, 0)
    assert [b.mark for b in record.blocks] == [Mark.OK] * 5
    assert all(b.ratio < 5 for b in record.blocks)
    assert record.placement.cpu_ops == 0


def test_a_wrong_kernel_in_an_int8_file_is_found(tmp_path: Path) -> None:
    record, done = bisected("rows_int8.tflite", cwd=tmp_path)
    assert done.returncode == 1
    (culprit,) = record.culprits
    assert (culprit.block, culprit.cause) == ("rows", Cause.WRONG_KERNEL)
    assert [o.type for o in culprit.ops if o.mark is Mark.CULPRIT] == ["ADD"]
    assert any("stored as integers" in note for note in record.verdict.notes)


def widened_by_ops(tmp_path: Path) -> Path:
    """A file whose 8-bit weights are widened by DEQUANTIZE ops, as weight-only quantisation leaves them."""
    graph = tflite_file.read(SHIPPED / "keras_dynamic.tflite").graph
    editor = Editor(graph)
    for t in {t for op in graph.ops for t in op.inputs if graph.tensors[t].constant and graph.tensors[t].quantisation}:
        wide = editor.real_of(t, 0)
        editor.rewire(t, wide, skip=[op for op in editor.subgraph.operators if int(op.outputs[0]) == wide])
    return editor.graph().write(tmp_path / "weight_only.tflite")


def test_what_the_delegate_cannot_build_is_not_called_healthy(tmp_path: Path) -> None:
    record, done = bisected(str(widened_by_ops(tmp_path)), cwd=tmp_path)
    assert (record.target, record.verdict.cause, done.returncode) == ("gpu", Cause.REJECTED, 125)
    # Its own words, the op it fails at, and no run that stands in.
    assert "Shape mismatch" in record.verdict.summary
    assert "It fails at DEQUANTIZE in head_1" in record.verdict.summary
    (refusal,) = record.placement.refusals
    assert (refusal.op, refusal.blocks, record.placement.gpu_ops) == ("DEQUANTIZE", ("head_1",), 0)
    assert "float16" in record.verdict.next_step
    assert any("kept off the GPU the model runs" in note for note in record.verdict.notes)
    assert not any("stands in" in note for note in record.verdict.notes)
    cell = states.from_record("m", Target("gpu"), record)
    assert (cell.code, cell.exit_code) == (Code.T_FAIL, 125)
