"""What the speed benchmarks share: fresh processes, their peak memory, and what a number depends on."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OURS = (sys.executable, "-m", "bisect_litert")
EVERY = 0.05
"""Seconds between two looks at the processes."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What a command took."""

    seconds: float
    cpu: float
    """Seconds of processor time, of all that it started too."""
    code: int
    output: str
    parent: float
    """Peak resident size of its own process, MB."""
    parent_private: float
    """Largest size seen of what it cannot give back to the disk (RssAnon), MB."""
    worker: float
    """As `parent`, of the largest worker process that it started."""
    worker_private: float
    """As `parent_private`."""
    disk: float
    """Largest size seen of its temporary folder, files without a name included, MB."""


def watch(command: Sequence[str], environment: Mapping[str, str] = {}) -> Watched:
    """Runs a command and watches the peaks of its process and of the workers it starts.

    The kernel keeps each process's own peak (VmHWM) and forgets what was before an exec; `ru_maxrss` does not: a child
    would start with its parent's. Linux only; elsewhere the peaks are 0.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryDirectory() as scratch:
        started, before = time.perf_counter(), _cpu_of_children()
        child = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": scratch, **environment},
        )
        own = worker = (0.0, 0.0)
        disk = 0.0
        while child.poll() is None:
            own, children = _larger(own, _sizes(child.pid)), _children(child.pid)
            for pid in children:
                if _is_worker(pid):
                    worker = _larger(worker, _sizes(pid))
            disk = max(disk, _held(scratch, [child.pid, *children]))
            time.sleep(EVERY)
        seconds = time.perf_counter() - started
        out.seek(0)
        return Watched(seconds, _cpu_of_children() - before, child.returncode, out.read(), *own, *worker, disk)


def _held(folder: str, pids: Sequence[int]) -> float:
    """What files of a folder take on the disk, MB, with those that lost their name and that a process has open."""
    paths = [f"{at}/{name}" for at, _, names in os.walk(folder) for name in names]
    for pid in pids:
        with contextlib.suppress(OSError):
            paths += [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
    sizes = {}
    for path in paths:
        with contextlib.suppress(OSError):  # it may be gone by now
            if not path.startswith("/proc/") or os.readlink(path).startswith(folder):
                found = os.stat(path)
                sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(sizes.values()) / (1 << 20)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _larger(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return max(one[0], other[0]), max(one[1], other[1])


def _sizes(pid: int) -> tuple[float, float]:
    """A process's peak so far, and its private size now, MB."""
    found = {"VmHWM": 0.0, "RssAnon": 0.0}
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) / 1024
    except (OSError, ValueError):
        pass
    return found["VmHWM"], found["RssAnon"]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):  # each thread has its own
        try:
            found += [int(word) for word in listed.read_text().split()]
        except OSError:
            continue
    return found


def _is_worker(pid: int) -> bool:
    try:
        return b"worker.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def bisect(model: str, blocks: str, *options: str, environment: Mapping[str, str] = {}) -> tuple[Watched, Any]:
    """Runs the command on a model in a fresh process; returns what it took and its record."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*OURS, model, *(["--blocks", blocks] if blocks else []), "-q", "--json", *options]
        done = watch([*command, "--out", f"{folder}/run"], environment)
    if done.code not in (0, 1):
        raise SystemExit(f"{' '.join(command)} ended with {done.code}")
    return done, json.loads(done.output)


def about(adapter: str = "") -> dict[str, Any]:
    """Versions, cores, adapter, and how busy the machine was: what a number depends on."""
    sys.path.insert(0, str(ROOT))
    from bisect_litert.records import environment

    return {**environment.describe(), "cores": os.cpu_count(), "adapter": adapter, "load": round(os.getloadavg()[0], 1)}


def show(about: Mapping[str, Any]) -> None:
    """Prints what a number depends on, in one line."""
    print("; ".join(f"{key} {value}" for key, value in about.items() if value != ""), flush=True)


def save(path: Path | None, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes what was measured as JSON, if asked for."""
    if path is not None:
        path.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
