"""The same graph computed with floats, as GPUs do that have no integer kernels.

`with_real_weights` widens weights that ops with float results read. LiteRT's CPU kernels round the activations of such
ops to 8 bits on the fly, anew in every run ("dynamic range"), which no GPU does; with real weights the CPU is exact.

`as_floats` also lets every op between integer activations compute with floats and rounds its result to the activation's
own steps: what a float device that keeps to the file's scales gives.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

from bisect_litert.graphs.editor import Editor
from bisect_litert.graphs.graph import Graph, Op

_STATEFUL = (
    "LSTM",
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "BIDIRECTIONAL_SEQUENCE_LSTM",
    "UNIDIRECTIONAL_SEQUENCE_RNN",
    "BIDIRECTIONAL_SEQUENCE_RNN",
    "RNN",
    "SVDF",
    "CAST",
    "IF",
    "WHILE",
    "CALL",
    "CUSTOM",
    "STABLEHLO_COMPOSITE",
)
"""Ops whose integer form is more, or something else, than the float one with rounded tensors."""


def has_integers(graph: Graph) -> bool:
    """Whether some activation that depends on the inputs is stored as integers with a scale."""
    return any(_quantised(graph, t) for op in graph.ops for t in op.outputs if t in graph.computed)


def is_hybrid(graph: Graph) -> bool:
    """Whether some op with a float result reads quantised weights."""
    return any(True for _ in _hybrid_weights(graph))


def with_real_weights(graph: Graph) -> Graph:
    """Returns the graph with the quantised weights of float ops as float constants; itself where there are none."""
    weights = dict.fromkeys(_hybrid_weights(graph))
    if not weights:
        return graph
    editor = Editor(graph)
    _widen(graph, editor, weights, [op for op in graph.ops if _is_hybrid(graph, op)])
    return editor.graph()


def as_floats(graph: Graph) -> Graph:
    """Returns the graph with every op computing on floats; itself where nothing is quantised, or it cannot be done.

    Tensors keep their indices: the one an op wrote as integers is what it writes before it is rounded to steps.
    """
    if not has_integers(graph):
        return with_real_weights(graph)
    touched = [op for op in graph.ops if any(_quantised(graph, t) for t in (*op.inputs, *op.outputs))]
    if any(op.type in _STATEFUL for op in touched):
        return graph
    editor = Editor(graph)
    weights = dict.fromkeys(
        t for op in touched if op.type != "DEQUANTIZE" for t in op.inputs if _quantised(graph, t) and _fixed(graph, t)
    )
    if any(graph.real_constant(t) is None for t in weights):
        return graph
    _widen(graph, editor, weights, touched)
    steps = {port.tensor: editor.real_of(port.tensor, 0) for port in graph.inputs if _quantised(graph, port.tensor)}
    arrived = len(steps)
    operators = editor.subgraph.operators
    ops = dict(zip(graph.ops, operators[arrived:], strict=True))
    editor.subgraph.operators = operators[:arrived]
    for op, made in ops.items():
        live = op.outputs and op.outputs[0] in graph.computed
        if op.type == "DEQUANTIZE" and live and op.inputs[0] in steps:
            steps[op.outputs[0]] = steps[op.inputs[0]]
            continue
        made.inputs = [steps.get(t, t) for t in made.inputs]
        editor.subgraph.operators.append(made)
        for t in op.outputs if live else ():
            if _quantised(graph, t):
                steps[t] = _to_steps(editor, t, is_float=op.type != "QUANTIZE")
    editor.rewire_outputs(steps)
    return editor.graph()


def _to_steps(editor: Editor, t: int, *, is_float: bool) -> int:
    """Rounds what an op writes to the steps of the integers it stood for; returns the float tensor that holds that."""
    from ai_edge_litert import schema_py_generated as schema

    tensor = editor.subgraph.tensors[t]
    if not is_float:
        return editor.real_of(t)
    stored = editor.add_tensor("steps", tensor.shape, tensor.type)
    editor.subgraph.tensors[stored].quantization = tensor.quantization
    wide = copy.copy(tensor)
    wide.type, wide.quantization = schema.TensorType.FLOAT32, None
    editor.subgraph.tensors[t] = wide
    editor.add_op("QUANTIZE", [t], [stored])
    return editor.real_of(stored)


def _widen(graph: Graph, editor: Editor, weights: Iterable[int], ops: Iterable[Op]) -> None:
    from ai_edge_litert import schema_py_generated as schema

    readers = {op.index for op in ops}
    others = [op for index, op in enumerate(editor.subgraph.operators) if index not in readers]
    for t in weights:
        value = graph.real_constant(t)
        if value is not None:
            tensor = graph.tensors[t]
            new = editor.add_tensor(f"{tensor.name}/real", tensor.shape, schema.TensorType.FLOAT32, value)
            editor.rewire(t, new, skip=others)


def _hybrid_weights(graph: Graph) -> Iterable[int]:
    for op in graph.ops:
        if _is_hybrid(graph, op):
            yield from (t for t in op.inputs if _quantised(graph, t) and _fixed(graph, t))


def _is_hybrid(graph: Graph, op: Op) -> bool:
    """Whether an op reads quantised weights and writes floats; DEQUANTIZE is how files say that they are widened."""
    if op.type in ("DEQUANTIZE", *_STATEFUL) or not op.outputs or not graph.tensors[op.outputs[0]].is_float:
        return False
    return any(_quantised(graph, t) and _fixed(graph, t) for t in op.inputs)


def _quantised(graph: Graph, t: int) -> bool:
    return graph.tensors[t].quantisation is not None


def _fixed(graph: Graph, t: int) -> bool:
    return graph.tensors[t].constant
