"""The converted graph: what is in a .tflite file, and the edits that tap it, feed it, and cut it.

Edits never touch the graph they start from, and share its weights: a new model object gets its own lists, and only what
changes is copied. Reading and writing is `ai_edge_litert.tools.flatbuffer_utils`; nothing here parses bytes.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bisect_litert.graphs import packing
from bisect_litert.graphs.quantisation import Quantisation, unpack_int4

TAP_PREFIX = "bisect_tap_"
FEED_PREFIX = "bisect_feed_"
_INTEGERS: dict[str, Any] = {
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT16": np.int16,
    "UINT16": np.uint16,
    "INT32": np.int32,
    "INT64": np.int64,
}
COPY_SUFFIX = "/tap"
"""Ends the name of a tensor that exists only to be looked at."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the graph."""

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    """TensorFlow Lite type name, "FLOAT32", "INT32", "BOOL" ..."""
    constant: bool
    quantisation: Quantisation | None = None
    """How its integers stand for real numbers; None where they are themselves."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_float(self) -> bool:
        """Whether it holds float32 values."""
        return self.dtype == "FLOAT32"

    @property
    def is_real(self) -> bool:
        """Whether it holds real numbers, as float32 or as integers that stand for them."""
        return self.is_float or self.quantisation is not None

    def real(self, values: np.ndarray) -> np.ndarray:
        """Returns the numbers that a run's integers stand for; anything else as it is."""
        if self.quantisation is None or values.dtype.kind not in "iu":
            return values
        return self.quantisation.real(values.reshape(self.shape)).reshape(values.shape)

    def stored(self, values: np.ndarray) -> np.ndarray:
        """Returns numbers as the tensor holds them."""
        if self.quantisation is None or values.dtype.kind != "f":
            return values
        dtype = np.dtype(_INTEGERS[self.dtype])
        return self.quantisation.stored(values.reshape(self.shape), dtype).reshape(values.shape)


@dataclass(frozen=True, slots=True)
class Op:
    """An operator of the graph, in file order, which is a valid execution order."""

    index: int
    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of the graph's signature."""

    name: str
    tensor: int


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What tells a file from another one that was written in its place; None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class Graph:
    """A .tflite model's main graph."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.file = Path()
        """Where it was read from; empty for a graph that was made by editing."""
        self._lies_at: tuple[Path, tuple[int, int, int] | None] | None = None
        """A file that holds just this graph, if there is one, and what it was like then."""

    @classmethod
    def read(cls, path: Path) -> Graph:
        """Reads a .tflite file."""
        from ai_edge_litert.tools import flatbuffer_utils

        graph = cls(flatbuffer_utils.read_model(str(path)))
        graph.file = path
        graph._lies_at = path, _stamp(path)
        return graph

    def write(self, path: Path) -> Path:
        """Writes the model to `path` and returns it.

        Weights that no op reads are left out.

        Raises:
            OSError: The file cannot be written.
            RunnerError: The model is larger than the format allows.
        """
        packing.write_model(self.model, path)
        self._lies_at = path, _stamp(path)
        return path

    def on_disk(self, path: Path) -> Path:
        """Returns a file that holds the graph: the one it was read from or written to, else `path`, which is written.

        Raises:
            OSError, RunnerError: As `write`.
        """
        if self._lies_at is not None:
            known, stamp = self._lies_at
            if stamp is not None and _stamp(known) == stamp:  # nobody has written another graph there since
                return known
        return self.write(path)

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def subgraph(self) -> Any:
        """The schema's own object for the main graph."""
        return self.model.subgraphs[self._subgraph_index]

    @cached_property
    def _subgraph_index(self) -> int:
        signatures = self.model.signatureDefs or []
        return int(signatures[0].subgraphIndex) if signatures else 0

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor, by index."""
        from ai_edge_litert.tools import flatbuffer_utils

        found = []
        for index, tensor in enumerate(self.subgraph.tensors):
            data = self.model.buffers[tensor.buffer].data
            shape = tuple(int(n) for n in tensor.shape) if tensor.shape is not None else ()
            name = tensor.name.decode(errors="replace") if isinstance(tensor.name, bytes) else str(tensor.name or "")
            constant = data is not None and len(data) > 0
            dtype = flatbuffer_utils.type_to_name(tensor.type)
            stands_for = Quantisation.of(tensor) if dtype in _INTEGERS or dtype == "INT4" else None
            found.append(Tensor(index, name, shape, dtype, constant, stands_for))
        return tuple(found)

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """Every operator, in execution order; absent optional inputs are left out."""
        from ai_edge_litert.tools import flatbuffer_utils

        return tuple(
            Op(
                index,
                flatbuffer_utils.opcode_to_name(self.model, op.opcodeIndex) or "CUSTOM",
                tuple(int(i) for i in (op.inputs if op.inputs is not None else ()) if i >= 0),
                tuple(int(i) for i in (op.outputs if op.outputs is not None else ())),
            )
            for index, op in enumerate(self.subgraph.operators)
        )

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        """The signature's inputs."""
        return self._ports("inputs")

    @cached_property
    def outputs(self) -> tuple[Port, ...]:
        """The signature's outputs, in the order the module returned them (output_0, output_1, ...).

        Where the module returns a dict, they are named after its keys, and the signature lists those by the alphabet.
        The subgraph still has the module's order; of names that share a tensor any may stand for any.
        """
        ports = sorted(self._ports("outputs"), key=lambda port: _natural(port.name))
        waiting: dict[int, list[int]] = defaultdict(list)
        for position, tensor in enumerate(self.subgraph.outputs):
            waiting[int(tensor)].append(position)
        last = len(self.subgraph.outputs)
        place = {port: waiting[port.tensor].pop(0) if waiting[port.tensor] else last for port in ports}
        return tuple(sorted(ports, key=lambda port: (*_natural(port.name), place[port])))

    def _ports(self, side: str) -> tuple[Port, ...]:
        signatures = self.model.signatureDefs or []
        if signatures:
            return tuple(Port(_text(p.name), int(p.tensorIndex)) for p in getattr(signatures[0], side))
        return tuple(Port(self.tensors[int(i)].name, int(i)) for i in getattr(self.subgraph, side))

    @cached_property
    def producer(self) -> dict[int, Op]:
        """The op that writes each tensor."""
        return {t: op for op in self.ops for t in op.outputs}

    @cached_property
    def consumers(self) -> dict[int, tuple[Op, ...]]:
        """The ops that read each tensor."""
        found: dict[int, list[Op]] = defaultdict(list)
        for op in self.ops:
            for t in dict.fromkeys(op.inputs):
                found[t].append(op)
        return {t: tuple(ops) for t, ops in found.items()}

    @cached_property
    def computed(self) -> frozenset[int]:
        """Tensors that depend on a graph input (the rest is constant or follows from constants)."""
        live = {port.tensor for port in self.inputs}
        for op in self.ops:
            if live.intersection(op.inputs):
                live.update(op.outputs)
        return frozenset(live)

    def constant(self, index: int) -> np.ndarray | None:
        """Returns a constant float32, int32 or int64 tensor's value, read-only, or None for anything else."""
        tensor = self.tensors[index]
        dtype = {"FLOAT32": np.float32, "INT32": np.int32, "INT64": np.int64}.get(tensor.dtype)
        if not tensor.constant or dtype is None:
            return None
        return self._raw(index).view(dtype).reshape(tensor.shape)

    def real_constant(self, index: int) -> np.ndarray | None:
        """Returns the real numbers that a constant holds, float32; None for what is no constant, or holds none."""
        tensor = self.tensors[index]
        if not tensor.constant or not (tensor.is_real or tensor.dtype == "FLOAT16"):
            return None
        data = self._raw(index)
        if tensor.dtype == "INT4":
            return tensor.real(unpack_int4(data, tensor.size).reshape(tensor.shape))
        dtype = {"FLOAT32": np.float32, "FLOAT16": np.float16, **_INTEGERS}[tensor.dtype]
        stored = data.view(dtype).reshape(tensor.shape)
        return tensor.real(stored).astype(np.float32)

    def _raw(self, index: int) -> np.ndarray:
        """A constant's bytes where they lie, in the file as a rule: large weights are not to be held twice."""
        data = self.model.buffers[self.subgraph.tensors[index].buffer].data
        raw: np.ndarray = data.view(np.uint8) if isinstance(data, np.ndarray) else np.frombuffer(bytes(data), np.uint8)
        raw = raw if raw.flags.c_contiguous else raw.copy()
        raw = raw.view()
        raw.flags.writeable = False
        return raw

    def option(self, op: Op, name: str) -> Any:
        """Returns a builtin option of an op, such as BATCH_MATMUL's "adjY"; None when it has none of that name."""
        return getattr(self.subgraph.operators[op.index].builtinOptions, name, None)

    def inside(self, outputs: Iterable[int], stop: Iterable[int]) -> tuple[Op, ...]:
        """Returns the ops between tensors: those needed for `outputs`, walking back no further than `stop`."""
        wall, seen, todo = set(stop), set(), list(outputs)
        ops: dict[int, Op] = {}
        wall.difference_update(todo)
        while todo:
            t = todo.pop()
            op = self.producer.get(t)
            if op is None or t in seen or t in wall:
                continue
            seen.add(t)
            ops[op.index] = op
            todo.extend(op.inputs)
        return tuple(ops[i] for i in sorted(ops))

    def sources(self, outputs: Iterable[int], stop: Iterable[int]) -> frozenset[int]:
        """Returns which of `stop`, and which graph inputs, the tensors in `outputs` directly follow from."""
        outputs = tuple(outputs)
        wall = (set(stop) | {port.tensor for port in self.inputs}) - set(outputs)
        read = {t for op in self.inside(outputs, wall) for t in op.inputs}
        return frozenset(read & wall)

    def shared_insides(
        self, regions: Mapping[str, Sequence[int]], stop: Iterable[int]
    ) -> dict[str, dict[str, frozenset[int]]]:
        """Finds regions that read tensors from the inside of another one, past its outputs.

        The converter moves factors from one block into the next one's weights, so that the next reads what lies
        before the first one's end.

        Args:
            regions: Output tensors of each region, by name, in the order of the data flow.
            stop: The output tensors of all regions.

        Returns:
            For each region that does, the tensors it reads so, by the region they are made in.
        """
        wall = set(stop)
        ops = {name: self.inside(outputs, wall) for name, outputs in regions.items()}
        made_in: dict[int, str] = {}
        for name, own in ops.items():
            for op in own:
                for t in op.outputs:
                    made_in.setdefault(t, name)
        found: dict[str, dict[str, frozenset[int]]] = {}
        for name, own in ops.items():
            others: dict[str, set[int]] = {}
            for op in own:
                if all(made_in[t] == name for t in op.outputs):
                    for t in set(op.inputs) - wall:
                        if made_in.get(t, name) != name:
                            others.setdefault(made_in[t], set()).add(t)
            if others:
                found[name] = {other: frozenset(read) for other, read in others.items()}
        return found

    # -- editing -------------------------------------------------------------------------------------------------------

    def edit(self) -> Editor:
        """Starts an edit on a copy."""
        return Editor(self)

    def with_taps(self, tensors: Sequence[int], *, copies: bool) -> tuple[Graph, dict[int, str]]:
        """Adds tensors as outputs.

        A tensor that is also consumed leaves through its own same-shape RESHAPE when `copies` is set: the delegate
        hands a tensor that is output and consumed to the wrong buffer (docs/taps.md). One that is already an output
        and nothing else is not tapped twice, since of two outputs with one tensor only one gets written. A quantised
        one leaves through a DEQUANTIZE either way: outputs keep no scale.

        Args:
            tensors: Tensor indices; none may be a constant or a graph input.
            copies: Tap through copies (True) or expose the tensors themselves (False).

        Returns:
            The new graph, and the output name of each tensor.
        """
        editor = self.edit()
        existing = {port.tensor: port.name for port in self.outputs}
        names: dict[int, str] = {}
        for t in dict.fromkeys(tensors):
            consumed = t in self.consumers
            if t in existing and not (copies and consumed):
                names[t] = existing[t]
                continue
            names[t] = f"{TAP_PREFIX}{t:05d}"
            if self.tensors[t].quantisation is not None:
                editor.add_output(names[t], editor.real_of(t))
            else:
                editor.add_output(names[t], editor.copy_of(t) if copies and consumed else t)
        return editor.graph(), names


class Editor:
    """Builds a changed copy of a graph; weights are shared with the original."""

    def __init__(self, base: Graph) -> None:
        self._base = base
        model = copy.copy(base.model)
        model.buffers = list(model.buffers)
        model.operatorCodes = list(model.operatorCodes)
        model.subgraphs = list(model.subgraphs)
        subgraph = copy.copy(base.subgraph)
        model.subgraphs[base._subgraph_index] = subgraph
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
        name = _text(tensor.name)
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
        out = self.add_tensor(f"{_text(tensor.name)}{COPY_SUFFIX}", tensor.shape, schema.TensorType.FLOAT32)
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


def _text(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name or "")


def _natural(name: str) -> tuple[Any, ...]:
    """Sort key that puts output_2 before output_10, and names without a number after them."""
    head = name.rstrip("0123456789")
    return (0, int(name[len(head) :])) if head == "output_" and len(name) > len(head) else (1, 0)
