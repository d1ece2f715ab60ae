"""The searches by halving, what a control run says, and that it says the same with the delegate's switches and
without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from control_bench import Bench, Deaf, bench
from faulty_gpu import Fault, FaultyGpu, tensor_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from small_models import numbers
from test_healing import BLOCKS, WIDTH, dag
from test_inside import Conv, Mask, Mlp, PaddedPool, Scores
from torch import nn

from bisect_litert.devices.runners import Runner
from bisect_litert.graphs.conversion import convert
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.metrics import compare
from bisect_litert.search.counterfactual import Control, first_upstream, first_wrong

LIMIT = 1e-2
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Not shrinking: every example takes seconds."""

# -- searches ----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 500), st.data())
def test_the_first_wrong_op_is_found_in_few_runs(last: int, data: st.DataObject) -> None:
    fault = data.draw(st.integers(0, last))
    asked: list[int] = []

    def wrong(op: int) -> bool:
        asked.append(op)
        return op >= fault

    found = first_wrong(last, wrong)
    assert found == fault
    assert len(asked) <= max(1, last).bit_length() + 1


def test_nothing_is_named_when_nothing_could_be_told() -> None:
    assert first_wrong(9, lambda _: None) is None


@given(st.integers(1, 200), st.data())
def test_an_answer_that_could_not_be_had_never_names_an_op_past_the_fault(last: int, data: st.DataObject) -> None:
    fault = data.draw(st.integers(0, last))
    unknown = data.draw(st.sets(st.integers(0, last)))
    found = first_wrong(last, lambda op: None if op in unknown else op >= fault)
    assert found is None or found <= fault


@st.composite
def graphs(draw: st.DrawFn) -> dict[int, list[int]]:
    """What each of some ops reads: any of the few before it."""
    count = draw(st.integers(1, 60))
    return {
        op: sorted(draw(st.sets(st.integers(max(0, op - 5), op - 1), max_size=3))) if op else [] for op in range(count)
    }


def behind(reads: dict[int, list[int]], op: int) -> set[int]:
    """An op and all it follows from."""
    found, todo = set(), [op]
    while todo:
        op = todo.pop()
        if op not in found:
            found.add(op)
            todo += reads[op]
    return found


@given(graphs(), st.data())
def test_the_fault_of_a_graph_is_found_upstream(reads: dict[int, list[int]], data: st.DataObject) -> None:
    last = data.draw(st.sampled_from(list(reads)))
    fault = data.draw(st.sampled_from(sorted(behind(reads, last))))
    stations = data.draw(st.frozensets(st.sampled_from(list(reads))))
    asked: list[int] = []

    def wrong(op: int) -> bool:
        asked.append(op)
        return fault in behind(reads, op)

    assert first_upstream(last, reads, wrong, stations) == fault
    assert len(set(asked)) == len(asked)


@given(st.integers(1, 3000), st.data())
def test_a_chain_takes_a_number_of_runs_logarithmic_in_its_length(length: int, data: st.DataObject) -> None:
    reads = {op: [op - 1] if op else [] for op in range(length)}
    fault = data.draw(st.integers(0, length - 1))
    asked: list[int] = []

    def wrong(op: int) -> bool:
        asked.append(op)
        return op >= fault

    assert first_upstream(length - 1, reads, wrong) == fault
    assert len(asked) <= length.bit_length()


@given(graphs(), st.data())
def test_what_could_not_be_told_upstream_never_names_an_op_behind_the_fault(
    reads: dict[int, list[int]], data: st.DataObject
) -> None:
    last = max(reads)
    fault = data.draw(st.sampled_from(sorted(behind(reads, last))))
    unknown = data.draw(st.sets(st.sampled_from(list(reads))))
    found = first_upstream(last, reads, lambda op: None if op in unknown else fault in behind(reads, op))
    assert found == fault or found in unknown


# -- one control run ---------------------------------------------------------------------------------------------------


def test_a_control_is_right_only_with_outputs_that_are() -> None:
    reference = np.arange(1.0, 9.0)
    good = compare(reference=reference, target=reference * 1.001)
    bad = compare(reference=reference, target=reference * 2)
    broken = compare(reference=reference, target=np.where(reference == 3, nan, reference))
    assert Control({"output": good}, True).right(LIMIT)
    assert not Control({"output": good, "other": bad}, True).right(LIMIT)
    assert not Control({"output": broken}, True).right(LIMIT)
    assert np.isnan(Control({"output": broken}, True).worst)
    assert not Control({}, True).right(LIMIT)
    assert not Control({"output": good}, False).right(LIMIT)


def test_a_fault_is_where_both_the_tensor_and_an_output_are_off() -> None:
    reference = np.arange(1.0, 9.0)
    good = compare(reference=reference, target=reference * 1.001)
    bad = compare(reference=reference, target=reference * 2)
    assert Control({"output": bad}, True).wrong(LIMIT)
    assert Control({"output": bad}, True, there=bad).wrong(LIMIT)
    assert Control({"output": bad}, True, there=good).wrong(LIMIT) is False  # an amplifier is still to come
    assert Control({"output": good}, True, there=bad).wrong(LIMIT) is False
    assert Control({"output": bad}, False).wrong(LIMIT) is None


# -- with switches and without, faults planted at the process boundary -------------------------------------------------


@pytest.fixture(scope="module")
def graph_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[nn.Module, Any], Graph]:
    """Converts a module once."""
    known: dict[int, Graph] = {}

    def converted(module: nn.Module, args: Any) -> Graph:
        if id(module) not in known:
            folder = tmp_path_factory.mktemp("model")
            known[id(module)] = convert(module, args, {}, folder / "model.tflite", folder / "log")
        return known[id(module)]

    return converted


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    return lambda: tmp_path_factory.mktemp("work")


def faulty(graph: Graph, folder: Path, *faults: Fault, switches: bool = True) -> Bench:
    runner = type("Planted", (FaultyGpu,), {"faults": faults, "switches": switches})(folder)
    return bench(runner, graph, {graph.inputs[0].name: numbers(8, WIDTH, seed=9).numpy()}, folder / "graphs")


@settings(max_examples=8, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.sampled_from([0, 1, 5]), k=st.integers(0, BLOCKS - 1), data=st.data())
def test_a_split_graph_comes_right_when_and_only_when_the_switch_makes_it_right(
    graph_of: Callable[..., Graph], work: Callable[[], Path], seed: int, k: int, data: st.DataObject
) -> None:
    graph = graph_of(dag(seed), (numbers(8, WIDTH, seed=9),))
    fault = Fault(f"n{k}", data.draw(st.sampled_from(["noise", "nan", "scale", "swap"])))
    culprit = graph.producer[tensor_of(graph, fault.block)].index
    off = data.draw(st.sets(st.sampled_from(graph.ops).map(lambda op: op.index), min_size=1, max_size=6))
    for heeds in (True, False):
        made = faulty(graph, work(), fault, switches=heeds)
        with made.runner:
            controls = made.controls()
            for ops in (off - {culprit}, off | {culprit}):
                control = controls.without(sorted(ops))
                assert control.right(LIMIT) == (culprit in ops), (ops, control.detail)
                assert control.split is (not heeds and bool(ops))
            apart = controls.apart(sorted(off | {culprit}))
            assert (apart is None) is heeds
            assert apart is None or not apart.right(LIMIT)


@pytest.mark.parametrize("heeds", [True, False])
@pytest.mark.parametrize("kind", ["noise", "crash", "hang"])
def test_the_op_with_which_a_fault_comes_is_found(
    graph_of: Callable[..., Graph], work: Callable[[], Path], kind: str, heeds: bool
) -> None:
    graph = graph_of(dag(1), (numbers(8, WIDTH, seed=9),))
    for k in (0, 3, BLOCKS - 1):
        made = faulty(graph, work(), Fault(f"n{k}", kind), switches=heeds)
        culprit = graph.producer[tensor_of(graph, f"n{k}")].index
        with made.runner:
            controls = made.controls()
            bad: Callable[[Control], bool | None] = (lambda c: c.wrong(LIMIT)) if kind == "noise" else lambda c: c.died
            stations = [tensor_of(graph, f"n{i}") for i in range(BLOCKS)]
            assert controls.first(graph.ops, bad, stations) == culprit
            assert controls.first(graph.ops, bad) == culprit
            assert controls.up_to(culprit).split is (not heeds)
            assert controls.without([culprit]).ok


# -- the real delegate -------------------------------------------------------------------------------------------------

CASES = {
    "mask": (lambda: nn.Sequential(Mlp(32), Scores(), Mask(), nn.Softmax(-1)), (1, 16, 32), ("ADD",)),
    "pool": (lambda: nn.Sequential(Conv(), PaddedPool(), Conv()), (1, 4, 12, 12), ("PAD", "AVERAGE_POOL_2D")),
    "square": (lambda: nn.Sequential(Mlp(32), Loud(), Mlp(32)), (1, 8, 32), ("MUL", "SQUARE", "POW")),
}


class Loud(nn.Module):
    """Its squares do not fit into fp16; the root brings them back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loud = x * 3000.0
        return torch.sqrt(loud * loud) * 1e-3


@pytest.fixture(scope="module", params=list(CASES))
def real(
    request: pytest.FixtureRequest, graph_of: Callable[..., Graph], work: Callable[[], Path]
) -> Iterator[tuple[Graph, np.ndarray, tuple[str, ...]]]:
    make, shape, types = CASES[request.param]
    torch.manual_seed(0)
    module, x = make().eval(), torch.randn(*shape)
    return graph_of(module, (x,)), x.numpy(), types


def test_a_runtime_that_has_no_switch_is_found_out_and_comes_to_the_same(
    real: tuple[Graph, np.ndarray, tuple[str, ...]], work: Callable[[], Path]
) -> None:
    graph, x, types = real
    found = {}
    for kind in (Runner, Deaf):
        folder = work()
        with kind(folder) as runner:
            made = bench(runner, graph, {graph.inputs[0].name: x}, folder / "graphs")
            controls = made.controls()
            if not controls.without(()).ok:
                pytest.skip("no GPU that LiteRT accepts")
            assert not controls.without(()).right(LIMIT)
            op = controls.first(graph.ops, lambda control: control.wrong(LIMIT))
            assert op is not None
            assert graph.ops[op].type in types
            alone = controls.without([op])
            assert alone.split is (kind is Deaf)
            assert controls.up_to(op).split is (kind is Deaf)
            block = [o for o in (op - 1, op, op + 1) if 0 <= o < len(graph.ops)]
            found[kind] = (op, alone.right(LIMIT), controls.without(block).right(LIMIT))
            if isinstance(runner, Deaf):
                asked = runner.asked
                assert 1 <= asked <= 4  # one that was ignored and one to be sure of it, for each switch
                controls.without([0])
                assert runner.asked == asked
    assert found[Runner] == found[Deaf]
    assert found[Runner][1] or found[Runner][2]
