"""What a person sees. Everything here reads a RunRecord, and needs neither torch nor a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bisect_litert.errors import RunFolderError
from bisect_litert.record import RunRecord
from bisect_litert.reports.drawing import Drawer

REPORT_FILE = "report.md"
PLOT_FILE = "divergence.png"


class UnwrittenError(RunFolderError):
    """The run folder took nothing; the record is here so that it can still be shown.

    Args:
        record: What could not be written.
        message: What happened.
        hint: What to do next.
    """

    def __init__(self, record: RunRecord, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.record = record


def write_all(record: RunRecord, folder: Path, drawer: Drawer | None = None) -> RunRecord:
    """Writes run.json, divergence.png and report.md, so that none is lost because another fails.

    Args:
        record: The run.
        folder: Its run folder, which exists.
        drawer: A process that was started early to draw the plot; without one it is drawn here.

    Returns:
        The record as written: with the files there are, and a note for each that could not be made.

    Raises:
        UnwrittenError: Not even run.json could be written.
    """

    def draw(so_far: RunRecord) -> None:
        if drawer is not None and drawer.draw(folder, PLOT_FILE):
            return
        from bisect_litert.reports import plot  # matplotlib takes a second; only this needs it

        plot.save(so_far, folder / PLOT_FILE)

    def write(so_far: RunRecord) -> None:
        from bisect_litert.reports import markdown

        (folder / REPORT_FILE).write_text(markdown.render(so_far), encoding="utf-8")

    # The record first, because it is the one that everything else can be made from again.
    _save(record, folder)
    record = _with_file(record, folder, "plot", PLOT_FILE, draw)
    record = _with_file(record, folder, "report", REPORT_FILE, write)
    _save(record, folder)
    return record


def _with_file(record: RunRecord, folder: Path, key: str, name: str, make: Callable[[RunRecord], None]) -> RunRecord:
    candidate = replace(record, files={**record.files, key: name})
    try:
        make(candidate)
    # Whatever a report stumbles over, the verdict that took minutes to find is worth more.
    except Exception as error:
        (folder / name).unlink(missing_ok=True)
        note = f"{name} could not be written: {type(error).__name__}: {error}."
        verdict = replace(record.verdict, notes=(*record.verdict.notes, note))
        return replace(record, verdict=verdict, files={k: v for k, v in record.files.items() if k != key})
    return candidate


def _save(record: RunRecord, folder: Path) -> None:
    try:
        record.save(folder)
    except OSError as error:
        raise UnwrittenError(
            record,
            f"{folder} cannot be written: {error.strerror or error}.",
            hint="Free some space or give another folder with --out, then run again.",
        ) from None
