"""Cells on a real Dask scheduler with real workers on this machine; one worker is killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("distributed")

from bisect_litert.matrix import cluster, plan
from bisect_litert.matrix.cluster import ClusterError, Task
from bisect_litert.matrix.plan import Model, Plan, Target
from bisect_litert.matrix.running import Wishes, run_matrix
from bisect_litert.matrix.store import Store
from bisect_litert.matrix.table import Cell, Code, Matrix

ROOT = Path(__file__).parent.parent
# It says who runs it (the worker is the child's parent), takes its time, and fails without a conversion.
SLOW = """
import os, pathlib, time
name = pathlib.Path(__file__).stem
with open("loads.txt", "a") as file:
    file.write(f"{name} {os.getppid()}\\n")
time.sleep(1.5)
raise RuntimeError(f"{name} has nothing to offer")
"""


class Cluster:
    """A scheduler and two workers, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "scheduler.json"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.temporary),
            "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "10s",
        }
        self.scheduler = self.start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        self.workers = [self.add_worker() for _ in range(2)]

    def start(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.{program}", "--scheduler-file", str(self.file), *words]
        log = (self.folder / f"{program}.log").open("ab")
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)

    def add_worker(self) -> subprocess.Popen[bytes]:
        return self.start("dask_worker", "--no-nanny", "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1")

    @property
    def address(self) -> str:
        import json

        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                return str(json.loads(self.file.read_text())["address"])
            except (OSError, ValueError, KeyError):
                time.sleep(0.1)
        raise TimeoutError("the scheduler did not start")

    def close(self) -> None:
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    started = Cluster(folder)
    yield started
    started.close()


def slow(folder: Path, count: int) -> Plan:
    for number in range(count):
        (folder / f"slow{number}.py").write_text(SLOW)
    models = tuple(Model(f"slow{n}", f"slow{n}.py", targets=("cpu",)) for n in range(count))
    return Plan("Slow", folder, models, (plan.KNOWN_TARGETS["cpu"],), "models.toml")


def loads(folder: Path) -> list[tuple[str, int]]:
    path = folder / "loads.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(name, int(pid)) for name, pid in (line.split() for line in lines)]


def test_a_worker_that_dies_loses_nothing_and_nothing_runs_twice(tmp_path: Path, running: Cluster) -> None:
    folder = tmp_path / "plan"
    folder.mkdir()
    asked, out = slow(folder, 6), tmp_path / "out"
    done: list[Cell] = []
    found: list[Matrix] = []

    def run() -> None:
        wishes = Wishes(out, scheduler=running.address)
        found.append(run_matrix(asked, wishes, lambda cell, *_: done.append(cell)))

    matrix = threading.Thread(target=run)
    matrix.start()
    # Wait until a worker that has finished a cell is in the middle of another one, and end it there.
    killed, interrupted = None, ""
    deadline = time.monotonic() + 200
    while killed is None and time.monotonic() < deadline and matrix.is_alive():
        time.sleep(0.05)
        finished = {cell.model for cell in done}
        seen = loads(folder)
        for worker in running.workers:
            mine = [name for name, pid in seen if pid == worker.pid]
            if len(mine) >= 2 and set(mine[:-1]) <= finished and mine[-1] not in finished:
                worker.send_signal(signal.SIGKILL)
                killed, interrupted = worker, mine[-1]
                break
    matrix.join(200)
    assert killed is not None, "no worker was ever in the middle of a second cell"
    assert found, "the matrix did not end"

    assert [c.code for c in found[0].cells] == [Code.L_FAIL] * 6
    assert sorted(c.model for c in done) == sorted(f"slow{n}" for n in range(6))
    assert "has nothing to offer" in found[0].cells[0].summary
    counts = Counter(name for name, _ in loads(folder))
    assert counts == {f"slow{n}": 2 if f"slow{n}" == interrupted else 1 for n in range(6)}
    for cell in done:
        assert (out / cell.folder / "cell.log").is_file()
    assert list(running.temporary.glob("*.json")) == []  # not even of the worker that was killed
    # And the next run has nothing left to do, on the cluster or here.
    done.clear()
    run_matrix(asked, Wishes(out), lambda cell, *_: done.append(cell))
    assert done == []


def test_a_scheduler_or_workers_that_are_not_there_are_said(
    tmp_path: Path, running: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "PATIENCE", 2.0)
    asked = slow(tmp_path, 1)
    with pytest.raises(ClusterError, match="No Dask scheduler answers"):
        run_matrix(asked, Wishes(tmp_path / "out", scheduler="tcp://127.0.0.1:9"), lambda *_: None)
    for worker in running.workers:
        worker.kill()
        worker.wait()
    with pytest.raises(ClusterError, match="has no workers"):
        run_matrix(asked, Wishes(tmp_path / "out", scheduler=running.address), lambda *_: None)
    assert not loads(tmp_path)


def test_a_worker_elsewhere_sends_the_cell_back(tmp_path: Path) -> None:
    """What a worker does that sees the plan's folder, but not the matrix's."""
    asked = slow(tmp_path, 1)
    task = Task(asked.models[0], asked.targets[0], "key", tmp_path, Path("/nowhere"), "now")
    kept, packed = cluster.run_there(task)
    assert kept.cell.code is Code.L_FAIL
    store = Store(tmp_path / "out")
    store.open()
    cell = cluster._kept_here(task, SimpleNamespace(exception=lambda: None, result=lambda: (kept, packed)), store)
    assert (store.folder / cell.folder / "cell.log").read_text()
    assert store.finished("slow0", "cpu", "key", tmp_path) == cell


def test_a_cell_that_kills_every_worker_is_a_failed_cell(tmp_path: Path) -> None:
    KilledWorker = type("KilledWorker", (Exception,), {})
    store = Store(tmp_path / "out")
    store.open()
    task = Task(Model("m", "m.py"), Target("gpu"), "key", tmp_path, tmp_path / "out", "now")
    cell = cluster._kept_here(task, SimpleNamespace(exception=lambda: KilledWorker("m")), store)
    assert cell.code is Code.T_FAIL
    assert "every worker that took it died" in cell.summary


def test_without_dask_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ClusterError) as caught:
        run_matrix(slow(tmp_path, 1), Wishes(tmp_path / "out", scheduler="tcp://x:1"), lambda *_: None)
    assert "bisect-litert[dask]" in caught.value.hint
