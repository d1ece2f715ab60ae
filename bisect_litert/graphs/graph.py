"""The converted graph: what is in a .tflite file.

Reading and writing is `ai_edge_litert.tools.flatbuffer_utils`; nothing here parses bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bisect_litert.graphs import packing
from bisect_litert.graphs.quantisation import Quantisation, unpack_int4

_INTEGERS: dict[str, Any] = {
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT16": np.int16,
    "UINT16": np.uint16,
    "INT32": np.int32,
    "INT64": np.int64,
}


REARRANGES = ("RESHAPE", "TRANSPOSE", "SQUEEZE", "EXPAND_DIMS")
"""Ops that hand on all numbers of an operand, in another order at most."""


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
        return self.model.subgraphs[self.subgraph_index]

    @cached_property
    def subgraph_index(self) -> int:
        """Number of the default signature's subgraph."""
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
            return tuple(Port(text_of(p.name), int(p.tensorIndex)) for p in getattr(signatures[0], side))
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


def text_of(name: Any) -> str:
    """Returns a name as the flatbuffer has it: bytes, or nothing."""
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name or "")


def _natural(name: str) -> tuple[Any, ...]:
    """Sort key that puts output_2 before output_10, and names without a number after them."""
    head = name.rstrip("0123456789")
    return (0, int(name[len(head) :])) if head == "output_" and len(name) > len(head) else (1, 0)
