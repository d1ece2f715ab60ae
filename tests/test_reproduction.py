"""What a run keeps of a culprit: the right files, no more than asked, and nothing above the limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from bisect_litert.bundles import reproduction
from bisect_litert.graphs.graph import Graph
from bisect_litert.record import Culprit, Settings
from bisect_litert.records import run_folder
from bisect_litert.vocabulary import Cause

MLP = Path(__file__).parent / "data" / "mlp.tflite"


def values_of(path: Path) -> dict[int, np.ndarray]:
    interpreter = Interpreter(
        str(path),
        experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        x = np.random.default_rng(0).standard_normal(detail["shape"]).astype(np.float32)
        interpreter.set_tensor(detail["index"], x)
    interpreter.invoke()
    return {d["index"]: interpreter.get_tensor(d["index"]) for d in interpreter.get_tensor_details()}


@pytest.fixture
def material() -> reproduction.Material:
    graph = Graph.read(MLP)
    walls = frozenset(op.outputs[0] for op in graph.ops)
    last = graph.ops[-1]
    return reproduction.Material(graph, values_of(MLP), walls, lambda _: [last], lambda _: {}, Settings())


def culprit(cause: Cause = Cause.WRONG_KERNEL) -> Culprit:
    return Culprit("last", cause, "", (), "")


def test_the_ops_their_inputs_and_what_is_right(tmp_path: Path, material: reproduction.Material) -> None:
    assert reproduction.keep(tmp_path, [culprit()], material) == []
    folder = tmp_path / "repro" / "1"
    found = reproduction.Reproduction.load(folder)
    assert [op.index for op in found.ops] == [material.graph.ops[-1].index]
    inputs = {t.name: np.load(folder / t.file) for t in found.inputs}
    got = Interpreter(str(folder / "model.tflite")).get_signature_runner()(**inputs)
    for t in found.outputs:
        np.testing.assert_allclose(got[t.name], np.load(folder / t.file), rtol=1e-5, atol=1e-6)
    assert found.fp32 == "wrong"
    # The blocks before it are the context, and a later run with --force finds every file.
    assert [op.index for op in found.context] == [op.index for op in material.graph.ops[-3:]]
    kept = {path.name for path in run_folder.known_files(tmp_path)}
    assert kept == {path.name for path in folder.iterdir()}


def test_too_large_is_said(tmp_path: Path, material: reproduction.Material, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduction, "LIMIT", 10)
    assert "more than" in reproduction.keep(tmp_path, [culprit()], material)[0]
    assert not (tmp_path / "repro").exists()


def test_one_that_cannot_be_written_leaves_no_folder(
    tmp_path: Path, material: reproduction.Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("an op nobody knows")

    monkeypatch.setattr(reproduction, "compact", fail)
    assert "cannot be cut out" in reproduction.keep(tmp_path, [culprit()], material)[0]
    assert not (tmp_path / "repro").exists()


def test_only_what_can_be_run_alone_and_only_the_first(tmp_path: Path, material: reproduction.Material) -> None:
    assert reproduction.keep(tmp_path, [culprit(Cause.PRECISION_COMPOUNDING), *[culprit()] * 4], material) == []
    assert sorted(p.name for p in (tmp_path / "repro").iterdir()) == ["2", "3"]


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "repro.json").write_text('{"schema": 1, "inputs": []}')
    with pytest.raises(ValueError, match="damaged"):
        reproduction.Reproduction.load(tmp_path)
