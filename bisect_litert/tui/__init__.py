"""The terminal UI. It reads run folders, and needs neither torch nor a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

from bisect_litert.errors import UsageError
from bisect_litert.record import RunRecord


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
        _start(RunRecord.load(folder), folder if folder.is_dir() else folder.parent)


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
    check_terminal()
    from bisect_litert.tui.app import BisectApp

    BisectApp(record, after, other=other, other_folder=before).run()


def _start(record: RunRecord | None, folder: Path | None) -> None:
    check_terminal()
    from bisect_litert.tui.app import BisectApp

    BisectApp(record, folder).run()


def check_terminal() -> None:
    """Says so where there is no terminal to draw on.

    Raises:
        UsageError: There is none.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("The terminal UI needs a terminal.", hint="For a file or a pipe: bisect-litert report RUN.")
