"""The nouns of a fix: what was tried for each culprit, how far it got, and what the model costs before and after.

`FixRecord` is the root; `fix.json` is its JSON form, with non-finite numbers written as in run.json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import nan
from pathlib import Path

from bisect_litert import json_form
from bisect_litert.errors import RunFolderError
from bisect_litert.vocabulary import Cause, Word

FIX_SCHEMA = 1
FIX_FOLDER = "fix"
"""In the run folder, where no other place is asked for."""
FIX_FILE = "fix.json"


class Reached(Word):
    """How far an attempt got."""

    NO_FIT = "does not fit"
    TORCH = "torch differs"
    """PyTorch itself computes something else with it."""
    CONVERSION = "does not convert"
    STILL_WRONG = "still wrong on the GPU"
    """It ran on the GPU, and the block is a culprit still."""
    FURTHER = "gone, with another behind it"
    """This fault is gone, and the block has another one, which is worked on next."""
    PROVEN = "proven"
    """The block is right on the GPU and torch computes the same."""


class Outcome(Word):
    """What became of a culprit."""

    FIXED = "fixed"
    PLACED = "kept off the GPU"
    """No rewrite was proved; with the culprit's ops on the CPU the model is right."""
    UNFIXED = "not fixed"


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One operator that is written otherwise."""

    operator: str
    source: str
    how: str
    exponent: int | None = None
    """The result is stored as value / 2^exponent."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One replacement that was tried, or one rewrite that did not fit."""

    rewrite: str
    """Its name in the catalogue."""
    title: str
    region: str
    """Path of the module it replaces; "(model)" for the model itself."""
    reached: Reached
    detail: str
    """Why it went no further, with the number that decided; when proven, what had to be cured with it, if anything."""
    torch32: float = nan
    """Largest difference over the model's float outputs in fp32, relative to each output's largest magnitude; nan when
    not computed."""
    torch64: float = nan
    """The same in fp64."""
    block_error: float = nan
    """Local relative L2 error of the block on the GPU after it; inf when something is not finite, nan when it was not
    measured."""
    block_ratio: float = nan
    output_error: float = nan
    """Largest relative L2 error of a model output on the GPU; inf when one is not finite, nan when not run."""


@dataclass(frozen=True, slots=True)
class KeptOff:
    """Ops kept off the GPU: not a fix of the model, but a way to run it."""

    ops: tuple[int, ...]
    """Positions in the .tflite file of the model with all that was fixed."""
    right: bool
    """Whether every output is right then."""
    output_error: float
    """Largest relative L2 error of an output; nan when not finite or not run."""
    gpu_time: float
    """Time of a run relative to all ops on the GPU; nan when not measured."""
    how: str


@dataclass(frozen=True, slots=True)
class CulpritFix:
    """One culprit and what became of it."""

    block: str
    cause: Cause
    kind: str
    """Named sub-kind; of refusals the ops, "RESHAPE, SLICE", that one rewrite is for."""
    place: str
    """"SQUARED_DIFFERENCE in enc.3.norm, model.py:41"."""
    uncovered: bool
    """It showed only after another fix."""
    outcome: Outcome
    why_not: str
    """For what is not fixed: the reason in a sentence."""
    before_error: float
    before_ratio: float
    attempts: tuple[Attempt, ...]
    """In the order tried; the last one is the fix when there is one."""
    changes: tuple[ChangeRecord, ...] = ()
    limits: str = ""
    kept_off: KeptOff | None = None
    """For what is not fixed; one placement serves all that is left."""
    hidden: bool = False
    """It shows only once the culprits before it are fixed: `before_error` is its error then."""

    @property
    def fix(self) -> Attempt | None:
        """The attempt that was proved."""
        return next((a for a in reversed(self.attempts) if a.reached in (Reached.PROVEN, Reached.FURTHER)), None)


@dataclass(frozen=True, slots=True)
class Costs:
    """The model before and after, measured in one process, runs interleaved."""

    ops: tuple[int, int]
    bytes: tuple[int, int]
    cpu_seconds: tuple[float, float]
    """Median of a run; nan when not measured."""
    gpu_seconds: tuple[float, float]
    repeats: int


@dataclass(frozen=True, slots=True)
class FixRecord:
    """Everything a fix found."""

    model: str
    target: str
    culprits: tuple[CulpritFix, ...]
    diverged_before: bool
    diverged_after: bool
    output_before: float
    """Largest relative L2 error of a model output on the GPU; inf when not finite, nan when none was measured."""
    output_after: float
    torch32: float
    torch64: float
    costs: Costs | None
    checked: str
    """What the independent check of the saved files found; empty when it was not run."""
    seconds: float
    environment: dict[str, str]
    device: str = ""
    """What it was proved on: the adapter, and its machine where that is another."""
    schema: int = FIX_SCHEMA
    torch_own: float = nan
    """Where fp64 decided whether torch computes the same: how far torch's own fp32 result is from fp64, relative to the
    output's largest magnitude; else nan."""
    torch_off: float = nan
    """How far the fixed model's fp32 result is from the same fp64 result then; else nan."""
    notes: tuple[str, ...] = ()
    """What else happened on the way, a sentence each."""
    files: dict[str, str] = field(default_factory=dict)
    """What the folder holds, relative paths."""

    def to_json(self) -> str:
        """Returns the record as strictly valid JSON."""
        return json_form.text(self)

    @classmethod
    def load(cls, folder: Path) -> FixRecord:
        """Reads fix.json of a folder.

        Raises:
            RunFolderError: There is none, it is damaged, or of another schema version.
        """
        path = folder / FIX_FILE
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data.get("schema") != FIX_SCHEMA:
                raise ValueError(f"schema {data.get('schema')}")
            return json_form.restored(data, cls)
        except Exception as error:
            raise RunFolderError(f"{path} cannot be read: {error}.", hint="Run `bisect-litert fix` again.") from None
