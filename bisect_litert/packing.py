"""Writes .tflite files fast: the library packs the graph, the weights go from where they are straight to the disk.

A run writes some ten variants of one graph, and packed by the library alone each of them copies all weights three times
in memory. Here the weights stand behind everything else in the file, which the format allows: what refers to them is
an offset, filled in once it is known. Weights that no op reads are left out; a graph cut down to one block is small.
"""

from __future__ import annotations

import copy
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bisect_litert.errors import RunnerError

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
    light = copy.copy(model)
    light.buffers, light.subgraphs = weights, []
    for subgraph in model.subgraphs:
        light.subgraphs.append(copy.copy(subgraph))
        seen: dict[tuple[Any, ...], int] = {}
        light.subgraphs[-1].tensors = [_Tensor(tensor, seen) for tensor in subgraph.tensors]
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(light.Pack(builder), file_identifier=_IDENTIFIER)
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
    with path.open("wb") as file:
        file.write(head)
        for place, data in places:
            file.write(bytes(place - file.tell()))
            file.write(struct.pack("<I", len(data)))
            file.write(data)


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

    def __init__(self, tensor: Any, seen: dict[tuple[Any, ...], int]) -> None:
        self._tensor, self._seen = tensor, seen

    def Pack(self, builder: Any) -> int:
        """Called by the library."""
        key = tuple(_hashable(value) for value in vars(self._tensor).values())
        if key not in self._seen:
            self._seen[key] = self._tensor.Pack(builder)
        return self._seen[key]


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, np.ndarray)):
        return tuple(value)
    return value if isinstance(value, (bytes, str, int, type(None))) else id(value)


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
