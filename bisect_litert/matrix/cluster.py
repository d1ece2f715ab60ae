"""Cells on a Dask cluster: each goes to one worker, comes back once, and outlives the worker it was run on.

Where the workers see the matrix's folder the cells are kept there as soon as they are finished; where they do not, a
cell's folder travels back with the answer. The model's files have to be in the same place on every worker.
"""

from __future__ import annotations

import io
import tempfile
import threading
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from bisect_litert.errors import UsageError
from bisect_litert.matrix import states
from bisect_litert.matrix.cell_process import Row, run_cells
from bisect_litert.matrix.plan import Model, Target
from bisect_litert.matrix.store import CELL_FILE, Kept, Store
from bisect_litert.matrix.table import Cell

PATIENCE = 60.0
"""Seconds to wait for the scheduler, and for a first worker."""
_INVOCATION = ".invocation"


@dataclass(frozen=True)
class Task:
    """One cell, as a worker gets it."""

    model: Model
    target: Target
    key: str
    folder: Path
    """The plan's folder."""
    out: Path
    """The matrix's folder, on the machine that asks."""
    invocation: str
    """Tells this run of the matrix from others."""


class ClusterError(UsageError):
    """The cluster cannot be used."""


def run_on_cluster(
    address: str, rows: Sequence[Row], folder: Path, store: Store, on_done: Callable[[Cell], None]
) -> None:
    """Runs cells on the workers of a running scheduler.

    Args:
        address: "tcp://host:8786", or a scheduler file.
        rows: What to run.
        folder: The plan's folder.
        store: Where the cells go.
        on_done: Told of each cell as soon as it is kept here.

    Raises:
        ClusterError: Dask is not installed, or no scheduler or worker is there.
    """
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise ClusterError("--scheduler needs Dask.", hint="pip install 'bisect-litert[dask]'") from None
    invocation = uuid4().hex
    store.write(_INVOCATION, invocation)
    try:
        client = Client(address, timeout=PATIENCE, set_as_default=False, name="bisect-litert")
    except (OSError, ValueError, TimeoutError) as error:
        raise ClusterError(
            f"No Dask scheduler answers at {address}: {type(error).__name__}.",
            hint="Start one with `dask scheduler`, and workers with `dask worker ADDRESS --nthreads 1`.",
        ) from None
    with client:
        tasks = {}
        for row in rows:
            for target, key in row.targets:
                task = Task(row.model, target, key, folder.resolve(), store.folder.resolve(), invocation)
                name = f"bisect-litert {row.model.name} {target.name} {invocation}"
                tasks[client.submit(run_there, task, key=name, pure=False)] = task
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
            for future in as_completed(list(tasks), loop=client.loop):
                task = tasks.pop(future)
                on_done(_kept_here(task, future, store))
        except TimeoutError:
            raise ClusterError(
                f"The scheduler at {address} has no workers.", hint="dask worker ADDRESS --nthreads 1"
            ) from None
        finally:
            client.cancel(list(tasks), force=True)


def run_there(task: Task) -> tuple[Kept, bytes]:
    """Runs one cell on a worker.

    Returns:
        The cell, and its folder as a zip; empty where the folder asked for is in sight.
    """
    if not task.folder.is_dir():
        raise FileNotFoundError(f"this worker has no folder {task.folder}")
    if _in_sight(task):
        store = Store(task.out)
        kept = store.kept(task.model.name, task.target.name)
        # An earlier attempt may have finished it and died before anybody heard.
        if kept is None or kept.invocation != task.invocation:
            kept = _run(task, store)
        return kept, b""
    with tempfile.TemporaryDirectory(prefix="bisect-litert-") as folder:
        store = Store(Path(folder))
        store.open()
        kept = _run(task, store)
        return kept, _pack(store.place(*kept.cell.key))


def _in_sight(task: Task) -> bool:
    try:
        return (task.out / _INVOCATION).read_text(encoding="utf-8") == task.invocation
    except OSError:
        return False


def _run(task: Task, store: Store) -> Kept:
    row = Row(task.model, ((task.target, task.key),), task.invocation)
    run_cells(row, task.folder, store, lambda _: None, threading.Event())
    kept = store.kept(task.model.name, task.target.name)
    assert kept is not None, "run_cells keeps every cell"
    return kept


def _kept_here(task: Task, future: object, store: Store) -> Cell:
    """Keeps what came back; a task that failed itself becomes a failed cell."""
    error = future.exception()  # type: ignore[attr-defined]
    if error is None:
        kept, packed = future.result()  # type: ignore[attr-defined]
        if not packed:
            cell: Cell = kept.cell
            return cell
        work = store.new(*kept.cell.key)
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            archive.extractall(work)
        return store.keep(work, kept)
    lost = type(error).__name__ == "KilledWorker"
    how = "every worker that took it died" if lost else f"{type(error).__name__}: {error}"
    cell = states.from_end(task.model.name, task.target, "the cluster", how)
    return store.keep(store.new(*cell.key), Kept(task.key, {}, cell))


def _pack(place: Path) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(p for p in place.rglob("*") if p.is_file() and p.name != CELL_FILE):
            archive.write(path, path.relative_to(place).as_posix())
    return file.getvalue()
