"""Ops cut out of a graph: what they compute alone, and how little the file holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from bisect_litert.graphs.cutting import boundary, compact, constant_bytes, cut, sinks
from bisect_litert.graphs.graph import Graph

MLP = Path(__file__).parent / "data" / "mlp.tflite"


def run(graph: Graph, path: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    graph.write(path)
    return Interpreter(str(path)).get_signature_runner()(**inputs)


def test_a_cut_computes_what_the_whole_does(tmp_path: Path) -> None:
    whole = Graph.read(MLP)
    port = whole.inputs[0]
    x = np.random.default_rng(0).standard_normal(whole.tensors[port.tensor].shape).astype(np.float32)
    expected = run(whole, tmp_path / "whole.tflite", {port.name: x})[whole.outputs[0].name]
    first, rest = whole.ops[:1], whole.ops[1:]
    head = cut(whole, first, boundary(whole, first), sinks(first))
    tail = cut(whole, rest, boundary(whole, rest), sinks(rest))
    between = run(compact(head.graph), tmp_path / "head.tflite", dict.fromkeys(head.inputs, x))
    assert list(head.outputs.values()) == list(tail.inputs.values())
    got = run(compact(tail.graph), tmp_path / "tail.tflite", {next(iter(tail.inputs)): next(iter(between.values()))})
    np.testing.assert_array_equal(next(iter(got.values())), expected)


def test_a_compact_graph_holds_its_own_weights_only(tmp_path: Path) -> None:
    whole = Graph.read(MLP)
    last = whole.ops[-1:]
    part = compact(cut(whole, last, boundary(whole, last), sinks(last)).graph)
    held = [len(b.data) for b in part.model.buffers if b.data is not None]
    assert sum(held) == constant_bytes(whole, last)
    assert sum(held) < constant_bytes(whole, whole.ops)
    assert len(part.model.operatorCodes) == len(part.ops) == 1
    assert not part.model.metadata
    assert part.write(tmp_path / "part.tflite").stat().st_size < MLP.stat().st_size
    # What it was cut from is as it was.
    assert constant_bytes(whole, whole.ops) == constant_bytes(Graph.read(MLP), Graph.read(MLP).ops)


def test_what_a_graph_already_feeds_becomes_an_input_once() -> None:
    whole = Graph.read(MLP)
    every = cut(whole, whole.ops, boundary(whole, whole.ops), [port.tensor for port in whole.outputs])
    assert list(every.inputs.values()) == [port.tensor for port in whole.inputs]
    assert len(every.graph.inputs) == len(whole.inputs)


def test_an_op_that_is_fed_leaves_the_result_of_the_one_before_it_an_output(tmp_path: Path) -> None:
    """Every op at given operands, for all ops at once: what one writes stays its own, though others read another."""
    whole = Graph.read(MLP)
    made = [t for op in whole.ops for t in op.outputs]
    fed = [t for op in whole.ops for t in op.inputs if not whole.tensors[t].constant]
    forced = cut(whole, whole.ops, fed, made)
    assert len(forced.graph.ops) == len(whole.ops)
    values = {name: np.ones(whole.tensors[t].shape, np.float32) for name, t in forced.inputs.items()}
    got = run(forced.graph, tmp_path / "forced.tflite", values)
    for op in whole.ops:  # as each computes alone
        alone = cut(whole, [op], boundary(whole, [op]), op.outputs)
        one = run(alone.graph, tmp_path / "alone.tflite", {name: values[name] for name in alone.inputs})
        for name, value in one.items():
            np.testing.assert_array_equal(got[name], value)
