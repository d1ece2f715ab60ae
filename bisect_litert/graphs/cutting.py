"""Ops cut out of a graph as a graph of their own: they read given tensors as inputs and write chosen ones as outputs.

`cut` keeps tensor indices, so that results can be laid beside the graph it came from; `compact` then drops everything
the cut does not need, which is what makes a small file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bisect_litert.graphs.editor import COPY_SUFFIX, Editor
from bisect_litert.graphs.graph import Graph, Op

INPUT_PREFIX = "in_"
OUTPUT_PREFIX = "out_"
HAS_SUBGRAPHS = ("IF", "WHILE", "CALL", "CALL_ONCE", "STABLEHLO_COMPOSITE", "STABLEHLO_WHILE", "STABLEHLO_REDUCE")


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut graph; names carry the index of the tensor in the graph it was cut from."""

    graph: Graph
    inputs: Mapping[str, int]
    """Tensor by signature input name."""
    outputs: Mapping[str, int]
    """Tensor by signature output name."""


def cut(graph: Graph, ops: Iterable[Op], fed: Sequence[int], outputs: Sequence[int]) -> Cut:
    """Cuts ops out of a graph.

    Args:
        graph: Where they are.
        ops: What to keep; ops whose result no output needs are dropped.
        fed: Tensors that become inputs, also for those of the ops that read another one's result. What an op reads and
            neither `fed` nor an op gives has to be constant.
        outputs: Tensors to write; one that is there twice gets two outputs.
    """
    editor = Editor(graph)
    mine = {op.index for op in ops}
    others = [op for index, op in enumerate(editor.subgraph.operators) if index not in mine]
    editor.drop_outputs()
    written: dict[str, int] = {}
    for t in outputs:
        name = f"{OUTPUT_PREFIX}{t:05d}"
        written[name if name not in written else f"{name}_{len(written)}"] = t
    for name, t in written.items():
        editor.add_output(name, t)
    read = {f"{INPUT_PREFIX}{t:05d}": t for t in fed}
    given = {}
    for name, t in read.items():
        given[t] = editor.add_input(name, t)
        editor.rewire(t, given[t], skip=others)
    made_here = {t for op in graph.ops if op.index in mine for t in op.outputs}
    # An input may be returned unchanged; a tensor that an op here writes is that op's also where others are fed it.
    editor.rewire_outputs({t: new for t, new in given.items() if t not in made_here})
    editor.prune()
    made = editor.graph()
    present = {port.name for port in made.inputs}
    return Cut(made, {n: t for n, t in read.items() if n in present}, written)


def boundary(graph: Graph, ops: Sequence[Op]) -> tuple[int, ...]:
    """Returns the tensors that ops read and none of them writes, constants left out."""
    made = {t for op in ops for t in op.outputs}
    given = {port.tensor for port in graph.inputs}
    read = dict.fromkeys(t for op in ops for t in op.inputs)
    return tuple(t for t in read if t not in made and (t in graph.producer or t in given))


def sinks(ops: Sequence[Op]) -> tuple[int, ...]:
    """Returns what ops write and none of them reads: a tensor that is read and output may lie (docs/taps.md)."""
    read = {t for op in ops for t in op.inputs}
    return tuple(t for op in ops for t in op.outputs if t not in read)


def can_be_parted(graph: Graph) -> bool:
    """Whether ops may run in graphs of their own: what an op calls is not cut, nor what lives on in no tensor."""
    return not any(op.type in HAS_SUBGRAPHS for op in graph.ops) and not any(
        t.dtype in ("RESOURCE", "VARIANT") for t in graph.tensors
    )


def copies_early(graph: Graph) -> list[Op]:
    """Returns the ops in an order in which a tap's copy, and what is made of it, follows at once what it copies."""
    at: dict[int, int] = {}
    copied: set[int] = set()
    for op in graph.ops:
        makers = [graph.producer[t].index for t in op.inputs if t in graph.producer]
        is_copy = bool(op.outputs) and graph.tensors[op.outputs[0]].name.endswith(COPY_SUFFIX)
        if makers and (is_copy or copied.intersection(makers)):
            copied.add(op.index)
            at[op.index] = max(at[maker] for maker in makers)
        else:
            at[op.index] = op.index
    return sorted(graph.ops, key=lambda op: (at[op.index], op.index))


def with_copies_early(graph: Graph) -> Graph:
    """Returns the graph with its ops in that order: a tapped tensor is not held until all others are there."""
    editor = Editor(graph)
    editor.subgraph.operators = [editor.subgraph.operators[op.index] for op in copies_early(graph)]
    return editor.graph()


def constant_bytes(graph: Graph, ops: Sequence[Op]) -> int:
    """Returns the size of the constants that ops read, each buffer once."""
    subgraph = graph.subgraph
    buffers = {int(subgraph.tensors[t].buffer) for op in ops for t in op.inputs if graph.tensors[t].constant}
    return sum(len(graph.model.buffers[b].data) for b in buffers)


def compact(graph: Graph) -> Graph:
    """Returns the graph with the tensors, weights and operator codes that its ops need and nothing else.

    Metadata goes too: it says nothing to the runtime. Graphs whose ops call other subgraphs keep those, whole.
    """
    from ai_edge_litert import schema_py_generated as schema

    old, model = graph.model, schema.ModelT()
    model.version, model.description = old.version, b"cut by bisect-litert"
    if any(op.type in HAS_SUBGRAPHS for op in graph.ops):
        model.operatorCodes, model.buffers = old.operatorCodes, old.buffers
        model.subgraphs, model.signatureDefs = old.subgraphs, old.signatureDefs
        return Graph(model)
    subgraph = copy.copy(graph.subgraph)
    ports = [port.tensor for port in (*graph.inputs, *graph.outputs)]
    used = sorted({t for op in graph.ops for t in (*op.inputs, *op.outputs)} | set(ports))
    place = {t: i for i, t in enumerate(used)} | {-1: -1}
    model.buffers, buffers = [schema.BufferT()], {}
    subgraph.tensors = []
    for t in used:
        tensor = copy.copy(graph.subgraph.tensors[t])
        data = old.buffers[tensor.buffer].data
        if data is None or not len(data):
            tensor.buffer = 0
        else:
            if tensor.buffer not in buffers:
                buffers[tensor.buffer] = len(model.buffers)
                model.buffers.append(old.buffers[tensor.buffer])
            tensor.buffer = buffers[tensor.buffer]
        subgraph.tensors.append(tensor)
    codes: dict[int, int] = {}
    model.operatorCodes, subgraph.operators = [], []
    for op in graph.subgraph.operators:
        op = copy.copy(op)
        if op.opcodeIndex not in codes:
            codes[op.opcodeIndex] = len(model.operatorCodes)
            model.operatorCodes.append(old.operatorCodes[op.opcodeIndex])
        op.opcodeIndex = codes[op.opcodeIndex]
        op.inputs = _moved(op.inputs, place)
        op.outputs = _moved(op.outputs, place)
        op.intermediates = None
        subgraph.operators.append(op)
    subgraph.inputs, subgraph.outputs = _moved(subgraph.inputs, place), _moved(subgraph.outputs, place)
    subgraph.name = b"main"
    model.subgraphs = [subgraph]
    model.signatureDefs = [_signature(s, place) for s in (old.signatureDefs or [])[:1]]
    return Graph(model)


def _moved(indices: Any, place: Mapping[int, int]) -> list[int]:
    return [place[int(i)] for i in (indices if indices is not None else ())]


def _signature(signature: Any, place: Mapping[int, int]) -> Any:
    signature = copy.copy(signature)
    signature.subgraphIndex = 0
    for side in ("inputs", "outputs"):
        ports = [copy.copy(port) for port in getattr(signature, side)]
        for port in ports:
            port.tensorIndex = place[int(port.tensorIndex)]
        setattr(signature, side, ports)
    return signature
