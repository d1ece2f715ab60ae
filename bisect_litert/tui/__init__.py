"""The terminal UI. It reads run folders, and needs neither torch nor a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

from bisect_litert.errors import UsageError
from bisect_litert.record import RunRecord
from bisect_litert.reports.formats import quote


def view(folder: Path | None) -> None:
    """Opens a run folder, or without one a picker of those in the current directory.

    Raises:
        RunFolderError: The folder is none, or was written by another version.
        UsageError: There is no terminal, or nothing to pick.
    """
    if folder is None:
        from bisect_litert.tui.runs import find_runs

        if not find_runs(Path()):
            raise UsageError(
                "There are no run folders in the current directory.",
                hint="Name one: bisect-litert view RUN; or make one: bisect-litert MODEL.",
            )
        _start(None, None)
    else:
        _start(RunRecord.load(folder), _folder(folder))


def view_record(record: RunRecord, folder: Path) -> None:
    """Opens a run that has just ended.

    Raises:
        UsageError: There is no terminal.
    """
    _start(record, folder)


def view_diff(before: Path, after: Path) -> None:
    """Opens the comparison of two run folders.

    Raises:
        RunFolderError: One is no run folder, or was written by another version.
        UsageError: There is no terminal.
    """
    record, other = RunRecord.load(after), RunRecord.load(before)
    check_terminal(f"diff {quote(str(before))} {quote(str(after))}")
    from bisect_litert.tui.app import BisectApp

    BisectApp(record, _folder(after), other=other, other_folder=_folder(before)).run()


def _folder(run: Path) -> Path:
    """A run's folder, also where its run.json was named."""
    return run if run.is_dir() else run.parent


def _start(record: RunRecord | None, folder: Path | None) -> None:
    check_terminal(f"report {quote(str(folder))}" if folder else "report RUN")
    from bisect_litert.tui.app import BisectApp

    BisectApp(record, folder).run()


def check_terminal(instead: str = "report RUN") -> None:
    """Says so where there is no terminal to draw on.

    Args:
        instead: The command that shows the same without one.

    Raises:
        UsageError: There is none.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("The terminal UI needs a terminal.", hint=f"For a file or a pipe: bisect-litert {instead}")
