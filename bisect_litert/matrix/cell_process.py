"""Runs a model's cells in child processes and says of each what became of it, whatever the child does."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path

from bisect_litert import json_form
from bisect_litert.devices.worker_process import exit_detail
from bisect_litert.matrix import child, states
from bisect_litert.matrix.descendants import kill_all
from bisect_litert.matrix.plan import Model, Target
from bisect_litert.matrix.store import LOG_FILE, Kept, Store
from bisect_litert.matrix.table import Cell, Code, MatrixFileError, structure
from bisect_litert.records import environment

CHILD = (sys.executable, "-m", "bisect_litert.matrix.child")
"""What runs an errand: called with the errand's file."""
_POLL = 0.1
_GRACE = 15.0
"""Seconds a child has to end its own worker and write what it knows, before it is killed."""


class Stopped(Exception):
    """The matrix was asked to stop; what is finished is kept."""


@dataclass(frozen=True, slots=True)
class Row:
    """A model with the cells of it that have to be run."""

    model: Model
    targets: tuple[tuple[Target, str], ...]
    """Columns, with the keys of their cells."""
    invocation: str = ""
    """Kept with each cell; tells this run of the matrix from others."""


def run_cells(row: Row, folder: Path, store: Store, on_done: Callable[[Cell], None], stop: threading.Event) -> None:
    """Runs one model's cells, in as few child processes as it takes, and keeps every one.

    A failure that no target had a part in (the model does not load, the conversion fails) is met once and holds for
    all of them.

    Args:
        row: What to run.
        folder: The plan's folder.
        store: Where the cells go.
        on_done: Told of each cell as soon as it is kept.
        stop: Ends everything when set.

    Raises:
        Stopped: `stop` was set; the cell that was being run then is not kept.
    """
    waiting = list(row.targets)
    failure = _skipped(row.model)
    while waiting and failure is None:
        attempt = _Attempt(replace(row, targets=tuple(waiting)), folder)
        try:
            for work, kept in attempt.cells(store, stop):
                cell = store.keep(work, kept)
                waiting.pop(0)
                on_done(cell)
                if states.shared(cell.code):
                    failure = cell
        finally:
            attempt.clear()
    for target, key in waiting:
        assert failure is not None
        on_done(_copy(failure, store, target, key, row.invocation))


def _skipped(model: Model) -> Cell | None:
    missing = next((name for name in model.needs if find_spec(name) is None), "")
    if not missing:
        return None
    return Cell(
        model.name, "", Code.SKIP, summary=f"{missing} is not installed.", advice=f"pip install {missing}", seconds=0.0
    )


def _copy(failure: Cell, store: Store, target: Target, key: str, invocation: str) -> Cell:
    """Keeps what one target met for another one, log included."""
    work = store.new(failure.model, target.name)
    kept = store.kept(*failure.key) if failure.target else None
    log = store.place(*failure.key) / LOG_FILE
    if kept is not None and log.is_file():
        shutil.copyfile(log, work / LOG_FILE)
    cell = replace(failure, target=target.name, seconds=0.0)
    return store.keep(work, Kept(key, kept.sources if kept else {}, cell, invocation))


class _Attempt:
    """One child process with the cells it is to run."""

    def __init__(self, row: Row, folder: Path) -> None:
        self.model, self.targets, self.invocation, self.folder = row.model, row.targets, row.invocation, folder

    def cells(self, store: Store, stop: threading.Event) -> Iterator[tuple[Path, Kept]]:
        """Yields each finished cell with its folder. The last may be the child's end where its answer should be.

        Raises:
            Stopped: `stop` was set.
        """
        self.places = [store.new(self.model.name, target.name) for target, _ in self.targets]
        self.process = self._start()
        for (target, key), place in zip(self.targets, self.places, strict=True):
            began = time.monotonic()
            how = self._wait(place, began + self.model.cell_limit, stop)
            answer, stage = _answer(place), _stage(place)
            for file in (child.ANSWER_FILE, child.STAGE_FILE):
                (place / file).unlink(missing_ok=True)
            if answer is not None:
                yield place, Kept(key, answer.sources, answer.cell, self.invocation)
                if states.shared(answer.cell.code):
                    return
                continue
            cell = replace(
                states.from_end(self.model.name, target, stage, how),
                seconds=time.monotonic() - began,
                started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
                environment=environment.describe(),
            )
            yield place, Kept(key, {}, cell, self.invocation)
            return

    def _start(self) -> subprocess.Popen[bytes]:
        targets = tuple(target for target, _ in self.targets)
        places = tuple(str(place.resolve()) for place in self.places)
        errand = child.Errand(self.model, str(self.folder.resolve()), targets, places)
        handle, path = tempfile.mkstemp(prefix="bisect-litert-", suffix=".json")
        self.errand = Path(path)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(json_form.plain(errand), file)
        with (self.places[0] / LOG_FILE).open("ab") as log:
            return subprocess.Popen(
                [*CHILD, path],
                stdin=subprocess.PIPE, stdout=log, stderr=log, env=child.environment(), start_new_session=True,
            )  # fmt: skip

    def _wait(self, place: Path, until: float, stop: threading.Event) -> str:
        """Waits for a cell's answer. Returns how the child ended, or ended up, without one."""
        while not (place / child.ANSWER_FILE).exists():
            if self.process.poll() is not None:
                return exit_detail(self.process.returncode)
            if stop.is_set():
                raise Stopped
            if time.monotonic() > until:
                self.end()
                return f"no end after {self.model.cell_limit:g} s"
            time.sleep(_POLL)
        return ""

    def end(self) -> None:
        """Asks the child to end, which lets it end its own worker, then kills it and all it started."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE)
        if self.process.poll() is None:
            kill_all(self.process.pid)
            self.process.wait()

    def clear(self) -> None:
        """Ends the child and removes what is left of it."""
        if hasattr(self, "process"):
            assert self.process.stdin is not None
            if not self.places[-1].exists():  # the last cell is kept, so the child is on its way out
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(_GRACE)
            self.end()
            with contextlib.suppress(OSError):
                self.process.stdin.close()
            self.errand.unlink(missing_ok=True)
        for place in self.places:
            shutil.rmtree(place, ignore_errors=True)


def _answer(place: Path) -> child.Answer | None:
    path = place / child.ANSWER_FILE
    try:
        found: child.Answer = structure(json.loads(path.read_text(encoding="utf-8")), child.Answer, path)
    except (OSError, ValueError, MatrixFileError):
        return None
    return found


def _stage(place: Path) -> str:
    try:
        return (place / child.STAGE_FILE).read_text(encoding="utf-8")
    except OSError:
        return states.BETWEEN
