"""A graph run in parts on the real delegate: what is on the CPU is, what is on the GPU is, and it adds up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from control_bench import CPU, GPU, Bench, bench
from small_models import Converted

from bisect_litert.devices import placement
from bisect_litert.devices.runners import Runner
from bisect_litert.graphs.editor import Editor
from bisect_litert.graphs.graph import Graph
from bisect_litert.graphs.splitting import MAX_RUNS, PartFailed, Parts
from bisect_litert.measuring.metrics import compare

RANK5 = Path(__file__).parent / "data" / "rank5.tflite"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("work")) as runner:
        yield runner


@pytest.fixture(scope="module")
def blocks(
    runner: Runner, converted: Callable[[str], Converted], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Bench, dict[str, list[int]]]:
    """Three residual blocks, two outputs; and the indices of each block's ops."""
    found = converted("blocks")
    made = bench(runner, found.graph, found.inputs, tmp_path_factory.mktemp("graphs"))
    if not any(placement.read(r.log_text, 1).adapter for r in [made.evaluator.run(made.shipped, [GPU], "-try")[GPU]]):
        pytest.skip("no GPU that LiteRT accepts")
    own = {name: [] for name in ("b0", "b1", "b2")}
    for op in found.graph.ops:
        name = next((n for n in own if f"_{n}" in found.graph.tensors[op.outputs[0]].name), "b2")
        own[name].append(op.index)
    assert all(own.values()), own
    return made, own


def ends(made: Bench) -> list[int]:
    return [port.tensor for port in made.graph.outputs]


def test_all_on_one_side_is_that_sides_own_run(blocks: tuple[Bench, dict[str, list[int]]]) -> None:
    made, _ = blocks
    parts = Parts(made.evaluator, made.graph)
    for off, kind in ([], GPU), ([op.index for op in made.graph.ops], CPU):
        found = parts.compute(ends(made), off)
        for t, value in made.outputs(kind).items():
            np.testing.assert_array_equal(found[t], value)


@pytest.mark.parametrize("names", [("b0",), ("b1",), ("b0", "b2"), ("b2",)])
def test_ops_off_the_gpu_are_computed_on_the_cpu(
    blocks: tuple[Bench, dict[str, list[int]]], names: tuple[str, ...]
) -> None:
    made, own = blocks
    off = [i for name in names for i in own[name]]
    start = len(made.evaluator.results)
    found = Parts(made.evaluator, made.graph).compute(ends(made), off)
    runs = made.evaluator.results[start:]
    on_cpu = [r for r in runs if r.id.startswith("cpu")]
    assert len(on_cpu) == len(names)
    gpu, cpu = made.outputs(GPU), made.outputs(CPU)
    for t in ends(made):
        assert compare(reference=made.values[t], target=found[t]).relative_l2 < 2e-3
    # The last output follows from all blocks, so no side's own run gives the same bits.
    last = ends(made)[-1]
    assert not np.array_equal(found[last], gpu[last])
    assert not np.array_equal(found[last], cpu[last])


def test_cut_apart_and_on_the_gpu_all_the_same(blocks: tuple[Bench, dict[str, list[int]]]) -> None:
    made, own = blocks
    start = len(made.evaluator.results)
    found = Parts(made.evaluator, made.graph).compute(ends(made), own["b1"], apart=True)
    assert not [r for r in made.evaluator.results[start:] if r.id.startswith("cpu")]
    for t in ends(made):
        assert compare(reference=made.values[t], target=found[t]).relative_l2 < 2e-3


def test_a_graph_that_ends_at_a_tensor_and_the_rest_on_the_cpu(blocks: tuple[Bench, dict[str, list[int]]]) -> None:
    made, own = blocks
    parts = Parts(made.evaluator, made.graph)
    t = made.graph.ops[own["b1"][-1]].outputs[0]
    start = len(made.evaluator.results)
    at = parts.compute([t])
    assert [list(r.unwritten) for r in made.gpu_jobs(start)] == [[f"out_{t:05d}"]]
    assert 0 < compare(reference=made.values[t], target=at[t]).relative_l2 < 2e-3
    found = parts.finish(at, ends(made))
    assert len(made.gpu_jobs(start)) == 1
    assert compare(reference=made.values[ends(made)[-1]], target=found[ends(made)[-1]]).relative_l2 < 2e-3
    # Asked again, the GPU is not.
    parts.compute([t])
    assert len(made.gpu_jobs(start)) == 1


def test_what_is_fed_wrong_shows(blocks: tuple[Bench, dict[str, list[int]]]) -> None:
    made, own = blocks
    t = made.graph.ops[own["b1"][-1]].outputs[0]
    found = Parts(made.evaluator, made.graph).finish({t: 2 * made.values[t]}, ends(made))
    assert compare(reference=made.values[ends(made)[-1]], target=found[ends(made)[-1]]).relative_l2 > 0.1


def test_ops_of_both_kinds_that_alternate_too_often_are_left_alone(tmp_path: Path, runner: Runner) -> None:
    from ai_edge_litert import schema_py_generated as schema

    graph = Graph.read(Path(__file__).parent / "data" / "mlp.tflite")
    editor = Editor(graph)
    last = graph.outputs[0].tensor
    shape = graph.tensors[last].shape
    editor.drop_outputs()
    for i in range(2 * MAX_RUNS + 2):
        out = editor.add_tensor(f"t{i}", shape, schema.TensorType.FLOAT32)
        editor.add_op("TANH", [last], [out])
        last = out
    editor.add_output("output_0", last)
    long = editor.graph()
    x = np.ones(graph.tensors[graph.inputs[0].tensor].shape, np.float32)
    made = bench(runner, long, {graph.inputs[0].name: x}, tmp_path)
    with pytest.raises(PartFailed, match=f"more than {MAX_RUNS} runs"):
        Parts(made.evaluator, long).compute([last], range(3, len(long.ops), 2))
    assert not made.gpu_jobs()


def test_what_the_delegate_refuses_stays_where_it_was(tmp_path: Path, runner: Runner) -> None:
    graph = Graph.read(RANK5)
    x = np.random.default_rng(0).standard_normal((4, 12)).astype(np.float32)
    made = bench(runner, graph, {"args_0": x}, tmp_path)
    controls = made.controls(switches=False)
    shipped = controls.without(())
    if not placement.read(made.evaluator.results[-1].log_text, len(graph.ops)).gpu_ops:
        pytest.skip("no GPU that LiteRT accepts")
    assert shipped.right(1e-2)
    start = len(made.evaluator.results)
    exp = next(op.index for op in graph.ops if op.type == "EXP")
    assert controls.without([exp]).right(1e-2)
    parts = made.gpu_jobs(start)
    assert parts
    for result in parts:
        assert not placement.read(result.log_text, len(graph.ops)).refused
