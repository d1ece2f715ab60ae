"""The words of a record: causes, runs, marks, and the other things that have a fixed set of names."""

from __future__ import annotations

from enum import Enum

PYTORCH, LITERT_CPU = "PyTorch", "LiteRT CPU"
"""The references a run can have."""
NO_CONTROL = "no fp32 control"
"""Sub-kind of a wrong kernel that no run in fp32 on the GPU confirms, since the runtime has none to offer."""
OTHER_WEIGHTS = "other weights"
"""Sub-kind of a conversion that is none: the file was made of another checkpoint."""


class Word(str, Enum):
    """A string enum that prints as its value (enum.StrEnum needs Python 3.11)."""

    __str__ = str.__str__


class Cause(Word):
    """Why the target differs from the reference (docs/verdicts.md)."""

    NONE = "none"
    OVERFLOW = "overflow"
    PRECISION_COMPOUNDING = "precision-compounding"
    PRECISION_LOSS = "precision-loss"
    WRONG_KERNEL = "wrong-kernel"
    CONVERSION = "conversion"
    TAP_EFFECT = "tap-effect"
    ALIASED_OUTPUT = "aliased-output"
    UNWRITTEN_OUTPUT = "unwritten-output"
    REJECTED = "rejected"
    CPU_FALLBACK = "cpu-fallback"
    CRASH = "crash"
    HANG = "hang"
    REFERENCE = "reference"
    CANNOT_TEST = "cannot-test"


class RunName(Word):
    """The evaluations of one graph on one set of inputs."""

    TORCH = "torch"
    CPU = "cpu"
    FP16 = "fp16"
    GPU = "gpu"
    GPU_FP32 = "gpu-fp32"


class Mark(Word):
    """One word per block for tables."""

    OK = "ok"
    CULPRIT = "culprit"
    AFTER = "after"
    """In line at its own inputs, or once the culprits before it are healed: what is off was handed to it."""
    NOTE = "note"
    """Out of line, but no model output suffers."""
    UNTAPPED = "untapped"
    UNKNOWN = "unknown"
    """Not measured, or only at inputs on the target that were wrong, non-finite or missing, so nothing can be said of
    the block itself."""


class Residency(Word):
    """Where a block's ops ran."""

    GPU = "gpu"
    CPU = "cpu"
    MIXED = "mixed"
    UNKNOWN = "unknown"
    EMULATED = "emulated"


class TapOrigin(Word):
    """Where a tap's tensor was found."""

    GRAPH = "graph"
    """A tensor of the converted graph, proved by value."""
    REEXPORT = "reexport"
    """Added as an output in PyTorch, in a second conversion."""
    INPUT = "input"
    """The block hands on a graph input; there is nothing to compute or to tap."""
    CONSTANT = "constant"
    """The value does not depend on the inputs; the converter folded it."""
    NONE = "none"
