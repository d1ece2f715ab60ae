"""Edits of real graphs: what is tapped is what was computed, and the graph an edit starts from stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_models import Converted, run_cpu

from bisect_litert.graphs.editor import TAP_PREFIX, Editor, with_taps
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.evaluation import TappedGraph, heal, tap_graph
from bisect_litert.measuring.readings import Tap, flow
from bisect_litert.vocabulary import TapOrigin

Once = Callable[[str], Converted]


def outputs_of(graph: Graph, block: str) -> int:
    """The last tensor that carries a block's name."""
    return max(t.index for t in graph.tensors if f"Block_{block};" in t.name and t.index in graph.computed)


def snapshot(graph: Graph) -> list[object]:
    sub = graph.model.subgraphs[0]
    ports = [
        [(p.name, int(p.tensorIndex)) for p in side]
        for s in graph.model.signatureDefs
        for side in (s.inputs, s.outputs)
    ]
    ops = [(int(op.opcodeIndex), list(op.inputs), list(op.outputs)) for op in sub.operators]
    sizes = [len(graph.model.buffers), len(graph.model.operatorCodes), len(sub.tensors)]
    return [list(map(int, sub.inputs)), list(map(int, sub.outputs)), ports, ops, sizes]


def test_what_a_graph_says_of_itself(converted: Once) -> None:
    graph = converted("blocks").graph
    assert [p.name for p in graph.inputs] == ["args_0"]
    assert [p.name for p in graph.outputs] == ["output_0", "output_1"]
    assert [op.type for op in graph.ops] == ["FULLY_CONNECTED", "TANH", "ADD"] * 3 + ["MUL"]
    first, middle = graph.ops[0], graph.outputs[0].tensor
    weight = first.inputs[1]
    assert graph.tensors[weight].constant
    np.testing.assert_array_equal(graph.constant(weight), converted("blocks").module.b0.fc.weight.detach().numpy())
    assert graph.constant(middle) is None
    assert graph.producer[middle].type == "ADD"
    assert [op.type for op in graph.consumers[middle]] == ["FULLY_CONNECTED", "ADD"]
    assert weight not in graph.computed
    assert {graph.inputs[0].tensor, middle} <= graph.computed


def test_outputs_come_in_numeric_order(converted: Once) -> None:
    editor = Editor(converted("blocks").graph)
    tensor = editor.subgraph.outputs[0]
    editor.drop_outputs()
    for name in ("output_10", "output_2", "output_0", "extra"):
        editor.add_output(name, tensor)
    assert [p.name for p in editor.graph().outputs] == ["output_0", "output_2", "output_10", "extra"]


def test_outputs_named_after_dict_keys_come_in_the_modules_order(converted: Once) -> None:
    editor = Editor(converted("blocks").graph)
    one, other = editor.subgraph.outputs[0], editor.subgraph.operators[0].outputs[0]
    editor.drop_outputs()
    for name, tensor in (("z", one), ("m", other), ("a", one)):
        editor.add_output(name, tensor)
    graph = editor.graph()
    graph.model.signatureDefs[0].outputs.sort(key=lambda port: port.name)  # as the converter writes them
    assert [p.tensor for p in graph.outputs] == [one, other, one]
    assert {p.name: p.tensor for p in graph.outputs} == {"z": one, "m": other, "a": one}


def test_what_follows_from_constants_alone_is_not_computed(converted: Once) -> None:
    graph = converted("masked").graph
    select = next(op for op in graph.ops if op.type == "SELECT_V2")
    assert select.outputs[0] not in graph.computed
    assert not graph.tensors[select.outputs[0]].constant


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("name", ["blocks", "convolutions", "masked", "sums"])
def test_taps_hold_what_the_untapped_graph_computes(converted: Once, tmp_path: Path, name: str, copies: bool) -> None:
    case = converted(name)
    bare = run_cpu(case.graph, case.inputs, tmp_path)
    every = [t for op in case.graph.ops for t in op.outputs if t in case.graph.computed]
    tapped = tap_graph(case.graph, every, {}, copies=copies)
    seen = run_cpu(tapped.graph, case.inputs, tmp_path)
    assert set(tapped.names) == set(every)
    for t in every:
        np.testing.assert_array_equal(seen.outputs[tapped.names[t]].reshape(-1), bare.tensors[t].reshape(-1))
    for port in case.graph.outputs:
        np.testing.assert_array_equal(seen.outputs[port.name], bare.outputs[port.name])


def test_a_consumed_tap_leaves_through_a_copy_and_others_as_they_are(converted: Once) -> None:
    graph = converted("blocks").graph
    middle, last = (p.tensor for p in graph.outputs)
    inner = outputs_of(graph, "b0")
    tapped, names = with_taps(graph, [inner, middle, last, inner], copies=True)
    # An output that nothing reads is its own tap; one that is read gets a copy besides.
    assert names == {inner: f"{TAP_PREFIX}{inner:05d}", middle: f"{TAP_PREFIX}{middle:05d}", last: "output_1"}
    at = {p.name: p.tensor for p in tapped.outputs}
    assert len(at) == 4
    assert len(set(at.values())) == 4  # of two outputs with one tensor only one gets written
    for t in (inner, middle):
        assert tapped.producer[at[names[t]]].type == "RESHAPE"
        assert tapped.producer[at[names[t]]].inputs[0] == t
    assert at["output_0"] == middle


def test_without_copies_no_op_is_added(converted: Once) -> None:
    graph = converted("blocks").graph
    middle, inner = graph.outputs[0].tensor, outputs_of(graph, "b0")
    tapped, names = with_taps(graph, [inner, middle], copies=False)
    assert tapped.ops == graph.ops
    assert names[middle] == "output_0"
    assert {p.name: p.tensor for p in tapped.outputs}[names[inner]] == inner


def test_edits_leave_the_original_alone_and_share_its_weights(converted: Once, tmp_path: Path) -> None:
    case = converted("blocks")
    graph = case.graph
    before, data = snapshot(graph), [b.data for b in graph.model.buffers]
    tapped = tap_graph(graph, [outputs_of(graph, "b0"), outputs_of(graph, "b1")], {"output_0": "output_0"})
    value = np.zeros(graph.tensors[outputs_of(graph, "b0")].shape, np.float32)
    healed = heal(tapped, {outputs_of(graph, "b0"): value})
    assert healed is not None
    editor = Editor(healed.graph)
    editor.drop_outputs()
    editor.add_output("only", graph.outputs[1].tensor)
    editor.rewire(graph.inputs[0].tensor, graph.outputs[0].tensor)
    editor.prune()
    tapped.graph.write(tmp_path / "other.tflite")
    assert snapshot(graph) == before
    for edited in (tapped.graph, healed.graph, editor.graph()):
        buffers = edited.model.buffers
        assert all(buffer.data is own for buffer, own in zip(buffers, data, strict=False))


def test_writing_and_reading_changes_nothing(converted: Once, tmp_path: Path) -> None:
    graph = converted("blocks").graph
    again = Graph.read(graph.write(tmp_path / "again.tflite"))
    assert (again.ops, again.tensors, again.inputs, again.outputs) == (
        graph.ops,
        graph.tensors,
        graph.inputs,
        graph.outputs,
    )


def test_a_file_in_which_another_graph_was_written_since_is_not_taken_for_it(converted: Once, tmp_path: Path) -> None:
    graph = Graph.read(converted("blocks").graph.write(tmp_path / "one.tflite"))
    again = graph.on_disk(tmp_path / "two.tflite")
    assert again == tmp_path / "one.tflite"  # not written again
    converted("masked").graph.write(tmp_path / "one.tflite")
    again = graph.on_disk(tmp_path / "two.tflite")
    assert again == tmp_path / "two.tflite"
    assert [op.type for op in Graph.read(again).ops] == [op.type for op in graph.ops]
    again.unlink()
    assert graph.on_disk(tmp_path / "three.tflite") == tmp_path / "three.tflite"


def test_inside_and_sources(converted: Once) -> None:
    graph = converted("blocks").graph
    b0, b1, b2 = (outputs_of(graph, b) if b != "b1" else graph.outputs[0].tensor for b in ("b0", "b1", "b2"))
    stop = [b0, b1, b2]
    assert [op.index for op in graph.inside([b1], stop)] == [3, 4, 5]
    assert [op.index for op in graph.inside([b2], [b0])] == [3, 4, 5, 6, 7, 8]
    assert graph.sources([b1], stop) == {b0}
    assert graph.sources([b0], stop) == {graph.inputs[0].tensor}
    assert graph.sources([b2, b1], stop) == {b0}
    assert graph.inside([graph.inputs[0].tensor], stop) == ()


def test_regions_that_reach_into_one_another(converted: Once) -> None:
    graph = converted("blocks").graph
    b0, b1 = outputs_of(graph, "b0"), graph.outputs[0].tensor
    assert graph.shared_insides({"b0": [b0], "b1": [b1]}, [b0, b1]) == {}
    # Let b1 read b0's TANH past its ADD, as the converter does when it moves factors into the next weights.
    editor = Editor(graph)
    tanh = graph.ops[1].outputs[0]
    editor.subgraph.operators[3].inputs[0] = tanh
    assert editor.graph().shared_insides({"b0": [b0], "b1": [b1]}, [b0, b1]) == {"b1": {"b0": {tanh}}}


def test_a_block_that_reads_only_another_ones_inside_follows_from_it(converted: Once) -> None:
    graph = converted("blocks").graph
    b0, b1 = outputs_of(graph, "b0"), graph.outputs[0].tensor
    editor = Editor(graph)
    editor.rewire(b0, graph.ops[1].outputs[0])
    taps = [Tap(n, n, n, "Block", 1, "", (4, 16), "float32", TapOrigin.GRAPH, t) for n, t in (("b0", b0), ("b1", b1))]
    outputs = {"output_0": b1, "output_1": graph.outputs[1].tensor}
    links = flow(editor.graph(), taps, outputs)
    assert {key: parents for key, (parents, _, _) in links.items()} == {
        "b0": (),
        "b1": ("b0",),
        "output_0": ("b1",),
        "output_1": ("b1",),
    }


def healed_blocks(case: Converted, folder: Path, *, copies: bool) -> tuple[TappedGraph, dict[int, np.ndarray]]:
    graph = case.graph
    taps = [outputs_of(graph, "b0"), graph.outputs[0].tensor, outputs_of(graph, "b2")]
    return tap_graph(graph, taps, {}, copies=copies), run_cpu(graph, case.inputs, folder).tensors


@pytest.mark.parametrize("copies", [True, False])
def test_healing_with_the_values_that_were_there_changes_nothing(converted: Once, tmp_path: Path, copies: bool) -> None:
    case = converted("blocks")
    tapped, values = healed_blocks(case, tmp_path, copies=copies)
    bare = run_cpu(tapped.graph, case.inputs, tmp_path)
    given = {t: values[t] for t in list(tapped.names)[:2]}
    healed = heal(tapped, given)
    assert healed is not None
    assert len(healed.feeds) == 2
    seen = run_cpu(healed.graph, {**case.inputs, **healed.feeds}, tmp_path)
    assert seen.outputs.keys() == bare.outputs.keys()
    for name, value in bare.outputs.items():
        np.testing.assert_array_equal(seen.outputs[name], value)


@pytest.mark.parametrize("copies", [True, False])
def test_healing_feeds_what_follows_and_still_shows_what_was_computed(
    converted: Once, tmp_path: Path, copies: bool
) -> None:
    case = converted("blocks")
    tapped, values = healed_blocks(case, tmp_path, copies=copies)
    b0, b1, b2 = tapped.names
    bare = run_cpu(tapped.graph, case.inputs, tmp_path)
    healed = heal(tapped, {b1: np.zeros_like(values[b1])})
    assert healed is not None
    seen = run_cpu(healed.graph, {**case.inputs, **healed.feeds}, tmp_path)
    for t in (b0, b1):
        np.testing.assert_array_equal(seen.outputs[tapped.names[t]], bare.outputs[tapped.names[t]])
    module = case.module
    import torch

    expected = module.b2(torch.zeros(4, 16)).detach().numpy()
    np.testing.assert_allclose(seen.outputs[tapped.names[b2]], expected, rtol=1e-6)
    # The model's own output of that tensor is what the graph computed, not what was fed.
    np.testing.assert_array_equal(seen.outputs["output_0"], bare.outputs["output_0"])


def test_there_is_nothing_to_heal_behind_the_last_tensor(converted: Once) -> None:
    graph = converted("blocks").graph
    last = graph.outputs[1].tensor
    tapped = tap_graph(graph, [last, outputs_of(graph, "b0")], {})
    assert heal(tapped, {last: np.zeros((4, 16), np.float32)}) is None
    assert heal(tapped, {}) is None


def test_pruning_drops_what_no_output_needs_and_inputs_nobody_reads(converted: Once, tmp_path: Path) -> None:
    case = converted("arithmetic")
    editor = Editor(case.graph)
    first = case.graph.ops[0].outputs[0]  # x * 1.0001
    editor.drop_outputs()
    editor.add_output("first", first)
    editor.prune()
    graph = editor.graph()
    assert [op.type for op in graph.ops] == ["MUL"]
    assert [p.name for p in graph.inputs] == ["args_0"]
    seen = run_cpu(graph, case.inputs, tmp_path)
    np.testing.assert_array_equal(seen.outputs["first"], case.inputs["args_0"] * np.float32(1.0001))
