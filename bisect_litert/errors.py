"""What can go wrong on purpose, each with the exit code it ends in.

An error says in one sentence what happened and in another what to do next. One place prints it (`cli.main`); anything
that is not a `BisectError` is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class ExitCode(IntEnum):
    """The process exit codes. 125 is the code `git bisect run` takes as "skip this one"."""

    OK = 0
    DIVERGED = 1
    USAGE = 2
    CANNOT_TEST = 125
    INTERNAL = 255


class BisectError(Exception):
    """An expected failure.

    Args:
        message: One sentence: what happened.
        hint: One sentence: what to do next.
        detail: Text worth showing below it, such as the user's own traceback or the converter's message.
    """

    exit_code = ExitCode.CANNOT_TEST

    def __init__(self, message: str, *, hint: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class UsageError(BisectError):
    """The command line, or a file it names, is not usable as given."""

    exit_code = ExitCode.USAGE


class ModelFileError(UsageError):
    """The model file is missing, raises on import, or defines no model or inputs."""


class InputsError(UsageError):
    """The inputs do not fit the model's forward."""


class BlockSelectionError(UsageError):
    """A block pattern matches no module; MODEL in the hint stands for what the user calls it (`naming`)."""


@contextmanager
def naming(model: str) -> Iterator[None]:
    """Puts the model as it was typed into the command that a selection's error suggests."""
    try:
        yield
    except BlockSelectionError as error:
        error.hint = error.hint.replace("blocks MODEL", f"blocks {shlex.quote(model)}")
        raise


class RunFolderError(UsageError):
    """The run folder cannot be created, written or read."""


class UnfitReferenceError(BisectError):
    """PyTorch's own result cannot serve as a reference."""


class ConversionError(BisectError):
    """litert-torch could not convert the model."""


class ExportError(BisectError):
    """torch.export could not trace the model; what needs its operators is done without."""


class ExportFolderError(UsageError):
    """An export folder, or results for it, cannot be used as given."""


class UnansweredError(BisectError):
    """A device that is reached by hand has not run what everything else depends on."""


class RunnerError(BisectError):
    """The worker process gave nothing usable back."""


class DiskFullError(RunnerError):
    """A disk has no room for what a run writes.

    Args:
        message: One sentence: which one, and what was asked of it.
        there: Whether it is another machine's.
    """

    def __init__(self, message: str, *, there: bool = False) -> None:
        elsewhere = "set TMPDIR for its logins" if there else "set TMPDIR to a folder on a disk with more"
        super().__init__(
            message, hint=f"Free some space, {elsewhere}, tap fewer blocks (--blocks), or lower --tap-memory."
        )
