"""Edits that tap a graph, feed it, and cut it.

They never touch the graph they start from, and share its weights: a new model object gets its own lists, and only what
changes is copied.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from bisect_litert.graphs.graph import Graph, text_of

TAP_PREFIX = "bisect_tap_"
FEED_PREFIX = "bisect_feed_"
COPY_SUFFIX = "/tap"
"""Ends the name of a tensor that exists only to be looked at."""


class Editor:
    """Builds a changed copy of a graph; weights are shared with the original."""

    def __init__(self, base: Graph) -> None:
        self._base = base
        model = copy.copy(base.model)
        model.buffers = list(model.buffers)
        model.operatorCodes = list(model.operatorCodes)
        model.subgraphs = list(model.subgraphs)
        subgraph = copy.copy(base.subgraph)
        model.subgraphs[base.subgraph_index] = subgraph
        subgraph.tensors = list(subgraph.tensors)
        subgraph.operators = [copy.copy(op) for op in subgraph.operators]
        for op in subgraph.operators:
            op.inputs = [int(i) for i in (op.inputs if op.inputs is not None else ())]
        subgraph.inputs = [int(i) for i in subgraph.inputs]
        subgraph.outputs = [int(i) for i in subgraph.outputs]
        signatures = [copy.copy(s) for s in model.signatureDefs or []]
        for signature in signatures[:1]:
            signature.inputs, signature.outputs = list(signature.inputs), list(signature.outputs)
        model.signatureDefs = signatures
        self.model, self.subgraph, self._signature = model, subgraph, signatures[0] if signatures else None
        self._opcodes: dict[int, int] = {}

    def graph(self) -> Graph:
        """Returns the edited graph."""
        return Graph(self.model)

    def add_tensor(self, name: str, shape: Sequence[int], tensor_type: int, data: np.ndarray | None = None) -> int:
        """Adds a tensor, constant when `data` is given, and returns its index."""
        from ai_edge_litert import schema_py_generated as schema

        tensor = schema.TensorT()
        tensor.name, tensor.type = name.encode(), tensor_type
        tensor.shape, tensor.hasRank = [int(n) for n in shape], True
        if data is not None:  # else its buffer is the first one, which is empty by convention
            tensor.buffer = len(self.model.buffers)
            self.model.buffers.append(_buffer(data))
        self.subgraph.tensors.append(tensor)
        return len(self.subgraph.tensors) - 1

    def fill(self, t: int, data: np.ndarray) -> None:
        """Gives constant `t` other values; other tensors that shared its weights keep theirs."""
        self.model.buffers.append(_buffer(data))
        self.subgraph.tensors[t] = copy.copy(self.subgraph.tensors[t])
        self.subgraph.tensors[t].buffer = len(self.model.buffers) - 1

    def rename(self, t: int, name: str) -> None:
        """Gives tensor `t` another name."""
        self.subgraph.tensors[t] = copy.copy(self.subgraph.tensors[t])
        self.subgraph.tensors[t].name = name.encode()

    def add_op(
        self, name: str, inputs: Sequence[int], outputs: Sequence[int], at: int | None = None, **options: Any
    ) -> Any:
        """Adds a builtin op such as "CAST", at the end or before position `at`, and returns it."""
        from ai_edge_litert import schema_py_generated as schema

        op = schema.OperatorT()
        op.opcodeIndex = self._opcode(getattr(schema.BuiltinOperator, name))
        op.inputs, op.outputs = [int(i) for i in inputs], [int(i) for i in outputs]
        op.builtinOptionsType, table = _options(name)
        if table is not None:
            op.builtinOptions = table()
            for key, value in options.items():
                setattr(op.builtinOptions, key, value)
        self.subgraph.operators.insert(len(self.subgraph.operators) if at is None else at, op)
        return op

    def _opcode(self, builtin: int) -> int:
        from ai_edge_litert import schema_py_generated as schema

        if builtin not in self._opcodes:
            code = schema.OperatorCodeT()
            code.builtinCode, code.deprecatedBuiltinCode, code.version = builtin, min(builtin, 127), 1
            self.model.operatorCodes.append(code)
            self._opcodes[builtin] = len(self.model.operatorCodes) - 1
        return self._opcodes[builtin]

    def copy_of(self, t: int) -> int:
        """Adds a RESHAPE of tensor `t` to its own shape at the end and returns the new tensor's index."""
        from ai_edge_litert import schema_py_generated as schema

        tensor = self.subgraph.tensors[t]
        # A scalar cannot be written as a RESHAPE target that the delegate takes; one element of rank 1 can.
        shape = [int(n) for n in tensor.shape] if tensor.shape is not None and len(tensor.shape) else [1]
        name = text_of(tensor.name)
        target = self.add_tensor(
            f"{name}{COPY_SUFFIX}_shape", [len(shape)], schema.TensorType.INT32, np.array(shape, np.int32)
        )
        out = self.add_tensor(f"{name}{COPY_SUFFIX}", shape, tensor.type)
        self.add_op("RESHAPE", [t, target], [out], newShape=shape)
        return out

    def real_of(self, t: int, at: int | None = None) -> int:
        """Adds a DEQUANTIZE of quantised tensor `t`, at the end or before position `at`; returns the new tensor."""
        from ai_edge_litert import schema_py_generated as schema

        tensor = self.subgraph.tensors[t]
        out = self.add_tensor(f"{text_of(tensor.name)}{COPY_SUFFIX}", tensor.shape, schema.TensorType.FLOAT32)
        self.add_op("DEQUANTIZE", [t], [out], at)
        return out

    def add_output(self, name: str, t: int) -> None:
        """Makes tensor `t` an output under a name."""
        from ai_edge_litert import schema_py_generated as schema

        self.subgraph.outputs.append(t)
        if self._signature is not None:
            port = schema.TensorMapT()
            port.name, port.tensorIndex = name.encode(), t
            self._signature.outputs.append(port)

    def drop_outputs(self) -> None:
        """Removes all outputs, so that an edit can choose its own."""
        self.subgraph.outputs = []
        if self._signature is not None:
            self._signature.outputs = []

    def add_input(self, name: str, like: int) -> int:
        """Adds a graph input with the shape, type and scale of tensor `like` and returns its index."""
        from ai_edge_litert import schema_py_generated as schema

        tensor = self.subgraph.tensors[like]
        shape = [int(n) for n in tensor.shape] if tensor.shape is not None else []
        t = self.add_tensor(name, shape, tensor.type)
        self.subgraph.tensors[t].quantization = tensor.quantization
        self.subgraph.inputs.append(t)
        if self._signature is not None:
            port = schema.TensorMapT()
            port.name, port.tensorIndex = name.encode(), t
            self._signature.inputs.append(port)
        return t

    def rewire(self, old: int, new: int, skip: Iterable[Any] = ()) -> None:
        """Lets every op that reads `old` read `new`, except those in `skip`."""
        kept = {id(op) for op in skip}
        for op in self.subgraph.operators:
            if id(op) not in kept:
                op.inputs = [new if i == old else i for i in op.inputs]

    def rewire_outputs(self, mapping: Mapping[int, int]) -> None:
        """Lets the graph's outputs be other tensors."""
        self.subgraph.outputs = [mapping.get(t, t) for t in self.subgraph.outputs]
        if self._signature is not None:
            for position, port in enumerate(self._signature.outputs):
                if port.tensorIndex in mapping:
                    moved = copy.copy(port)
                    moved.tensorIndex = mapping[port.tensorIndex]
                    self._signature.outputs[position] = moved

    def prune(self) -> None:
        """Drops ops whose results no output needs, and graph inputs that nothing reads any more."""
        needed, kept = set(self.subgraph.outputs), []
        for op in reversed(self.subgraph.operators):
            if needed.intersection(int(t) for t in op.outputs):
                kept.append(op)
                needed.update(i for i in op.inputs if i >= 0)
        self.subgraph.operators = kept[::-1]
        self.subgraph.inputs = [t for t in self.subgraph.inputs if t in needed]
        if self._signature is not None:
            self._signature.inputs = [p for p in self._signature.inputs if int(p.tensorIndex) in needed]


def with_taps(graph: Graph, tensors: Sequence[int], *, copies: bool) -> tuple[Graph, dict[int, str]]:
    """Adds tensors as outputs.

    A tensor that is also consumed leaves through its own same-shape RESHAPE when `copies` is set: the delegate
    hands a tensor that is output and consumed to the wrong buffer (docs/taps.md). One that is already an output
    and nothing else is not tapped twice, since of two outputs with one tensor only one gets written. A quantised
    one leaves through a DEQUANTIZE either way: outputs keep no scale.

    Args:
        graph: The graph; it stays as it is.
        tensors: Tensor indices; none may be a constant or a graph input.
        copies: Tap through copies (True) or expose the tensors themselves (False).

    Returns:
        The new graph, and the output name of each tensor.
    """
    editor = Editor(graph)
    existing = {port.tensor: port.name for port in graph.outputs}
    names: dict[int, str] = {}
    for t in dict.fromkeys(tensors):
        consumed = t in graph.consumers
        if t in existing and not (copies and consumed):
            names[t] = existing[t]
            continue
        names[t] = f"{TAP_PREFIX}{t:05d}"
        if graph.tensors[t].quantisation is not None:
            editor.add_output(names[t], editor.real_of(t))
        else:
            editor.add_output(names[t], editor.copy_of(t) if copies and consumed else t)
    return editor.graph(), names


@cache
def _options(op: str) -> tuple[int, Any]:
    """Number and class of the table that holds a builtin op's options; (0, None) for an op without any."""
    from ai_edge_litert import schema_py_generated as schema

    table = "".join(word.capitalize() for word in op.split("_")) + "Options"
    known = hasattr(schema, table + "T") and hasattr(schema.BuiltinOptions, table)
    return (getattr(schema.BuiltinOptions, table), getattr(schema, table + "T")) if known else (0, None)


def _buffer(data: np.ndarray) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    buffer = schema.BufferT()
    buffer.data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return buffer
