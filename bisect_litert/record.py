"""The nouns: what a run found, as frozen dataclasses that are written once and read by every report.

`RunRecord` is the root; `run.json` is its JSON form (docs/run-json.md). Floats that JSON cannot hold are written as the
strings "NaN", "Infinity" and "-Infinity", so that the file stays valid and a NaN stays visible.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
RUN_FILE = "run.json"
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


@dataclass(frozen=True, slots=True)
class Comparison:
    """A target tensor against a reference tensor of the same shape; counts are elements."""

    elements: int
    relative_l2: float
    """||target - reference|| / ||reference||, over elements finite on both sides; inf where the reference is all zero
    and the target is not; nan when nothing is left to compare. Of integers and booleans, which stand for themselves,
    the share that differs."""
    correlation: float
    """Pearson correlation over elements finite on both sides; nan when either side is constant."""
    snr_db: float
    """10 * log10(reference power / error power), in dB; inf when equal, nan when nothing is left to compare."""
    scale: float
    """Least-squares factor: target ~ scale * reference; nan for an all-zero reference."""
    max_abs_error: float
    reference_peak: float
    """Largest finite |reference|."""
    target_peak: float
    nonfinite: int
    """NaN or infinite in the target."""
    new_nonfinite: int
    """NaN or infinite in the target where the reference is finite, or something else non-finite where it is not."""
    reference_nonfinite: int
    zeros: int
    """Exactly zero in the target."""
    new_zeros: int
    """Exactly zero in the target where |reference| is above a tenth of its root mean square."""
    saturated: int
    """|target| at the fp16 limit 65504, or infinite, where |reference| is not."""
    unwritten: int = 0
    """Elements that still hold the sentinel the output buffer was filled with."""
    terms: float = 0.0
    """Where the reference is fp32 noise, the 2-norm of the terms that cancel, which the error is relative to; else 0.
    Correlation and scale are nan then and zeros are not new."""

    @property
    def finite_agreement(self) -> bool:
        """Whether every element the reference has finite is finite in the target."""
        return self.new_nonfinite == 0 and self.unwritten == 0


@dataclass(frozen=True, slots=True)
class TapInfo:
    """One tensor of a block's output."""

    label: str
    """Path inside the block's return value: "" for a plain tensor, "[1]", ".hidden", ["key"]."""
    origin: TapOrigin
    tensor: str
    """Name of the tensor in the .tflite file; empty when there is none."""
    shape: tuple[int, ...]
    """As PyTorch returns it."""
    dtype: str
    layout: str = ""
    """How the .tflite tensor maps to PyTorch's: "" as is, "reshape", or "permute 0,2,3,1"."""
    reference_file: str = ""
    """The reference tensor as .npy, relative to the run folder; empty when it was not kept."""
    target_file: str = ""
    """The target's tensor likewise, in PyTorch's shape."""


@dataclass(frozen=True, slots=True)
class RunErrors:
    """One run at one block: worst tensor of the block's output by relative L2 error."""

    cumulative: Comparison | None
    """Against torch."""
    local: Comparison | None
    """Against torch computing this block from the run's own tensors (teacher forcing)."""


@dataclass(frozen=True, slots=True)
class RangeInfo:
    """What fp16's range means to one block, from torch alone (docs/prediction.md); each place is "op, model.py:41"."""

    peak: float
    """Largest finite |value| of its operators' results."""
    peak_at: str
    headroom: float
    """65504 / peak."""
    largest_sum: float
    """Largest sum of magnitudes that one operator adds up; 0 when nothing is summed."""
    sum_at: str
    largest_squares: float
    """The same for sums of squares."""
    squares_at: str
    smallest: float
    """Smallest |value| above 0 that fp16 holds as 0; nan when there is none."""
    smallest_at: str
    half: float
    """Relative L2 error of its outputs with every result rounded to fp16; inf when they are not finite."""
    significand: float
    """The same with fp16's 11 significant bits and no end of the range."""
    leaves_range: bool


@dataclass(frozen=True, slots=True)
class BlockResult:
    """One call of one block, in execution order."""

    name: str
    """Module path, with "@2" for a second call; "(output)" for what follows the last block."""
    module: str
    class_name: str
    call: int
    order: int
    taps: tuple[TapInfo, ...]
    ops: int
    """How many ops of the graph lie between this block's inputs and its outputs."""
    residency: Residency
    mark: Mark
    cause: Cause
    """Set on culprits and notes; none otherwise."""
    errors: dict[RunName, RunErrors]
    expected: float
    """Local relative L2 error that rounding every tensor to fp16's 11 significant bits costs; nan if unknown."""
    allowance: float
    """Factor on `expected` for fp16 accumulation over the longest sum in the block, at least 1."""
    ratio: float
    """Target's local relative L2 error / max(expected, half an fp16 unit); nan if unknown."""
    amplification: float
    """Cumulative error after the block / largest cumulative error of its inputs (or half an fp16 unit); nan if
    unknown."""
    ranges: RangeInfo | None = None
    """What fp16's range means to it, from torch alone; None when it was not predicted."""

    @property
    def reference_peak(self) -> float:
        """Largest finite |reference| over the block's outputs, nan when untapped."""
        known = [e.cumulative for e in self.errors.values() if e.cumulative]
        return known[0].reference_peak if known else nan


@dataclass(frozen=True, slots=True)
class OpResult:
    """One op of a culprit block, at the target's own inputs."""

    index: int
    """Position in the .tflite file's main graph."""
    type: str
    """TensorFlow Lite's name, "SQUARED_DIFFERENCE"."""
    tensor: str
    """Name of the tensor it writes."""
    shape: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]
    """Shapes of what it reads, constants included."""
    module: str
    """Deepest module it comes from; empty when the name does not tell."""
    source: str
    """"model.py:41", the user's line it comes from; empty when unknown."""
    code: str
    """That line's text."""
    local: Comparison | None
    """The target's result against the CPU's at the target's own operands; None when it was not read."""
    reference_peak: float
    """Largest finite |value| in fp32."""
    accumulated: float
    """Bound on the partial sums inside it, 0 for an op that sums nothing."""
    contribution: float
    """Relative L2 error of the block's output when only this op's result is rounded to 11 bits; nan when not
    measured."""
    mark: Mark


@dataclass(frozen=True, slots=True)
class Culprit:
    """A block that is wrong at its own inputs, or ruins the digits it is given."""

    block: str
    cause: Cause
    kind: str
    """Named sub-kind such as "underflow", else empty."""
    evidence: tuple[str, ...]
    """Sentences with the numbers that decided it, strongest first."""
    advice: str
    """What to try next."""
    hidden: bool = False
    """True when it shows only once the culprits before it are healed."""
    op: int = -1
    """Index of the guilty op (see `ops`); -1 when it was not found."""
    region: tuple[int, ...] = ()
    """First and last op of a fused region that is wrong only as a whole; empty otherwise."""
    operator: str = ""
    """PyTorch's operator, "aten.upsample_nearest2d.vec", for what the conversion changed; empty otherwise."""
    module: str = ""
    """Deepest module that owns the op."""
    source: str = ""
    """"model.py:41", the user's line the op comes from."""
    code: str = ""
    """That line and its neighbours, one numbered line each; the line itself starts with ">"."""
    ops: tuple[OpResult, ...] = ()
    """The block's ops in execution order."""
    proof: tuple[str, ...] = ()
    """What control runs showed with the culprit kept off the GPU."""
    confidence: str = ""
    """"high", "medium" or "low"."""
    confidence_reason: str = ""
    """Which independent readings agree, and the one that would raise it."""
    upstream: str = ""
    """Known upstream issue, "google-ai-edge/LiteRT#8593", with the versions it was seen in."""
    local: float = nan
    """Local relative L2 error that made it one: where it is hidden, with the culprits before it healed; inf when
    something is not finite, nan when it was not measured."""
    ratio: float = nan
    """That error / expected."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run comes to."""

    cause: Cause
    diverged: bool
    summary: str
    """Two or three sentences a person can act on."""
    next_step: str
    notes: tuple[str, ...] = ()
    """Findings that do not decide: refused ops, hidden ranges, blocks that could not be tapped."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """How one run went."""

    name: str
    status: str
    """"ok", "failed", "crashed", "timed out", "skipped" or "not needed"."""
    seconds: float
    detail: str = ""
    log: str = ""
    """Log file, relative to the run folder."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An op type the delegate refused, with its own words."""

    op: str
    reason: str
    count: int
    """Ops of the graph that the reason fits."""
    blocks: tuple[str, ...] = ()
    advice: str = ""
    """What to write instead; empty when nothing is known."""
    upstream: str = ""
    """Known upstream issue."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What ran where, read from the delegate's log."""

    adapter: str
    """The adapter line's name; empty when no GPU was used."""
    gpu_ops: int
    """-1 when it is not known, as on a device whose log was not brought back."""
    cpu_ops: int
    line: str
    """The delegate's own sentence, or ours when it printed none."""
    refusals: tuple[Refusal, ...] = ()
    validation_errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InputInfo:
    """One input tensor of the model."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    minimum: float
    maximum: float


@dataclass(frozen=True, slots=True)
class Settings:
    """The thresholds a verdict was made with (docs/thresholds.md says where each comes from)."""

    ratio_limit: float = 10.0
    output_limit: float = 1e-2
    jump_limit: float = 10.0
    conversion_limit: float = 1e-4
    seed: int = 0
    blocks: tuple[str, ...] = ()
    strict: bool = False
    tap: str = "auto"
    inputs: str = ""
    """Name of the .npz that replaced the model file's inputs, without its folder; empty when none did."""
    no_gpu: bool = False
    """A run on the CPU was asked for: emulated fp16, or with `fp32` the file as it is."""
    fp32: bool = False
    """Judged in fp32 arithmetic."""
    tflite: str = ""
    """Name of the .tflite file that was held beside the model, without its folder; empty when the model was
    converted."""
    signature: str = ""
    """Of a .tflite file, if one was asked for."""
    int_high: int | None = None
    """Bound of drawn integers, if one was asked for."""


@dataclass(frozen=True, slots=True)
class OutputResult:
    """One output of the model itself, target against torch."""

    name: str
    comparison: Comparison | None
    untapped: Comparison | None = None
    """The same without any taps."""
    expected: float = nan
    """Cumulative relative L2 error of the rounding-only run."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """The .tflite file as it ships."""

    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal."""

    @classmethod
    def of(cls, path: Path) -> Artefact:
        """Reads a file's size and hash."""
        from hashlib import sha256

        found, size = sha256(), 0
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                found.update(part)
                size += len(part)
        return cls(size, found.hexdigest())


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Everything a run found."""

    model: str
    target: str
    """"gpu", "gpu-fp32", "emulated fp16, no GPU", or "cpu, no GPU"."""
    verdict: Verdict
    culprits: tuple[Culprit, ...]
    blocks: tuple[BlockResult, ...]
    outputs: tuple[OutputResult, ...]
    runs: tuple[RunInfo, ...]
    inputs: tuple[InputInfo, ...]
    placement: Placement
    environment: dict[str, str]
    """Versions and platform, in reading order."""
    settings: Settings
    seconds: float
    started: str
    """UTC, ISO 8601."""
    schema: int = SCHEMA_VERSION
    files: dict[str, str] = field(default_factory=dict)
    """What else the run folder holds, relative paths."""
    artefact: Artefact | None = None
    """The file that was tested; None when the run did not get that far."""
    reference: str = PYTORCH
    """What blocks are held against: "PyTorch" or "LiteRT CPU"."""
    definition: Artefact | None = None
    """The Python file that defines the model; None where there is none."""

    @property
    def judged(self) -> RunName:
        """The run under test."""
        return _JUDGED.get(self.target, RunName.FP16)

    def to_json(self) -> str:
        """Returns the record as strictly valid JSON."""
        return json.dumps(json_converter().unstructure(self), indent=1, allow_nan=False) + "\n"

    def save(self, folder: Path) -> Path:
        """Writes run.json into `folder` and returns its path.

        Raises:
            OSError: The folder cannot be written.
        """
        path = folder / RUN_FILE
        partial = path.with_suffix(".partial")
        partial.write_text(self.to_json(), encoding="utf-8")
        return partial.replace(path)

    @classmethod
    def load(cls, folder: Path) -> RunRecord:
        """Reads a run folder.

        Raises:
            RunFolderError: No run.json, one that is damaged, or one of another schema version.
        """
        from bisect_litert.errors import RunFolderError

        path = folder / RUN_FILE if folder.is_dir() else folder
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunFolderError(
                f"{folder} is not a run folder: it has no {RUN_FILE}.",
                hint="Give the folder that a bisect-litert run printed.",
            ) from None
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}.", hint="Run bisect-litert again.") from None
        version = data.get("schema") if isinstance(data, dict) else None
        if version != SCHEMA_VERSION:
            raise RunFolderError(
                f"{path} has schema {version}, this version reads {SCHEMA_VERSION}.",
                hint="Use the bisect-litert that wrote it, or run again.",
            )
        try:
            record: RunRecord = json_converter().structure(data, cls)
            return record
        except Exception as error:
            raise RunFolderError(
                f"{path} is damaged: {type(error).__name__}.", hint="Run bisect-litert again."
            ) from None


_JUDGED = {"gpu": RunName.GPU, "gpu-fp32": RunName.GPU_FP32, "cpu, no GPU": RunName.CPU}
_WORDS = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}


def _number_to_json(value: float) -> float | str:
    if isnan(value):
        return "NaN"
    if value in (inf, -inf):
        return "Infinity" if value > 0 else "-Infinity"
    return float(value)


def _number_from_json(value: Any, _: type) -> float:
    return _WORDS[value] if isinstance(value, str) else float(value)


def json_converter() -> Any:
    """Returns the converter for records: floats that JSON cannot hold are words."""
    from cattrs import Converter

    converter = Converter()
    converter.register_unstructure_hook(float, _number_to_json)
    converter.register_structure_hook(float, _number_from_json)
    return converter
