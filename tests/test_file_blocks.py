from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bisect_litert.errors import BlockSelectionError
from bisect_litert.files import op_ranges
from bisect_litert.files.file_blocks import list_lines, read_blocks, taps_of
from bisect_litert.graphs.editor import Editor
from bisect_litert.graphs.graph import Graph

SHIPPED = Path(__file__).parent / "data" / "shipped"


def make(ops: Sequence[tuple[str, Sequence[str], str]], outputs: Sequence[str]) -> Graph:
    """A graph of ops (type, inputs, output) on one float input "x"; all tensors are 2x2."""
    from ai_edge_litert import schema_py_generated as schema

    model, subgraph = schema.ModelT(), schema.SubGraphT()
    model.version, model.buffers, model.operatorCodes, model.signatureDefs = 3, [schema.BufferT()], [], []
    subgraph.tensors, subgraph.operators, subgraph.inputs, subgraph.outputs = [], [], [], []
    model.subgraphs = [subgraph]
    editor = Editor(Graph(model))
    at = {"x": editor.add_tensor("x", [2, 2], schema.TensorType.FLOAT32)}
    editor.subgraph.inputs = [at["x"]]
    for kind, reads, name in ops:
        at[name] = editor.add_tensor(name, [2, 2], schema.TensorType.FLOAT32)
        editor.add_op(kind, [at[r] for r in reads], [at[name]])
    for name in outputs:
        editor.add_output(name, at[name])
    return editor.graph()


def keys(graph: Graph, *patterns: str) -> list[str]:
    return [tap.key for tap in taps_of(graph, read_blocks(graph).select(patterns))]


def test_blocks_of_a_litert_torch_file() -> None:
    graph = Graph.read(SHIPPED / "litert_torch.tflite")
    assert keys(graph) == ["tok_emb", "Mixer_0", "Mixer_1", "Mixer_2", "head"]
    assert keys(graph, "Mixer_1.**") == ["Mixer_1.pre_norm", "Mixer_1.out_proj"]
    assert [t.class_name for t in taps_of(graph, read_blocks(graph).select(["Mixer_?.pre*"]))] == ["LayerNorm"] * 3


def test_blocks_of_a_keras_file() -> None:
    graph = Graph.read(SHIPPED / "keras.tflite")
    assert keys(graph) == ["block0_conv_1", "block1_conv_1", "block1_norm_1", "block2_conv_1", "pool_1", "head_1"]


def test_a_file_whose_names_tell_nothing_is_split_by_position() -> None:
    graph = Graph.read(SHIPPED / "onnx2tf.tflite")
    assert keys(graph) == [f"op {i}" for i in range(len(graph.ops))]
    assert keys(graph, "ops 2-5", "op 9") == ["ops 2-5[0]", "ops 2-5[1]", "op 9"]


def test_what_is_called_twice_has_two_calls() -> None:
    shared, root = "m.Net/m.Lin_shared;", "m.Net"
    graph = make(
        [
            ("TANH", ["x"], shared + "1"),
            ("NEG", [shared + "1"], root + ";2"),
            ("TANH", [root + ";2"], shared + "3"),
            ("NEG", [shared + "3"], "out"),
        ],
        ["out"],
    )
    assert keys(graph) == ["shared", "shared@2"]


def test_an_unnamed_op_at_the_end_belongs_to_the_module_around_what_it_adds_up() -> None:
    a, inner = "m.Net/m.Block_a;", "m.Net/m.Block_b/m.Lin_l;"
    graph = make([("TANH", ["x"], a), ("TANH", [a], inner), ("ADD", [a, inner], "out")], ["out"])
    assert keys(graph) == ["a", "b"]
    found = taps_of(graph, read_blocks(graph).select(["b", "b.l"]))
    assert [(t.key, graph.tensors[t.tensor].name) for t in found] == [("b.l", inner), ("b", "out")]


def test_siblings_of_one_label_are_told_apart() -> None:
    graph = make(
        [("TANH", ["x"], "m.Net/m.Enc_first;"), ("NEG", ["m.Net/m.Enc_first;"], "m.Net/m.Dec_first;")],
        ["m.Net/m.Dec_first;"],
    )
    assert keys(graph) == ["Enc_first", "Dec_first"]


def test_a_pattern_without_a_match_names_what_is_near() -> None:
    blocks = read_blocks(Graph.read(SHIPPED / "litert_torch.tflite"))
    with pytest.raises(BlockSelectionError) as caught:
        blocks.select(["Mixer1"])
    assert "Mixer_1" in caught.value.hint
    with pytest.raises(BlockSelectionError, match="has no ops 3 to 400"):
        blocks.select(["ops 3-400"])


def test_stretches_cover_all_ops_once_and_end_where_little_is_alive() -> None:
    ops, last = [], "x"
    narrow = set()
    for i in range(40):  # forty times: one tensor becomes three and one again
        ops += [("TANH", [last], f"a{i}"), ("NEG", [last], f"b{i}"), ("ADD", [f"a{i}", f"b{i}"], f"c{i}")]
        last = f"c{i}"
        narrow.add(len(ops) - 1)
    graph = make(ops, [last])
    found = op_ranges.split(graph)
    assert [i for first, end in found for i in range(first, end + 1)] == list(range(len(graph.ops)))
    assert 10 <= len(found) <= 2 * op_ranges.BLOCKS
    assert {end for _, end in found} <= narrow


def test_the_list_shows_calls_and_shapes() -> None:
    found = read_blocks(Graph.read(SHIPPED / "litert_torch.tflite"))
    lines = {line.name: line for line in list_lines(found, found.select(()))}
    assert lines["Mixer_1"].selected
    assert lines["Mixer_1"].shapes == ("1x8x16",)
    assert not lines["Mixer_1.pre_norm"].selected
    assert lines["Mixer_1.pre_norm"].class_name == "LayerNorm"
