"""A matrix as it stands: cells with their codes, and matrix.json, which everything else is made from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any, TypeVar

from bisect_litert import json_form
from bisect_litert.errors import ExitCode, UsageError
from bisect_litert.vocabulary import Cause, Word

T = TypeVar("T")
SCHEMA = 1
MATRIX_FILE = "matrix.json"


class MatrixFileError(UsageError):
    """A matrix.json that cannot be used."""


class Code(Word):
    """What became of a cell."""

    OK = "OK"
    DIFF = "DIFF"
    PARTIAL = "PARTIAL"
    REJECT = "REJECT"
    L_FAIL = "L-FAIL"
    C_FAIL = "C-FAIL"
    T_FAIL = "T-FAIL"
    T_SKIP = "T-SKIP"
    SKIP = "SKIP"
    OPEN = "OPEN"


LEGEND = {
    Code.OK: "in line with what the target's arithmetic costs",
    Code.DIFF: "diverges; the cause and the first block that is wrong",
    Code.PARTIAL: "right, with n of m ops on the GPU and the rest on the CPU",
    Code.REJECT: "the GPU refused it: no op ran there, or refusals count (strict)",
    Code.L_FAIL: "the model did not load, or PyTorch itself cannot run it",
    Code.C_FAIL: "the conversion failed",
    Code.T_FAIL: "the run on the target failed: error, crash or hang",
    Code.T_SKIP: "this target is not to be had here",
    Code.SKIP: "left out on purpose",
    Code.OPEN: "not run yet",
}
JUDGED = (Code.OK, Code.DIFF, Code.PARTIAL)
"""Codes of cells with a verdict on numbers."""
FAILED = (Code.L_FAIL, Code.C_FAIL, Code.T_FAIL)


@dataclass(frozen=True, slots=True)
class Cell:
    """One model on one target."""

    model: str
    target: str
    code: Code
    cause: Cause = Cause.NONE
    block: str = ""
    """The first block that is wrong."""
    more: int = 0
    """Further culprits."""
    where: str = ""
    """Op and source line: "SQUARED_DIFFERENCE (op 192), model.py:40"."""
    relative_l2: float = nan
    """Relative L2 error of the worst model output, untapped where that was run; nan when none was compared."""
    correlation: float = nan
    """Pearson's, of the same output."""
    nonfinite: int = 0
    """Elements of it that are NaN or infinite where the reference is not."""
    gpu_ops: int = 0
    ops: int = 0
    """Ops in the graph as the delegate counts them; 0 when no GPU ran it."""
    refused: str = ""
    """Ops that the GPU refused, with its reasons: "SLICE x9: Slicing is unsupported for input with rank > 4"."""
    summary: str = ""
    """The verdict, or what went wrong, in sentences."""
    advice: str = ""
    device: str = ""
    """The adapter that ran it, or what stood in for one."""
    runtime: str = ""
    """Version of ai-edge-litert that ran the target's jobs."""
    environment: dict[str, str] = field(default_factory=dict)
    seconds: float = nan
    size: int = 0
    """Bytes of the .tflite file."""
    sha256: str = ""
    """Of the .tflite file."""
    started: str = ""
    """UTC, ISO 8601."""
    folder: str = ""
    """The cell's folder, relative to the matrix's."""
    exit_code: int = 0
    """What the main command ends with for this: 0, 1 or 125."""
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Row and column."""
        return self.model, self.target

    @property
    def finished(self) -> bool:
        """Whether there is something to show."""
        return self.code is not Code.OPEN

    @property
    def run(self) -> str:
        """The run folder, relative to the matrix's folder; empty when there is none."""
        return f"{self.folder}/run" if self.folder and self.size else ""


class ChangeKind(Word):
    """How a cell differs from the baseline's."""

    NEW = "new DIFF"
    OTHER = "another fault"
    WORSE = "worse"
    REFUSED = "now refused"
    FAILS = "now fails"
    NOT_TESTED = "no longer tested"
    FIXED = "fixed"
    BETTER = "better"
    ADDED = "new cell"
    GONE = "gone"


WORSE = (ChangeKind.NEW, ChangeKind.OTHER, ChangeKind.WORSE, ChangeKind.REFUSED, ChangeKind.FAILS)
"""Changes that a matrix with a baseline ends with 1 for."""


@dataclass(frozen=True, slots=True)
class Change:
    """One cell against the baseline's."""

    model: str
    target: str
    kind: ChangeKind
    detail: str

    @property
    def worse(self) -> bool:
        """Whether it is a change for the worse."""
        return self.kind in WORSE


@dataclass(frozen=True, slots=True)
class Matrix:
    """All cells, row by row."""

    title: str
    models: tuple[str, ...]
    targets: tuple[str, ...]
    cells: tuple[Cell, ...]
    plan: str = ""
    """The TOML file's name."""
    seconds: float = nan
    """What this invocation took."""
    changes: tuple[Change, ...] | None = None
    """Against the baseline; None when there was none."""
    schema: int = SCHEMA

    @property
    def exit_code(self) -> ExitCode:
        """1 when a cell diverges, or with a baseline when one got worse; 125 when one could not be tested; else 0."""
        if self.changes is not None:
            if any(change.worse for change in self.changes):
                return ExitCode.DIVERGED
            lost = any(change.kind is ChangeKind.NOT_TESTED for change in self.changes)
            return ExitCode.CANNOT_TEST if lost else ExitCode.OK
        if any(cell.exit_code == ExitCode.DIVERGED for cell in self.cells):
            return ExitCode.DIVERGED
        return ExitCode.CANNOT_TEST if any(cell.exit_code for cell in self.cells) else ExitCode.OK

    def change(self, cell: Cell) -> Change | None:
        """Returns what changed in a cell."""
        return next((c for c in self.changes or () if (c.model, c.target) == cell.key), None)

    def at(self, model: str, target: str) -> Cell | None:
        """Returns a cell; None where the model is not meant for the target."""
        return next((c for c in self.cells if c.key == (model, target)), None)

    @property
    def device_line(self) -> str:
        """Devices and runtimes, in a line: what the numbers hold for."""
        return device_line(self)

    def to_json(self) -> str:
        """Returns strictly valid JSON."""
        data = {"device": self.device_line, **json_form.plain(self)}
        return json.dumps(data, indent=1, allow_nan=False) + "\n"

    @classmethod
    def load(cls, path: Path) -> Matrix:
        """Reads a matrix.json, or the one in a folder.

        Raises:
            MatrixFileError: There is none, or it is damaged.
        """
        file = path / MATRIX_FILE if path.is_dir() else path
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise MatrixFileError(
                f"{file} cannot be read: {error.strerror}.",
                hint=f"Give a {MATRIX_FILE} that bisect-litert matrix wrote.",
            ) from None
        except ValueError:
            raise MatrixFileError(f"{file} is no JSON.", hint=f"Give a {MATRIX_FILE}.") from None
        version = data.get("schema") if isinstance(data, dict) else None
        if version != SCHEMA or "cells" not in data:
            raise MatrixFileError(
                f"{file} is no {MATRIX_FILE} of this version.", hint="Give one that bisect-litert matrix wrote."
            )
        return structure(data, cls, file)


def structure(data: Any, kind: type[T], file: Path) -> T:
    """Returns `data` as a dataclass.

    Raises:
        MatrixFileError: It does not fit.
    """
    try:
        return json_form.restored(data, kind)
    except Exception as error:
        raise MatrixFileError(f"{file} is damaged: {type(error).__name__}.", hint="Run the matrix again.") from None


def device_line(matrix: Matrix) -> str:
    """Returns "llvmpipe, ai-edge-litert 2.3.0 (gpu, gpu-fp32); Mali-G715, ai-edge-litert 2.1.6 (phone)"."""
    places: dict[tuple[str, str], list[str]] = {}
    for cell in matrix.cells:
        if cell.device:
            targets = places.setdefault((cell.device, cell.runtime), [])
            targets += [cell.target] if cell.target not in targets else []
    return "; ".join(
        f"{', '.join([device, *([f'ai-edge-litert {runtime}'] if runtime else [])])} ({', '.join(targets)})"
        for (device, runtime), targets in places.items()
    )
