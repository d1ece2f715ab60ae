"""A job for the worker process, and what became of it."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from bisect_litert.devices.npy_file import read_npy

MAPPED_BYTES = 1 << 20
"""Files above this are memory-mapped."""
OK, FAILED, CRASHED, TIMED_OUT, NOT_RUN = "ok", "failed", "crashed", "timed out", "not run"


@dataclass(frozen=True)
class Job:
    """One run of one .tflite file."""

    id: str
    """Names the job's folder, so letters, digits and ._@+- only; unique within a request."""
    model: Path
    """Nobody writes to it any more."""
    accelerator: str
    """"cpu" (as it ships: XNNPACK), "gpu" (alone first, then with the CPU), "gpu+cpu", "interpreter" (plain CPU
    kernels), or "xnnpack" (the interpreter with XNNPACK's: as "cpu", and quick to load with any number of tensors)."""
    inputs: Mapping[str, np.ndarray]
    """By signature input name."""
    fp32: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables set while the job compiles and runs, such as LITERT_GPU_DEBUG_END_NODE (which implies "gpu+cpu")."""
    fallback: bool = True
    """Whether a refusal by the GPU alone is followed by GPU and CPU together."""
    tensors: str | Sequence[int] = ""
    """Tensors to keep, by index, or "all" that an op writes (interpreter only)."""
    once: bool = False
    """Whether nothing else reads this model and these inputs, so that their files may go when it has run."""


@dataclass(frozen=True)
class JobResult:
    """What became of a job."""

    id: str
    status: str
    """"ok", "failed", "crashed", "timed out" or "not run"."""
    detail: str = ""
    """One line: the useful part of the error, or "signal SIGSEGV"; empty when ok."""
    outputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    """By signature output name, memory-mapped, read-only."""
    unwritten: Mapping[str, int] = field(default_factory=dict)
    """Per output, elements that still hold the sentinel; all or nothing for integers and bools."""
    tensors: Mapping[int, np.ndarray] = field(default_factory=dict)
    """By tensor index, for the interpreter; constants are left out."""
    seconds: float = math.nan
    """Compile and run together; nan when the job did not end."""
    compile_seconds: float = math.nan
    fell_back: bool = False
    """The GPU alone refused, and GPU and CPU together ran."""
    adapter_line: str = ""
    """The log line that names the GPU; a process prints it once, so it may come from an earlier job's log."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """What ran it: "ai-edge-litert", "python", "platform", "host", as the worker says."""
    lacks: tuple[str, ...] = ()
    """What that ai-edge-litert has no way to ask for: "gpu", "fp32" (on the GPU), "switches" (LITERT_GPU_DEBUG_...)."""
    unavailable: bool = False
    """Whether it failed because it needs what the runtime lacks."""
    log_text: str = ""
    log_path: Path = Path()

    @property
    def ok(self) -> bool:
        """Whether there are outputs."""
        return self.status == OK

    def without_tensors(self) -> JobResult:
        """Returns what else there is to say: a result's tensors lie on disk for as long as somebody holds them."""
        return replace(self, outputs={}, tensors={})


class JobRunner(Protocol):
    """Where jobs run: in a worker process, on another machine, or in two places at once (runners, routing)."""

    def __enter__(self) -> JobRunner: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def notes(self) -> Sequence[str]:
        """What a report should say of where jobs ran."""

    def warm_up(self) -> None:
        """Starts what takes time to start."""

    def run(self, jobs: Sequence[Job], on_done: Callable[[str], None] | None = None) -> dict[str, JobResult]:
        """Runs jobs in order and returns one result per job; a job that failed is a result."""

    def lane(self, job: Job) -> str:
        """Returns the place a job goes to; jobs of different places may be run at once, from different threads."""
        ...

    def close(self) -> None:
        """Lets the worker end by itself."""

    def stop(self) -> None:
        """Ends the worker at once, from any thread."""


def read_result(job: Job, folder: Path) -> JobResult:
    """Reads a job's answer without trusting it."""
    log = folder / "stderr.log"
    text = read_text(log)
    try:
        answer = json.loads((folder / "response.json").read_text(encoding="utf-8"))
        status, error, seconds = str(answer["status"]), str(answer["error"]), answer["seconds"]
        if status not in (OK, FAILED):
            raise ValueError(f"status {status!r}")
        files = _Files(folder)
        outputs = {name: files.load(entry) for name, entry in answer["outputs"].items()}
        tensors = {int(index): files.load(entry) for index, entry in answer.get("tensors", {}).items()}
        return JobResult(
            id=job.id,
            status=status,
            detail=_useful_line(error, text) if status == FAILED else "",
            outputs=outputs if status == OK else {},
            unwritten={name: int(entry["unwritten"]) for name, entry in answer["outputs"].items()},
            tensors=tensors if status == OK else {},
            seconds=float(seconds["compile"]) + float(seconds["run"]),
            compile_seconds=float(seconds["compile"]),
            fell_back=bool(answer["fell_back"]),
            adapter_line=str(answer.get("adapter_line", "")),
            versions={str(name): str(value) for name, value in (answer.get("versions") or {}).items()},
            lacks=tuple(map(str, answer.get("lacks", ()))),
            unavailable=bool(answer.get("unavailable")),
            log_text=text,
            log_path=log,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        what = f"the worker's answer cannot be used: {type(error).__name__}: {error}"
        return JobResult(job.id, FAILED, " ".join(what.split()), log_text=text, log_path=log)


class _Files:
    """Arrays of a job's folder. A map holds a file descriptor for as long as anyone holds the array, so there are few:
    large arrays have one each, what shares a file shares one, and small ones are read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shared: dict[str, np.ndarray] = {}

    def load(self, entry: Mapping[str, Any]) -> np.ndarray:
        """Returns the array of an entry, read-only."""
        path = self._folder / Path(str(entry["file"])).name  # never outside the job's own folder
        if "offset" in entry:
            return self._part(path, entry)
        mapped = path.stat().st_size > MAPPED_BYTES
        array = read_npy(path, mapped=mapped)
        if mapped:
            _forget(path)
        array.flags.writeable = False
        if list(array.shape) != list(entry["shape"]) or array.dtype.name != entry["dtype"]:
            held = f"{array.dtype.name} {list(array.shape)}"
            raise ValueError(f"{path.name} holds {held}, announced was {entry['dtype']} {entry['shape']}")
        return array

    def _part(self, path: Path, entry: Mapping[str, Any]) -> np.ndarray:
        dtype, shape = np.dtype(str(entry["dtype"])), tuple(int(n) for n in entry["shape"])
        size, start = math.prod(shape) * dtype.itemsize, int(entry["offset"])
        if not size:
            return np.zeros(shape, dtype)
        if path.name not in self._shared:
            self._shared[path.name] = np.asarray(np.memmap(path, np.uint8, "r"))
            _forget(path)
        whole = self._shared[path.name]
        if dtype.hasobject or start < 0 or start + size > whole.size:
            raise ValueError(f"{path.name} has no {dtype.name} {list(shape)} at {start}")
        return whole[start : start + size].view(dtype).reshape(shape)


def _forget(path: Path) -> None:
    """Takes a mapped file's name away, so that the disk has its space again when the last map goes."""
    with contextlib.suppress(OSError):  # where a mapped file cannot be deleted it goes with the folder
        path.unlink()


_NOISE = re.compile(r"^[└\s]*(RuntimeError:\s*)?(ERROR:\s*)?(\[[^\]]*:\d+\])?\s*")
_LOGGED_ERROR = re.compile(r"^(?:E\d{4} \S+ +\d+ [\w.]+:\d+\] |ERROR: (?:\[[\w./]+:\d+\] )?)(.+)$", re.MULTILINE)
_SAYS_NOTHING = ("", "Failed to modify graph with delegate")


def _useful_line(error: str, log: str) -> str:
    """The part of an error that says something, as one line.

    LiteRT's errors are source positions with a sentence at the end, or without one; then the log's first error has it.
    """
    said = [line for line in (_NOISE.sub("", line) for line in error.splitlines()) if line not in _SAYS_NOTHING]
    if said:
        return ": ".join(said)
    logged = _LOGGED_ERROR.search(log)
    return logged[1].strip() if logged else " ".join(error.split())


def read_text(path: Path) -> str:
    """A log's text; empty when there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
