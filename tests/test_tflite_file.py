from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bisect_litert.errors import InputsError, ModelFileError, UnfitReferenceError, UsageError
from bisect_litert.files import file_inputs, tflite_file
from bisect_litert.graphs.graph import Graph

DATA = Path(__file__).parent / "data"
SHIPPED = DATA / "shipped"


def values(graph: Graph, path: Path, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=str(graph.write(path))).get_signature_runner()
    return runner(**inputs)


@pytest.mark.parametrize(("name", "inputs", "output"), [("encode", "x", "state"), ("decode", "state", "logits")])
def test_one_signature_is_left_and_computes_what_it_did(tmp_path: Path, name: str, inputs: str, output: str) -> None:
    from ai_edge_litert.interpreter import Interpreter

    path = SHIPPED / "two_signatures.tflite"
    shipped = tflite_file.read(path, name)
    assert not shipped.notes
    assert [len(shipped.graph.model.signatureDefs), len(shipped.graph.model.subgraphs)] == [1, 1]
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)
    wanted = Interpreter(model_path=str(path)).get_signature_runner(name)(**{inputs: x})[output]
    assert np.array_equal(values(shipped.graph, tmp_path / "one.tflite", **{inputs: x})[output], wanted)


def test_without_a_name_the_choice_is_said() -> None:
    shipped = tflite_file.read(SHIPPED / "two_signatures.tflite")
    (note,) = shipped.notes
    assert "decode, encode" in note
    with pytest.raises(UsageError, match="no signature 'nope': it has decode, encode"):
        tflite_file.read(SHIPPED / "two_signatures.tflite", "nope")


def test_a_file_without_signatures_gets_one(tmp_path: Path) -> None:
    assert not Graph.read(DATA / "no_signature.tflite").model.signatureDefs
    graph = tflite_file.read(DATA / "no_signature.tflite").graph
    (given,), (out,) = graph.inputs, graph.outputs
    x = np.ones(graph.tensors[given.tensor].shape, np.float32)
    assert out.name in values(graph, tmp_path / "named.tflite", **{given.name: x})
    with pytest.raises(UsageError, match="it has none"):
        tflite_file.read(DATA / "no_signature.tflite", "main")


def test_open_sizes_are_fixed_and_said() -> None:
    shipped = tflite_file.read(SHIPPED / "keras.tflite")
    assert any("tested at 1x8x8x3" in note for note in shipped.notes)
    assert all(t.shapeSignature is None for t in shipped.graph.subgraph.tensors)


@pytest.mark.parametrize("content", [b"", b"<html>", b"\x1c\0\0\0TFL3" + b"\xff" * 40])
def test_what_is_no_file_of_its_kind(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"m\.tflite is"):
        tflite_file.read(path)
    with pytest.raises(ModelFileError, match="There is no file"):
        tflite_file.read(tmp_path / "other.tflite")


def test_ids_stay_within_the_table_they_look_up() -> None:
    graph = Graph.read(SHIPPED / "litert_torch.tflite")
    assert file_inputs.smallest_table(graph, graph.inputs[0].tensor) == 17
    ids, notes = file_inputs.make_inputs(graph, None, 0, None)
    assert 2 < ids["args_0"].max() < 17
    assert "args_0 0 to 16" in notes[0]
    small, _ = file_inputs.make_inputs(graph, None, 0, 3)
    assert set(np.unique(small["args_0"])) == {0, 1, 2}


def test_every_dtype_is_drawn_and_repeats() -> None:
    graph = Graph.read(DATA / "kinds.tflite")
    one, _ = file_inputs.make_inputs(graph, None, 5, None)
    two, _ = file_inputs.make_inputs(graph, None, 5, None)
    assert [v.dtype.kind for v in one.values()] == ["f", "i", "b"]
    assert all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("key", ["image", "0", "arr_0", "serving_default_image:0"])
def test_inputs_by_name_or_position(tmp_path: Path, key: str) -> None:
    graph = tflite_file.read(SHIPPED / "keras.tflite").graph
    image = np.arange(192, dtype=np.float64).reshape(8, 8, 3)
    np.savez(tmp_path / "in.npz", **{key: image})
    found, notes = file_inputs.make_inputs(graph, tmp_path / "in.npz", 0, None)
    assert np.array_equal(found["image"][0], image)
    assert found["image"].dtype == np.float32
    assert not notes


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("imag", np.zeros((1, 8, 8, 3)), "no input of the file"),
        ("image", np.zeros((1, 3, 8, 8)), "it takes 1x8x8x3"),
    ],
)
def test_inputs_that_do_not_fit(tmp_path: Path, name: str, array: np.ndarray, said: str) -> None:
    np.savez(tmp_path / "in.npz", **{name: array})
    with pytest.raises(InputsError, match=said):
        file_inputs.make_inputs(tflite_file.read(SHIPPED / "keras.tflite").graph, tmp_path / "in.npz", 0, None)


def test_nan_in_an_input_is_no_reference(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", image=np.full((1, 8, 8, 3), np.nan))
    with pytest.raises(UnfitReferenceError, match="holds NaN"):
        file_inputs.make_inputs(tflite_file.read(SHIPPED / "keras.tflite").graph, tmp_path / "in.npz", 0, None)
