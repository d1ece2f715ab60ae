"""The nouns: what a run found, as frozen dataclasses that are written once and read by every report.

`RunRecord` is the root; `run.json` is its JSON form (docs/run-json.md). What it says of each block is in
block_record.py, and the words for causes, runs and marks are in vocabulary.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import nan
from pathlib import Path

from bisect_litert import json_form
from bisect_litert.block_record import BlockResult, Comparison, OpResult
from bisect_litert.vocabulary import PYTORCH, Cause, RunName

SCHEMA_VERSION = 1
RUN_FILE = "run.json"


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
    def of(cls, path: Path | None) -> Artefact | None:
        """Reads a file's size and hash; None where there is no file."""
        from hashlib import sha256

        if path is None or not path.is_file():
            return None
        found, size = sha256(), 0
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                found.update(part)
                size += len(part)
        return cls(size, found.hexdigest())


@dataclass(frozen=True, slots=True, repr=False)
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

    def __repr__(self) -> str:
        """One line, for a prompt or a notebook: the whole is thousands of words, and `to_json` has it."""
        culprits = ", ".join(culprit.block for culprit in self.culprits)
        found = f"{self.verdict.cause}" + (f" in {culprits}" if culprits else "")
        return f"<{type(self).__name__} {self.model} on {self.target}: {found}, {len(self.blocks)} blocks>"

    def to_json(self) -> str:
        """Returns the record as strictly valid JSON."""
        return json_form.text(self)

    def save(self, folder: Path) -> Path:
        """Writes run.json into `folder` and returns its path.

        Raises:
            OSError: The folder cannot be written.
        """
        return json_form.write(self.to_json(), folder / RUN_FILE)

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
            return json_form.restored(data, cls)
        except Exception as error:
            raise RunFolderError(
                f"{path} is damaged: {type(error).__name__}.", hint="Run bisect-litert again."
            ) from None


_JUDGED = {"gpu": RunName.GPU, "gpu-fp32": RunName.GPU_FP32, "cpu, no GPU": RunName.CPU}
