"""Writes .tflite files fast: a run writes some twenty variants of one graph, most of which are the same tables again.

What the library packs once is kept as bytes and put in place again (`packed_tables`). Weights go from where they are
straight to the disk: they stand behind everything else in the file, which the format allows, since what refers to them
is an offset that is filled in once it is known. Weights that no op reads are left out; a graph cut down to one block is
a small file.
"""

from __future__ import annotations

import copy
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bisect_litert.errors import RunnerError
from bisect_litert.graphs.packed_tables import PackedTables, content

_IDENTIFIER = b"TFL3"
_ALIGNMENT = 16
"""Of weights, as the schema asks for (force_align)."""
_LIMIT = 2**31 - 1
"""Bytes that a flatbuffer may have."""


def write_model(model: Any, path: Path) -> None:
    """Writes a model (the library's ModelT) to `path`.

    Raises:
        OSError: The file cannot be written.
        RunnerError: The model is larger than the format allows.
    """
    import flatbuffers

    if sys.byteorder == "big":
        from ai_edge_litert.tools import flatbuffer_utils

        flatbuffer_utils.write_model(model, str(path))  # it swaps bytes; nothing here does
        return
    needed = _needed(model)
    weights = [_Weights(_bytes(buffer) if i in needed else None) for i, buffer in enumerate(model.buffers)]
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(_light(model, weights).Pack(builder), file_identifier=_IDENTIFIER)
    head = builder.Output()
    at = len(head)
    places: list[tuple[int, memoryview]] = []
    for each in weights:
        if each.data is not None:
            # A vector is its length and its elements, and it is these that are aligned.
            at += -(at + 4) % _ALIGNMENT
            field = len(head) - each.field
            struct.pack_into("<I", head, field, at - field)
            places.append((at, each.data))
            at += 4 + len(each.data)
    if at > _LIMIT:
        raise RunnerError(
            f"A variant of the graph would take {at >> 20} MB, more than a .tflite file can have.",
            hint="Test a part of the model, or a smaller one.",
        )
    path.unlink(missing_ok=True)  # a request may hold a link to what was there
    with path.open("wb") as file:
        file.write(head)
        for place, data in places:
            file.write(bytes(place - file.tell()))
            file.write(struct.pack("<I", len(data)))
            file.write(data)


def _light(model: Any, weights: list[_Weights]) -> Any:
    """The model with stand-ins for what is not packed by the library each time."""
    # Copies of a model share what was packed of it: it goes by content, so edits cannot make it wrong.
    tables = vars(model).setdefault("bisect_litert_tables", PackedTables())
    light = copy.copy(model)
    light.buffers, light.subgraphs = weights, []
    for subgraph in model.subgraphs:
        one = copy.copy(subgraph)
        placed: dict[Any, int] = {}
        one.tensors = [_Tensor(tensor, tables, placed) for tensor in subgraph.tensors]
        one.operators = [_Operator(op, tables) for op in subgraph.operators]
        light.subgraphs.append(one)
    return light


def _needed(model: Any) -> set[int]:
    """Indices of the buffers that an op, an output or the metadata refers to."""
    found = {int(entry.buffer) for entry in model.metadata or []}
    for subgraph in model.subgraphs:
        used = {int(t) for op in subgraph.operators for t in (op.inputs if op.inputs is not None else ())}
        used.update(int(t) for op in subgraph.operators for t in (op.outputs if op.outputs is not None else ()))
        used.update(int(t) for t in (*subgraph.inputs, *subgraph.outputs))
        found.update(int(subgraph.tensors[t].buffer) for t in used if t >= 0)
    return found


def _bytes(buffer: Any) -> memoryview | None:
    if buffer.data is None or not len(buffer.data):
        return None
    return np.asarray(buffer.data, np.uint8).data


class _Tensor:
    """Stands in for a TensorT: of several that are alike in everything, one is packed and all refer to it."""

    def __init__(self, tensor: Any, tables: PackedTables, placed: dict[Any, int]) -> None:
        self._tensor, self._tables, self._placed = tensor, tables, placed

    def Pack(self, builder: Any) -> int:
        """Called by the library."""
        key = content(self._tensor)
        if key not in self._placed:
            self._placed[key] = self._tables.tensor(self._tensor, key).place(builder)
        return self._placed[key]


class _Operator:
    """Stands in for an OperatorT."""

    def __init__(self, op: Any, tables: PackedTables) -> None:
        self._op, self._tables = op, tables

    def Pack(self, builder: Any) -> int:
        """Called by the library."""
        return self._tables.operator(self._op).place(builder)


class _Weights:
    """Stands in for a BufferT: packs as a table whose data comes later."""

    def __init__(self, data: memoryview | None) -> None:
        self.data = data
        self.field = 0
        """Where the offset of the data stands, counted from the end of what was packed."""

    def Pack(self, builder: Any) -> int:
        """Called by the library."""
        from flatbuffers import number_types

        builder.StartObject(3)
        if self.data is not None:
            builder.Prep(4, 0)
            builder.Place(0, number_types.UOffsetTFlags)
            builder.Slot(0)
            self.field = builder.Offset()
        return int(builder.EndObject())
