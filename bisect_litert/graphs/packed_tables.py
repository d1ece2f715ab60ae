"""Tables of a flatbuffer as bytes: a table that was packed once is put into the next file without being packed again.

All that a table refers to stands beside it and by relative offsets, so its bytes mean the same wherever they are, if
only the alignment is kept. Ops that differ in nothing but the tensors they read and write share one pattern.
"""

from __future__ import annotations

import copy
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

_MOST = 1 << 15
"""Tables that are kept; those of a large graph take 20 MB."""
_ALIGNMENT = 8
"""Largest of any field in these tables; only weights, which are not among them, want more."""
_MARK = 0x5A5A0001
"""Stands for the first tensor index of a pattern."""
_PLAIN = frozenset((int, bool, str, bytes, type(None)))


@dataclass(frozen=True, slots=True)
class Packed:
    """A table and what it refers to."""

    data: bytes
    root: int
    """Where the table starts, counted from the end of the data."""

    def place(self, builder: Any) -> int:
        """Puts the bytes into a builder and returns the table's offset there."""
        builder.Prep(_ALIGNMENT, 0)
        before = builder.Offset()
        builder.Prep(1, len(self.data))  # makes room
        builder.head -= len(self.data)
        builder.Bytes[builder.head : builder.head + len(self.data)] = self.data
        return int(before + self.root)


@dataclass(frozen=True, slots=True)
class _Pattern:
    """An op's table with places for tensor indices."""

    packed: Packed
    inputs: int
    """Where they start in the data."""
    outputs: int


class PackedTables:
    """What was packed of one model and of the models edited from it; everything goes by content."""

    def __init__(self) -> None:
        self._tables: dict[Any, Packed] = {}
        self._patterns: dict[Any, _Pattern | None] = {}

    def tensor(self, tensor: Any, key: Any) -> Packed:
        """Packs a TensorT, whose `content` is `key`, or returns it as it was packed before."""
        found = self._tables.get(key)
        if found is None:
            found = _pack(tensor)
            if len(self._tables) < _MOST:
                self._tables[key] = found
        return found

    def operator(self, op: Any) -> Packed:
        """Packs an OperatorT by the pattern of its kind."""
        inputs, outputs = _indices(op.inputs), _indices(op.outputs)
        bare = dict(vars(op))
        del bare["inputs"], bare["outputs"]
        key = (len(inputs), len(outputs), tuple([v if type(v) in _PLAIN else content(v) for v in bare.values()]))
        if key not in self._patterns:
            self._patterns[key] = _pattern(op, len(inputs), len(outputs))
        pattern = self._patterns[key]
        if pattern is None:
            return _pack(op)
        data = bytearray(pattern.packed.data)
        struct.pack_into(f"<{len(inputs)}i", data, pattern.inputs, *inputs)
        struct.pack_into(f"<{len(outputs)}i", data, pattern.outputs, *outputs)
        return Packed(bytes(data), pattern.packed.root)


def content(value: Any) -> Any:
    """Returns what tells a value of the schema from others, fit for a key."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return tuple([content(item) for item in value])
    if isinstance(value, (float, np.generic)):
        return repr(value)  # 0.0 and -0.0 are one key, and two numbers
    return type(value), tuple([v if type(v) in _PLAIN else content(v) for v in vars(value).values()])


def _indices(values: Any) -> list[int]:
    return [int(v) for v in values] if values is not None else []


def _pack(table: Any) -> Packed:
    import flatbuffers

    builder = flatbuffers.Builder(256)
    root = int(table.Pack(builder))
    builder.Prep(_ALIGNMENT, 0)  # so that what is put in front of it starts aligned
    return Packed(bytes(builder.Bytes[builder.Head() :]), root)


def _pattern(op: Any, inputs: int, outputs: int) -> _Pattern | None:
    """Packs an op with marks for tensor indices; None where they cannot be told from the rest."""
    marks = list(range(_MARK, _MARK + inputs)), list(range(_MARK + inputs, _MARK + inputs + outputs))
    marked = copy.copy(op)
    marked.inputs, marked.outputs = marks
    packed = _pack(marked)
    wanted = [struct.pack(f"<{len(part)}i", *part) for part in marks]
    if any(part and packed.data.count(part) != 1 for part in wanted):
        return None
    return _Pattern(packed, packed.data.find(wanted[0]), packed.data.find(wanted[1]))
