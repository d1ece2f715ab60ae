"""Inputs for a .tflite file: from an .npz by name or position, else drawn by dtype from a seed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bisect_litert.errors import InputsError, UnfitReferenceError
from bisect_litert.graphs.graph import Graph, Port, Tensor
from bisect_litert.models.input_overrides import read_arrays

NUMPY = {
    "FLOAT32": np.float32,
    "FLOAT16": np.float16,
    "FLOAT64": np.float64,
    "INT64": np.int64,
    "INT32": np.int32,
    "INT16": np.int16,
    "INT8": np.int8,
    "UINT32": np.uint32,
    "UINT16": np.uint16,
    "UINT8": np.uint8,
    "UINT64": np.uint64,
    "BOOL": np.bool_,
}
"""numpy's type by TensorFlow Lite's name."""
_LOOKUPS = {"GATHER": (1, 0), "EMBEDDING_LOOKUP": (0, 1)}
"""Ops that look rows up: where their indices and their table stand among the inputs."""
_KEEPS_INDICES = (
    "RESHAPE",
    "CAST",
    "EXPAND_DIMS",
    "SQUEEZE",
    "SLICE",
    "STRIDED_SLICE",
    "TRANSPOSE",
    "CONCATENATION",
    "PACK",
    "UNPACK",
    "SPLIT",
    "TILE",
    "BROADCAST_TO",
    "SELECT",
    "SELECT_V2",
    "MINIMUM",
    "MAXIMUM",
    "ADD",
)


def make_inputs(
    graph: Graph, file: Path | None, seed: int, int_high: int | None
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Returns every input's value by its signature name, and notes on what was drawn.

    Args:
        graph: The file's graph.
        file: An .npz or .npy; inputs it does not name are drawn.
        seed: For what is drawn: normal floats, integers below `int_high`, bools.
        int_high: None means the smallest table that an input looks rows up in, else 2.

    Raises:
        InputsError: The file cannot be read, or holds what is no input, or what does not fit it.
        UnfitReferenceError: It holds NaN or +inf, as for a model in PyTorch.
    """
    given = _given(graph, read_arrays(file), file.name) if file is not None else {}
    rng = np.random.default_rng(seed)
    values: dict[str, np.ndarray] = {}
    drawn: list[str] = []
    for port in graph.inputs:
        tensor = graph.tensors[port.tensor]
        if tensor.dtype not in NUMPY:
            raise InputsError(
                f"The input {port.name} is {tensor.dtype}, which cannot be tested.",
                hint="Test the part of the model behind it.",
            )
        value, how = _draw(graph, tensor, rng, int_high)  # drawn in any case, so that the others do not depend on it
        if port.name in given:
            values[port.name] = given[port.name]
        else:
            values[port.name] = value
            drawn.append(f"{port.name} {how}")
    notes = (f"Inputs were drawn with seed {seed}: {'; '.join(drawn)}.",) if drawn else ()
    return values, notes


def _draw(graph: Graph, tensor: Tensor, rng: np.random.Generator, int_high: int | None) -> tuple[np.ndarray, str]:
    dtype: np.dtype[Any] = np.dtype(NUMPY[tensor.dtype])
    if dtype.kind == "f":
        return rng.standard_normal(tensor.shape).astype(dtype), "normal"
    if tensor.quantisation is not None:
        limits = np.iinfo(dtype)
        bottom, top = (tensor.real(np.full(tensor.shape, end, dtype)) for end in (limits.min, limits.max))
        value = (bottom + top) / 2 + rng.standard_normal(tensor.shape) * (top - bottom) / 6
        return tensor.stored(value.astype(np.float32)), "normal over its range"
    if dtype.kind == "b":
        return rng.integers(0, 2, tensor.shape).astype(bool), "true or false"
    high = int_high if int_high is not None else smallest_table(graph, tensor.index) or 2
    high = min(high, int(np.iinfo(dtype).max) + 1)
    return rng.integers(0, high, tensor.shape).astype(dtype), f"0 to {high - 1}"


def smallest_table(graph: Graph, t: int) -> int | None:
    """Returns the number of rows of the smallest table that rows are looked up in with tensor `t`; None without any."""
    found: list[int] = []
    todo, seen = [t], {t}
    while todo:
        at = todo.pop()
        for op in graph.consumers.get(at, ()):
            place = _LOOKUPS.get(op.type)
            if place is not None and len(op.inputs) > max(place) and op.inputs[place[0]] == at:
                table = graph.tensors[op.inputs[place[1]]].shape
                axis = int(graph.option(op, "axis") or 0) if op.type == "GATHER" else 0
                if table:
                    found.append(table[axis])
            elif op.type in _KEEPS_INDICES:
                todo += [o for o in op.outputs if o not in seen]
                seen.update(op.outputs)
    return min(found, default=None)


def _given(graph: Graph, arrays: Mapping[str, np.ndarray], file: str) -> dict[str, np.ndarray]:
    ports = graph.inputs
    by_name = {port.name: port for port in ports}
    by_tensor = {graph.tensors[port.tensor].name: port for port in ports}
    found: dict[str, np.ndarray] = {}
    for key, array in arrays.items():
        match = re.fullmatch(r"(?:arr_)?(\d+)", key)
        port = by_name.get(key) or by_tensor.get(key)
        if port is None and match and int(match[1]) < len(ports):
            port = ports[int(match[1])]
        if port is None:
            near = difflib.get_close_matches(key, by_name, n=1)
            hint = f"Nearest: {near[0]}. " if near else ""
            raise InputsError(
                f"{file} holds {key!r}, which is no input of the file.",
                hint=f"{hint}Name arrays after its inputs ({', '.join(by_name)}) or by position (0, 1, ...).",
            )
        found[port.name] = _fitted(array, port, graph.tensors[port.tensor])
    return found


def _fitted(array: np.ndarray, port: Port, tensor: Tensor) -> np.ndarray:
    dtype = np.dtype(NUMPY.get(tensor.dtype, np.float32))
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    if array.size != tensor.size or _long(array.shape) != _long(tensor.shape):
        raise InputsError(
            f"The array for {port.name} has shape {'x'.join(map(str, array.shape)) or 'scalar'}; it takes {shape}.",
            hint="Save it with the file's own shape and order of axes.",
        )
    if array.dtype.kind == "f":
        for word, bad in (("NaN", np.isnan(array)), ("infinity", np.isposinf(array))):
            if bad.any():
                raise UnfitReferenceError(
                    f"The input {port.name} holds {word} ({int(bad.sum())} of {bad.size} elements).",
                    hint="Give finite inputs (only -inf, as in attention masks, is taken).",
                )
        array = tensor.stored(array.reshape(tensor.shape))
    made = array.astype(dtype, copy=False).reshape(tensor.shape)
    if dtype.kind != "f" and not np.array_equal(made.reshape(-1), array.reshape(-1)):
        raise InputsError(
            f"The array for {port.name} is {array.dtype} and holds values that {dtype} cannot.",
            hint=f"Save it as {dtype}.",
        )
    return np.ascontiguousarray(made)


def _long(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)
