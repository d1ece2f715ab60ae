"""A .tflite file as somebody ships it becomes a graph fit to test: one signature, its subgraph first, sizes fixed.

None of this touches an op. Signatures that are not tested go, and with them the subgraphs only they use; a file without
any gets one that spells its inputs and outputs; sizes left open (-1) are those the file gives as their value.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisect_litert.errors import ModelFileError, UsageError
from bisect_litert.graphs.graph import Graph

SUFFIX = ".tflite"
DEFAULT_SIGNATURE = "serving_default"
_MAGIC = b"TFL3"
_CALLS = (
    "bodySubgraphIndex",
    "condSubgraphIndex",
    "thenSubgraphIndex",
    "elseSubgraphIndex",
    "initSubgraphIndex",
    "comparatorSubgraphIndex",
    "decompositionSubgraphIndex",
    "subgraph",
)
"""Fields of op options that name another subgraph."""


@dataclass(frozen=True)
class ShippedFile:
    """What was read."""

    graph: Graph
    notes: tuple[str, ...] = ()
    """What was chosen, in sentences."""


def is_tflite(path: Path) -> bool:
    """Whether a path is a .tflite file, by its name or its first bytes."""
    if path.suffix == SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            return file.read(8)[4:] == _MAGIC
    except OSError:
        return False


def read(path: Path, signature: str = "") -> ShippedFile:
    """Reads a file.

    Args:
        path: The .tflite file.
        signature: Which signature to test; none means the default one, or the first.

    Raises:
        ModelFileError: There is no such file, or it is damaged.
        UsageError: It has no signature of that name.
    """
    model = _parse(path)
    notes: list[str] = []
    chosen = _choose(model, signature, path.name, notes)
    model = _only(model, int(chosen.subgraphIndex) if chosen is not None else 0, chosen)
    if chosen is None:
        model.signatureDefs = [_spelled_out(Graph(model))]
    _fix_sizes(model, notes)
    graph = Graph(model)
    graph.file = path
    return ShippedFile(graph, tuple(notes))


def _parse(path: Path) -> Any:
    from ai_edge_litert.tools import flatbuffer_utils

    try:
        with path.open("rb") as file:
            start = file.read(8)
    except FileNotFoundError:
        raise ModelFileError(f"There is no file {path}.", hint="Give the path of a .tflite file.") from None
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}.", hint="Give a .tflite file.") from None
    if start[4:] != _MAGIC:
        raise ModelFileError(
            f"{path.name} is not a .tflite file: it does not start as one.",
            hint="Give a file that a converter wrote; a download may have left a web page in its place.",
        )
    try:
        model = flatbuffer_utils.read_model(str(path))
        if not model.subgraphs:
            raise ValueError("it holds no graph")
    except Exception as error:  # the generated reader raises whatever a damaged offset leads to
        raise ModelFileError(
            f"{path.name} is damaged: {type(error).__name__}: {error}.", hint="Convert or download it again."
        ) from None
    return model


def _choose(model: Any, wanted: str, file: str, notes: list[str]) -> Any:
    by_name = {_text(s.signatureKey): s for s in model.signatureDefs or []}
    if wanted and wanted not in by_name:
        has = f"it has {', '.join(by_name)}" if by_name else "it has none"
        hint = "Give one of those to --signature." if by_name else "Leave --signature out."
        raise UsageError(f"{file} has no signature {wanted!r}: {has}.", hint=hint)
    if not by_name:
        return None
    name = wanted or (DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in by_name else next(iter(by_name)))
    if len(by_name) > 1 and not wanted:
        notes.append(f"The file has the signatures {', '.join(by_name)}; {name} is tested (--signature picks another).")
    return by_name[name]


def _only(model: Any, first: int, signature: Any) -> Any:
    """A copy of the model with one signature and the subgraphs it reaches, its own first."""
    place = {old: new for new, old in enumerate(_reached(model, first))}
    made = copy.copy(model)
    made.subgraphs = []
    for old in place:
        subgraph = copy.copy(model.subgraphs[old])
        subgraph.operators = [_moved(op, place) for op in subgraph.operators]
        made.subgraphs.append(subgraph)
    made.signatureDefs = []
    if signature is not None:
        signature = copy.copy(signature)
        signature.subgraphIndex = 0
        made.signatureDefs = [signature]
    return made


def _reached(model: Any, first: int) -> list[int]:
    found, todo = [first], [first]
    while todo:
        for op in model.subgraphs[todo.pop()].operators:
            for index in _calls(op).values():
                if index not in found:
                    found.append(index)
                    todo.append(index)
    return found


def _calls(op: Any) -> dict[str, int]:
    """The subgraphs an op names, by field; it may keep its options in either of two places."""
    found = {}
    for options in (op.builtinOptions, getattr(op, "builtinOptions2", None)):
        for name in _CALLS:
            index = getattr(options, name, None)
            if isinstance(index, int) and index >= 0:
                found[name] = index
    return found


def _moved(op: Any, place: Mapping[int, int]) -> Any:
    if not _calls(op):
        return op
    op = copy.copy(op)
    for holder in ("builtinOptions", "builtinOptions2"):
        options = copy.copy(getattr(op, holder, None))
        for name in _CALLS:
            index = getattr(options, name, None)
            if isinstance(index, int) and index >= 0:
                setattr(options, name, place[index])
        if options is not None:
            setattr(op, holder, options)
    return op


def _spelled_out(graph: Graph) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = DEFAULT_SIGNATURE.encode(), 0
    signature.inputs, signature.outputs = _ports(graph.inputs), _ports(graph.outputs)
    return signature


def _ports(ports: Iterable[Any]) -> list[Any]:
    from ai_edge_litert import schema_py_generated as schema

    found: list[Any] = []
    used: set[str] = set()
    for port in ports:
        made = schema.TensorMapT()
        name = port.name or f"tensor_{port.tensor}"
        made.name, made.tensorIndex = (f"{name}_{port.tensor}" if name in used else name).encode(), port.tensor
        used.add(name)
        found.append(made)
    return found


def _fix_sizes(model: Any, notes: list[str]) -> None:
    subgraph = model.subgraphs[0]
    inputs = {int(t) for t in subgraph.inputs}
    tensors = []
    for index, tensor in enumerate(subgraph.tensors):
        signature = tensor.shapeSignature
        if signature is not None and any(int(n) < 0 for n in signature):
            if index in inputs:
                sizes = "x".join(str(int(n)) for n in tensor.shape)
                notes.append(f"The input {_text(tensor.name)} leaves sizes open; the file is tested at {sizes}.")
            tensor = copy.copy(tensor)
            tensor.shapeSignature = None
        tensors.append(tensor)
    subgraph.tensors = tensors


def _text(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name or "")
