"""The process that runs one model's cells: started with a work file, leaves an answer in each cell's folder.

    python -m bisect_litert.matrix.child WORK.json

Whatever happens to it is the parent's to see: it writes the stage it is in before it enters it. It ends when its
standard input is closed, so that it never outlives the process that started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bisect_litert import json_form
from bisect_litert.errors import BisectError
from bisect_litert.matrix import states
from bisect_litert.matrix.content import ReadFiles
from bisect_litert.matrix.plan import Model, Target
from bisect_litert.matrix.reports import pictures
from bisect_litert.matrix.store import LOG_FILE, RUN_FOLDER
from bisect_litert.matrix.table import Cell, Code
from bisect_litert.reports import PLOT_FILE
from bisect_litert.request import Progress

ANSWER_FILE = "answer.json"
STAGE_FILE = "stage"
_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Errand:
    """What a child is to do."""

    model: Model
    folder: str
    """The plan's folder, absolute; the child works in it."""
    targets: tuple[Target, ...]
    places: tuple[str, ...]
    """One folder per target, absolute, which exists."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one cell."""

    cell: Cell
    sources: dict[str, str] = field(default_factory=dict)


def main(path: str) -> None:
    """Runs the cells of an errand in order and stops where a failure holds for the rest as well."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background
    threading.Thread(target=_end_with_parent, daemon=True).start()
    said = Path(path).read_text(encoding="utf-8")
    Path(path).unlink()  # here, since who wrote it may be killed
    errand = json_form.restored(json.loads(said), Errand)
    os.chdir(errand.folder)
    started, read = time.monotonic(), ReadFiles()
    for target, place in zip(errand.targets, errand.places, strict=True):
        answer = _cell(errand, target, Path(place), read)
        answer = replace(answer, cell=replace(answer.cell, seconds=time.monotonic() - started))
        _write(Path(place) / ANSWER_FILE, json_form.text(answer))
        if states.shared(answer.cell.code):
            return
        started = time.monotonic()


def _cell(errand: Errand, target: Target, place: Path, read: ReadFiles) -> Answer:
    stage = _StageFile(place / STAGE_FILE, read)
    _redirect(place / LOG_FILE)
    model, folder = errand.model, Path(errand.folder)
    try:
        stage(Progress(states.BETWEEN, state="start"))
        python = _interpreter(target)
        from bisect_litert.entrances import run_bisection

        record = run_bisection(model.request(target, folder, place / RUN_FOLDER, python), stage)
        cell = states.from_record(model.name, target, record)
        if cell.code is not Code.T_SKIP:  # which would show what stood in
            pictures.shrink(place / RUN_FOLDER / PLOT_FILE, place / pictures.SMALL_FILE)
    except BisectError as error:
        print(f"error: {error.message}\n{error.hint}\n{error.detail}", file=sys.stderr)
        cell = states.from_error(model.name, target, stage.name, error)
    except Exception as error:
        traceback.print_exc()
        cell = states.from_end(model.name, target, stage.name, f"{type(error).__name__}: {error}")
    finally:
        read.on = False
    sys.stderr.flush()
    return Answer(cell, {} if errand.model.model.endswith(".tflite") else read.sources(folder))


def _interpreter(target: Target) -> str:
    if not target.runtime:
        return target.python
    from bisect_litert.versions import runtimes

    return runtimes.resolve(target.runtime, lambda said: print(said, file=sys.stderr, flush=True)).python


class _StageFile:
    """Writes each stage when it begins: read by the parent if this process ends without a word.

    Args:
        path: Where to.
        read: Turned on while the model is loaded and run in PyTorch.
    """

    def __init__(self, path: Path, read: ReadFiles) -> None:
        self.path, self.name, self._read = path, states.BETWEEN, read

    def __call__(self, progress: Progress) -> None:
        if progress.state == "info":
            return
        self.name = progress.stage if progress.state == "start" else states.BETWEEN
        self._read.on = self.name in states.LOADING
        _write(self.path, self.name)
        if progress.stage != states.BETWEEN:
            word = {"start": "...", "done": "done"}[progress.state]
            print(f"{time.strftime('%H:%M:%S')} {progress.stage} {word}", file=sys.stderr, flush=True)


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _redirect(log: Path) -> None:
    """Sends all that is printed, also by C++, to a cell's log."""
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _end_with_parent() -> None:
    """Waits for the end of standard input, which is the parent's end too, then interrupts the run and leaves."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGINT)  # lets the run end its worker
    time.sleep(_PATIENCE)
    os._exit(1)


def environment() -> Mapping[str, str]:
    """Returns the variables a child is started with: it finds the same packages as this process."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONUNBUFFERED": "1"}


if __name__ == "__main__":
    main(sys.argv[1])
