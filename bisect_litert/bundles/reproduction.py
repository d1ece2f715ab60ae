"""What a run keeps of each culprit so that it can be run again without PyTorch: its ops, their inputs, what is right.

`repro/<n>/` holds `model.tflite` (the culprit's ops and the weights they need), the right values of what it reads and
what it should write as .npy, and `repro.json`, which says what to look for. `context.tflite` is the same with the
neighbouring blocks around it, for faults that only their company shows. Nothing here runs anything.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from bisect_litert.graphs.cutting import boundary, compact, constant_bytes, cut, sinks
from bisect_litert.graphs.emulation import allowance
from bisect_litert.graphs.graph import Graph, Op
from bisect_litert.measuring.metrics import FP16_UNIT
from bisect_litert.record import Culprit, Settings
from bisect_litert.vocabulary import NO_CONTROL, Cause

FOLDER, FILE = "repro", "repro.json"
MODEL, CONTEXT = "model.tflite", "context.tflite"
MAX_CULPRITS = 3
"""Culprits beyond these get none: whoever repairs the first ones runs again."""
LIMIT = 64 << 20
"""Bytes of weights and tensors that one culprit may take."""
ON_GPU = (Cause.OVERFLOW, Cause.PRECISION_LOSS, Cause.WRONG_KERNEL)
DEATHS = (Cause.CRASH, Cause.HANG)
BUFFERS = (Cause.ALIASED_OUTPUT, Cause.UNWRITTEN_OUTPUT)
WHOLE = (*DEATHS, *BUFFERS, Cause.TAP_EFFECT)
"""What only the graph as it ships may show, so that the context is all of it."""
GROWN = (*ON_GPU, *DEATHS, Cause.TAP_EFFECT)
"""What may show among a block's neighbours."""
NEIGHBOURS = 2
"""Blocks before the culprit that its context holds."""
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class TensorFile:
    """One tensor beside the model."""

    name: str
    """Of the signature's input or output."""
    file: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpName:
    """One op of a cut, in execution order."""

    index: int
    """In the graph that shipped."""
    type: str


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The content of `repro.json`."""

    block: str
    cause: str
    kind: str
    ops: tuple[OpName, ...]
    guilty: int
    """Index of the guilty op in the graph that shipped; -1 when it was not found."""
    inputs: tuple[TensorFile, ...]
    outputs: tuple[TensorFile, ...]
    """The files hold what is right."""
    tolerance: float
    """Relative L2 error that an honest device stays within."""
    fp32: str
    """What fp32 on the GPU does: "wrong", "right", or "unknown"."""
    reference: str
    """Where the right values come from: "cpu", or "torch" for what the conversion changed."""
    context: tuple[OpName, ...] = ()
    """Ops of context.tflite; empty without one."""
    context_inputs: tuple[TensorFile, ...] = ()
    tapped: str = ""
    """The same graph with more tensors as outputs, which makes it right; empty without one."""
    time_limit: float = 0.0
    """Seconds after which a run counts as hung; each runs in a process of its own then. 0 for faults that let it
    live."""
    predicted: bool = False
    """Whether emulated fp16 stood in for a GPU."""
    accelerator: str = "gpu"
    """"gpu", or "gpu+cpu" where the GPU alone refuses some of it."""
    seen: dict[str, str] = field(default_factory=dict)
    """Of a bundle: versions and GPU it was shrunk with, and what was found."""
    schema: int = SCHEMA

    def save(self, folder: Path) -> None:
        """Writes repro.json."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Reproduction:
        """Reads repro.json.

        Raises:
            OSError: There is none.
            ValueError: It is damaged or of another version.
        """
        data = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"{FILE} has not schema {SCHEMA}")
        try:
            for key in ("inputs", "outputs", "context_inputs"):
                data[key] = tuple(_tensor_file(entry) for entry in data[key])
            for key in ("ops", "context"):
                data[key] = tuple(OpName(int(e["index"]), str(e["type"])) for e in data[key])
            return cls(**{k: v for k, v in data.items() if k in cls.__dataclass_fields__})
        except (TypeError, KeyError) as error:
            raise ValueError(f"{FILE} is damaged: {error}") from None


def _tensor_file(entry: Mapping[str, Any]) -> TensorFile:
    file = Path(str(entry["file"])).name  # never outside its own folder
    return TensorFile(str(entry["name"]), file, str(entry["dtype"]), tuple(int(n) for n in entry["shape"]))


@dataclass(frozen=True)
class Material:
    """What the run knows that a reproduction is made of."""

    graph: Graph
    """The graph that ships."""
    values: Mapping[int, np.ndarray]
    """Every tensor's value on the CPU, in the graph's layout."""
    walls: frozenset[int]
    """The blocks' outputs."""
    ops_of: Callable[[str], Sequence[Op]]
    """The ops of a block."""
    right: Callable[[str], Mapping[int, np.ndarray]]
    """PyTorch's values of a block's outputs, in the graph's layout."""
    settings: Settings
    emulated: bool = False
    """Whether emulated fp16 stood in for a GPU."""


def keep(folder: Path, culprits: Sequence[Culprit], material: Material) -> list[str]:
    """Writes a reproduction of each of the first culprits.

    Args:
        folder: The run folder.
        culprits: In order.
        material: What to make them of.

    Returns:
        A note for each that could not be kept.
    """
    notes = []
    for number, culprit in enumerate(culprits[:MAX_CULPRITS], 1):
        if culprit.cause not in (*ON_GPU, *WHOLE, Cause.CONVERSION):
            continue
        try:
            missing = _keep_one(folder / FOLDER / str(number), culprit, material)
        # Whatever a graph holds that cannot be cut: the verdict that took minutes to find is worth more.
        except Exception as error:
            missing = f"it cannot be cut out and written ({type(error).__name__}: {error})"
        if missing:
            _remove(folder / FOLDER / str(number))
            notes.append(f"No reproduction of {culprit.block} was kept: {missing}.")
    return notes


def _remove(place: Path) -> None:
    """Leaves nothing of a reproduction that came to nothing, so that reports do not point there."""
    shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(OSError):  # others are in it, or it was never made
        place.parent.rmdir()


def folders(folder: Path, culprits: Sequence[Culprit]) -> Iterator[tuple[Path, Culprit]]:
    """Yields where each culprit's reproduction was kept."""
    for number, culprit in enumerate(culprits[:MAX_CULPRITS], 1):
        place = folder / FOLDER / str(number)
        if (place / FILE).is_file():
            yield place, culprit


def _keep_one(folder: Path, culprit: Culprit, material: Material) -> str:
    graph, cause = material.graph, culprit.cause
    inside = {op.index for op in culprit.ops}
    ops = [op for op in graph.ops if op.index in inside] or list(material.ops_of(culprit.block))
    if not ops and cause in WHOLE:
        ops = list(graph.ops)
    if not ops:
        return "none of its ops are known"
    converted = cause is Cause.CONVERSION
    expected = material.right(culprit.block) if converted else material.values
    ends = [t for t in written(graph, ops, cause) if t in expected and t in graph.computed]
    given = fed(graph, ops, ends)
    absent = [graph.tensors[t].name for t in given if t not in material.values]
    if absent or not ends:
        return f"the value of {absent[0]} is not known" if absent else "none of its outputs can be read alone"
    size = constant_bytes(graph, ops) + _bytes(material.values, given) + _bytes(expected, ends)
    if size > LIMIT:
        return f"it would take {size / (1 << 20):.1f} MB, more than {LIMIT >> 20} MB"
    folder.mkdir(parents=True, exist_ok=True)
    made = cut(graph, ops, given, ends)
    compact(made.graph).write(folder / MODEL)
    inputs = _save(folder, made.inputs, material.values)
    outputs = _save(folder, made.outputs, expected, "expected_")
    wider, around = _keep_context(folder, culprit, material, ops, LIMIT - size)
    Reproduction(
        block=culprit.block,
        cause=str(cause),
        kind=culprit.kind,
        ops=_names(op for op in ops if _kept(op, ends, ops)),
        guilty=culprit.op,
        inputs=inputs,
        outputs=outputs,
        tolerance=material.settings.conversion_limit if converted else tolerance(graph, ops, material.settings),
        fp32=_in_fp32(culprit),
        reference="torch" if converted else "cpu",
        context=_names(wider),
        context_inputs=around,
        predicted=material.emulated,
    ).save(folder)
    return ""


def _keep_context(
    folder: Path, culprit: Culprit, material: Material, ops: Sequence[Op], room: int
) -> tuple[list[Op], tuple[TensorFile, ...]]:
    """Writes context.tflite; returns its ops and inputs, none where there is no more of it or no room for it."""
    graph, cause = material.graph, culprit.cause
    whole = cause in WHOLE
    for wider in ([list(graph.ops)] if whole else []) + ([_context(material, ops)] if cause in GROWN else []):
        ends = [t for t in written(graph, wider, cause) if t in graph.computed]
        outside = fed(graph, wider, ends)
        size = constant_bytes(graph, wider) + _bytes(material.values, outside)
        if len(wider) == len(ops) or size > room or any(t not in material.values for t in outside):
            continue
        made = cut(graph, wider, outside, ends)
        compact(made.graph).write(folder / CONTEXT)
        around = _save(folder, made.inputs, material.values)
        return [op for op in wider if _kept(op, made.outputs.values(), wider)], around
    return [], ()


def written(graph: Graph, ops: Sequence[Op], cause: str) -> tuple[int, ...]:
    """Returns the tensors that a cut writes: what none of the ops reads, and where an output of the model lost its
    buffer, those of the model's outputs that the ops write or that are its own inputs, as often as it returns them."""
    ends = sinks(ops)
    if cause not in BUFFERS:
        return ends
    known = {t for op in ops for t in op.outputs} | {port.tensor for port in graph.inputs}
    returned = [port.tensor for port in graph.outputs if port.tensor in known]
    return (*(t for t in ends if t not in returned), *returned)


def fed(graph: Graph, ops: Sequence[Op], ends: Sequence[int]) -> tuple[int, ...]:
    """Returns the tensors that a cut is given: what the ops read and do not write, and what is only handed on."""
    read, made = boundary(graph, ops), {t for op in ops for t in op.outputs}
    return tuple(dict.fromkeys((*read, *(t for t in ends if t not in made))))


def tolerance(graph: Graph, ops: Sequence[Op], settings: Settings) -> float:
    """Relative L2 error that an honest fp16 device stays within on these ops, at inputs that fp16 holds exactly."""
    room = min(2 * allowance(graph, ops) * FP16_UNIT, settings.output_limit)
    limit = max(settings.ratio_limit * FP16_UNIT, room)
    return limit if isfinite(limit) else settings.output_limit


def _context(material: Material, ops: Sequence[Op]) -> list[Op]:
    """The ops, those of the blocks right before them, and those that follow up to the next blocks' outputs."""
    graph = material.graph
    found = {op.index: op for op in ops}
    for _ in range(NEIGHBOURS):
        edge = boundary(graph, [found[i] for i in sorted(found)])
        found.update({op.index: op for op in graph.inside(edge, material.walls)})
    todo = [t for op in ops for t in op.outputs]
    seen: set[int] = set()
    while todo:
        for op in graph.consumers.get(todo.pop(), ()):
            if op.index in seen or op.index in found:
                continue
            seen.add(op.index)
            todo += [t for t in op.outputs if t not in material.walls]
    found.update({i: graph.ops[i] for i in seen})
    return [found[i] for i in sorted(found)]


def _kept(op: Op, outputs: Any, ops: Sequence[Op]) -> bool:
    """Whether a cut keeps an op: some output needs it."""
    needed = set(outputs)
    for other in reversed(ops):
        if needed.intersection(other.outputs):
            if other.index == op.index:
                return True
            needed.update(other.inputs)
    return False


def _names(ops: Any) -> tuple[OpName, ...]:
    return tuple(OpName(op.index, op.type) for op in ops)


def _bytes(values: Mapping[int, np.ndarray], tensors: Sequence[int]) -> int:
    return sum(values[t].nbytes for t in tensors if t in values)


def _in_fp32(culprit: Culprit) -> str:
    if culprit.cause in (*WHOLE, Cause.CONVERSION) or culprit.kind == NO_CONTROL:
        return "unknown"
    return "wrong" if culprit.cause is Cause.WRONG_KERNEL else "right"


def _save(
    folder: Path, ports: Mapping[str, int], values: Mapping[int, np.ndarray], prefix: str = ""
) -> tuple[TensorFile, ...]:
    found = []
    for name, t in ports.items():
        array = np.ascontiguousarray(values[t])
        np.save(folder / f"{prefix}{name}.npy", array, allow_pickle=False)
        found.append(TensorFile(name, f"{prefix}{name}.npy", array.dtype.name, array.shape))
    return tuple(found)
