"""Cuts of faults that only the whole graph or a dying runtime shows, with faults planted at the process boundary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from faulty_gpu import Fault, FaultyGpu
from test_healing import conversions, dag, planted  # noqa: F401 (fixtures)

from bisect_litert.bundles import repro_script
from bisect_litert.bundles.reproduction import Reproduction
from bisect_litert.bundles.shrinking import Shrinker
from bisect_litert.graphs.graph import Graph
from bisect_litert.record import RunRecord, Settings
from bisect_litert.vocabulary import Cause

MLP = Path(__file__).parent / "data" / "mlp.tflite"
Planted = Callable[..., RunRecord]


def shrinker(run: Path, work: Path, *faults: Fault) -> Shrinker:
    kept = Reproduction.load(run / "repro" / "1")
    work.mkdir()
    runner = type("Planted", (FaultyGpu,), {"faults": faults})(work / "runner")
    for fault in faults:  # a cut may lack what tells whose a tensor is
        runner._tensor(Graph.read(run / "repro" / "1" / "context.tflite"), fault.block)
    return Shrinker(kept, run / "repro" / "1", runner, work, Settings())


@pytest.mark.parametrize(("kind", "cause"), [("crash", Cause.CRASH), ("hang", Cause.HANG)])
def test_what_the_runtime_dies_of_is_cut_out(planted: Planted, tmp_path: Path, kind: str, cause: Cause) -> None:  # noqa: F811
    fault = Fault("n3", kind)
    record = planted(0, fault, out=tmp_path / "run")
    assert record.verdict.cause is cause
    tool = shrinker(tmp_path / "run", tmp_path / "work", fault)
    with tool.runner:
        found = tool.shrink()
    assert found.trial is not None
    assert found.alone
    assert len(found.trial.ops) == 1
    assert found.trial.expected
    # A runtime that lives with it shows nothing.
    tool = shrinker(tmp_path / "run", tmp_path / "sound")
    with tool.runner:
        assert tool.shrink().trial is None


def test_a_fault_that_taps_cure_comes_with_the_cure(planted: Planted, tmp_path: Path) -> None:  # noqa: F811
    fault = Fault("n3", "noise", tapped=False)
    record = planted(1, fault, out=tmp_path / "run")
    assert record.verdict.cause is Cause.TAP_EFFECT
    tool = shrinker(tmp_path / "run", tmp_path / "work", fault)
    with tool.runner:
        found = tool.shrink()
        assert found.trial is not None, found.untested
        cured = tool.cured(found.trial)
    assert cured is not None
    assert len(cured.outputs) > len(found.trial.graph.outputs)
    assert Reproduction.load(tmp_path / "run" / "repro" / "1").cause == "tap-effect"


def test_a_run_that_does_not_end_is_ended() -> None:
    inputs = {"args_0": np.zeros((4, 8), np.float32)}
    outputs, kind, how = repro_script.run_apart(MLP, inputs, "cpu", False, 0.01)
    assert (outputs, kind) == ({}, "hang")
    assert how == "no answer within 0.01 s"


def test_a_run_apart_gives_what_a_run_gives_and_says_what_it_was_refused() -> None:
    (name,) = repro_inputs()
    inputs = {name: np.ones(repro_inputs()[name], np.float32)}
    outputs, kind, _ = repro_script.run_apart(MLP, inputs, "cpu", False, 60)
    assert kind == ""
    wanted = repro_script.run(MLP, inputs, "cpu")
    assert all(np.array_equal(outputs[key], value) for key, value in wanted.items())
    with pytest.raises(RuntimeError, match="KeyError"):
        repro_script.run_apart(MLP, {}, "cpu", False, 60)


def repro_inputs() -> dict[str, tuple[int, ...]]:
    graph = Graph.read(MLP)
    return {port.name: graph.tensors[port.tensor].shape for port in graph.inputs}
