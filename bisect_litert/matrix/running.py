"""The order of a matrix: what is there already, what is left, where it runs, and the table after every cell."""

from __future__ import annotations

import fnmatch
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

from bisect_litert.errors import UsageError
from bisect_litert.matrix import content
from bisect_litert.matrix.baseline import Baseline
from bisect_litert.matrix.cell_process import Row, Stopped, run_cells
from bisect_litert.matrix.plan import Plan
from bisect_litert.matrix.reports import write_all
from bisect_litert.matrix.store import MatrixFolderError, Store
from bisect_litert.matrix.table import FAILED, Cell, Code, Matrix

_AGAIN = (*FAILED, Code.T_SKIP)
"""Codes that `retry` runs again."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """How a matrix is to be run."""

    out: Path
    jobs: int = 1
    scheduler: str = ""
    """Address of a Dask scheduler; empty for this machine."""
    only: tuple[str, ...] = ()
    """Globs over model names; empty means all."""
    targets: tuple[str, ...] = ()
    """Target names; empty means all."""
    retry: bool = False
    """Run again what failed."""
    fresh: bool = False
    """Run everything again."""
    baseline: Baseline | None = None


class MatrixStopped(KeyboardInterrupt):
    """Ctrl-C; the table has been written.

    Args:
        matrix: As far as it got.
    """

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.matrix = matrix


OnCell = Callable[[Cell, int, int], None]
"""Told of a cell that has just been run, how many of those to run are done, and how many there are."""


def run_matrix(plan: Plan, wishes: Wishes, on_cell: OnCell) -> Matrix:
    """Runs what is left of a matrix and writes its table after every cell.

    Args:
        plan: What to run.
        wishes: How.
        on_cell: Told of every cell that was run.

    Returns:
        The whole matrix, with the cells that were there before.

    Raises:
        MatrixStopped: Ctrl-C; what was finished is kept.
        BisectError: The folder or the scheduler cannot be used, or nothing is selected.
    """
    from filelock import FileLock, Timeout

    store = Store(wishes.out)
    store.open()
    lock = FileLock(wishes.out / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise MatrixFolderError(
            f"Another matrix is running in {wishes.out}.", hint="Wait for it, or give another folder with --out."
        ) from None
    try:
        return _Run(plan, wishes, store, on_cell).run()
    finally:
        lock.release()


@dataclass
class _Run:
    """One invocation."""

    plan: Plan
    wishes: Wishes
    store: Store
    on_cell: OnCell
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    done: int = 0
    todo: int = 0
    started: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> Matrix:
        rows = self._left()
        self.todo = sum(len(row.targets) for row in rows)
        self._write()
        try:
            if rows and self.wishes.scheduler:
                from bisect_litert.matrix.cluster import run_on_cluster

                run_on_cluster(self.wishes.scheduler, rows, self.plan.folder, self.store, self._keep)
            elif rows:
                self._run_here(rows)
        except KeyboardInterrupt:
            self.store.tidy()
            raise MatrixStopped(self._write()) from None
        return self._write()

    def _left(self) -> list[Row]:
        """Fills in what is there and returns the rest."""
        self.store.tidy()
        rows = []
        wanted = self._wanted()
        for model in self.plan.models:
            left = []
            for target in (t for t in self.plan.targets if t.name in model.targets):
                here = (model.name, target.name)
                if model.skip:
                    self.cells[here] = Cell(*here, Code.SKIP, summary=model.skip)
                    continue
                key = content.key_of(model, target, self.plan.folder)
                cell = self.store.finished(*here, key, self.plan.folder)
                self.cells[here] = cell or Cell(*here, Code.OPEN)
                if here in wanted and self._again(cell):
                    left.append((target, key))
            if left:
                rows.append(Row(model, tuple(left)))
        return rows

    def _again(self, cell: Cell | None) -> bool:
        if cell is None or self.wishes.fresh or cell.code is Code.SKIP:  # whether a package is there costs nothing
            return True
        return self.wishes.retry and cell.code in _AGAIN

    def _wanted(self) -> set[tuple[str, str]]:
        names = [m.name for m in self.plan.models]
        models = [n for n in names if not self.wishes.only or any(fnmatch.fnmatchcase(n, g) for g in self.wishes.only)]
        if not models:
            raise UsageError(
                f"No model is called {' or '.join(self.wishes.only)}.", hint=f"There are {', '.join(names)}."
            )
        columns = [t.name for t in self.plan.targets]
        unknown = [name for name in self.wishes.targets if name not in columns]
        if unknown:
            raise UsageError(f"There is no target {unknown[0]!r}.", hint=f"There are {', '.join(columns)}.")
        return {(m, t) for m in models for t in self.wishes.targets or columns}

    def _run_here(self, rows: Sequence[Row]) -> None:
        """Runs rows in threads that wait for child processes."""
        with ThreadPoolExecutor(max(1, self.wishes.jobs)) as pool:
            futures = [pool.submit(run_cells, row, self.plan.folder, self.store, self._keep, self.stop) for row in rows]
            try:
                while True:
                    finished, waiting = wait(futures, timeout=0.2, return_when=FIRST_EXCEPTION)
                    if not waiting or any(f.exception() for f in finished):
                        break
            finally:
                self.stop.set()  # nothing is left to stop, or all of it has to
                for future in futures:
                    future.cancel()
        _raise_first(f.exception() for f in futures if not f.cancelled())

    def _keep(self, cell: Cell) -> None:
        with self.lock:
            self.cells[cell.key] = cell
            self.done += 1
            self._write()
            self.on_cell(cell, self.done, self.todo)

    def _write(self) -> Matrix:
        plan = self.plan
        matrix = Matrix(
            plan.title,
            tuple(m.name for m in plan.models),
            tuple(t.name for t in plan.targets),
            tuple(self.cells.values()),
            plan.file,
            time.monotonic() - self.started,
        )
        if self.wishes.baseline is not None:
            matrix = replace(matrix, changes=self.wishes.baseline.changes(matrix))
        write_all(matrix, self.store)
        return matrix


def _raise_first(errors: Iterable[BaseException | None]) -> None:
    for error in errors:
        if error is not None and not isinstance(error, Stopped):
            raise error
