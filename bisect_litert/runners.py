"""The parent's side of the process boundary: hands jobs to a worker process and turns what becomes of it into results.

The worker (worker.py) is started once and kept warm. A job that kills it, or never ends, is marked so, and the jobs
after it run in a fresh worker. Everything lies under `work_dir/requests/NNN/`, one folder per request, which the caller
may keep or delete.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from bisect_litert.errors import RunnerError
from bisect_litert.jobs import CRASHED, FAILED, NOT_RUN, TIMED_OUT, Job, JobResult, read_result, read_text
from bisect_litert.worker_process import WorkerProcess, exit_detail

__all__ = ["Job", "JobResult", "Runner"]

_WORKER_FILE = Path(__file__).with_name("worker.py")
_WORKER_DISK_FULL = 74  # worker.EXIT_DISK_FULL; the worker is a file to start, not a module to import
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*")
_POLL_SECONDS = 0.05


class Runner:
    """Runs jobs in a worker process; a context manager.

    Args:
        work_dir: Folder for requests and responses; created when missing.
        time_limit: Seconds one job may take, from the job before it being done to its own end.
        command: How to start a worker, without the final `--serve`; this package's own worker by default.
    """

    def __init__(self, work_dir: Path, time_limit: float = 300.0, command: Sequence[str] | None = None) -> None:
        self.work_dir = work_dir.resolve()
        self.time_limit = time_limit
        self._command = tuple(command) if command is not None else (sys.executable, str(_WORKER_FILE))
        self._child: WorkerProcess | None = None
        self._requests = 0
        self._children = 0
        self._stored: dict[str, Path] = {}

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self._kill()

    def warm_up(self) -> None:
        """Starts the worker, so that its imports (0.3 s) overlap with the caller's own work."""
        if self._child is None:
            self._child = self._start()

    def run(self, jobs: Sequence[Job], on_done: Callable[[str], None] | None = None) -> dict[str, JobResult]:
        """Runs jobs in order.

        Args:
            jobs: What to run; ids are unique.
            on_done: Called with a job's id when its answer is there.

        Returns:
            One result per job, by id, in order.

        Raises:
            RunnerError: The worker cannot be started at all, or the disk is full.
        """
        ids = [job.id for job in jobs]
        if len(set(ids)) != len(ids) or not all(_JOB_ID.fullmatch(name) for name in ids):
            raise ValueError(f"job ids must be unique and fit for folder names: {ids}")
        results: dict[str, JobResult] = {}
        pending = list(jobs)
        while pending:
            try:
                ended = self._attempt(pending, on_done)
            except RunnerError as error:
                if not results:
                    raise
                ended = {job.id: JobResult(job.id, NOT_RUN, error.message) for job in pending}
            except BaseException:  # Ctrl-C above all: the worker would not see it, being in its own session
                self._kill()
                raise
            results.update(ended)
            pending = [job for job in pending if job.id not in ended]
        return {name: results[name] for name in ids}

    def close(self) -> None:
        """Ends the worker; the files stay."""
        if self._child is not None:
            child, self._child = self._child, None
            child.close()

    def _kill(self) -> None:
        if self._child is not None:
            child, self._child = self._child, None
            child.kill()

    def _start(self) -> WorkerProcess:
        self._children += 1
        folder = self.work_dir / "requests"
        runtime = self.work_dir / "runtime"
        environment = dict(os.environ)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if "XDG_RUNTIME_DIR" not in environment:
                runtime.mkdir(mode=0o700, exist_ok=True)
                environment["XDG_RUNTIME_DIR"] = str(runtime)
        except OSError as error:
            raise _unwritable(folder, error) from None
        return WorkerProcess(self._command, folder / f"worker-{self._children:03d}.log", environment)

    def _attempt(self, jobs: Sequence[Job], on_done: Callable[[str], None] | None) -> dict[str, JobResult]:
        """Sends the jobs to one worker. Returns results for all, or for those up to the one that ended the worker."""
        request, response = self._write_request(jobs)
        fresh = self._child is None
        self.warm_up()
        child = self._child
        assert child is not None
        timed_out = False
        alive = child.send(request, response)
        if alive:
            alive, timed_out = self._wait(child, jobs, response, on_done)
        if not alive:
            self._kill()
        code = child.process.poll()

        results: dict[str, JobResult] = {}
        for job in jobs:
            folder = response / job.id
            log = folder / "stderr.log"
            if (folder / "response.json").exists():
                results[job.id] = read_result(job, folder)
                continue
            started = (folder / "started").exists()
            if alive:
                status, detail = FAILED, "the worker gave no answer for this job"
            elif code == _WORKER_DISK_FULL:
                raise _disk_full(self.work_dir)
            elif started:
                status, detail = CRASHED, exit_detail(code)
                if timed_out:
                    status, detail = TIMED_OUT, f"no result after {self.time_limit:g} s"
            elif fresh and not results:
                raise self._no_start(child, code, timed_out)
            else:
                break  # it died between two jobs, or while idle: no job is to blame, a fresh worker takes over
            results[job.id] = JobResult(job.id, status, detail, log_text=read_text(log), log_path=log)
            if not alive:
                break
        return results

    def _wait(
        self, child: WorkerProcess, jobs: Sequence[Job], response: Path, on_done: Callable[[str], None] | None
    ) -> tuple[bool, bool]:
        """Waits for the request to end. Returns whether the child lives on, and whether it ran out of time."""
        folders = {job.id: response / job.id for job in jobs}
        waiting, steps = set(folders), 0
        since = time.monotonic()
        while True:
            said = child.wait(_POLL_SECONDS)
            for name in [name for name in folders if name in waiting and (folders[name] / "response.json").exists()]:
                waiting.discard(name)
                if on_done is not None:
                    on_done(name)
            if said:
                return said == "done", False
            seen = 2 * (len(folders) - len(waiting)) + sum((folders[name] / "started").exists() for name in waiting)
            if seen != steps:
                steps, since = seen, time.monotonic()
            elif time.monotonic() - since > self.time_limit:
                return False, True

    def _no_start(self, child: WorkerProcess, code: int | None, timed_out: bool) -> RunnerError:
        lines = read_text(child.log).strip().splitlines()
        how = f"did not start within {self.time_limit:g} s" if timed_out else f"ended with {exit_detail(code)}"
        last = f": {lines[-1].strip()}" if lines else ""
        return RunnerError(
            f"The worker process {how} before its first job{last}.",
            hint="Check that ai-edge-litert imports: python -c 'import ai_edge_litert.compiled_model'.",
            detail="\n".join(lines[-20:]),
        )

    def _write_request(self, jobs: Sequence[Job]) -> tuple[Path, Path]:
        self._requests += 1
        request = self.work_dir / "requests" / f"{self._requests:03d}"
        response = request / "response"
        try:
            (request / "inputs").mkdir(parents=True, exist_ok=True)
            response.mkdir(exist_ok=True)
            models: dict[Path, str] = {}
            arrays: dict[int, str] = {}
            entries = []
            for job in jobs:
                if job.model not in models:
                    models[job.model] = f"{len(models):03d}-{job.model.name}"
                    self._store_model(job.model, request / models[job.model])
                inputs = {name: self._store(request, array, arrays) for name, array in job.inputs.items()}
                entries.append(
                    {
                        "id": job.id,
                        "model": models[job.model],
                        "accelerator": job.accelerator,
                        "fp32": job.fp32,
                        "inputs": inputs,
                        "env": dict(job.env),
                        "fallback": job.fallback,
                        "tensors": job.tensors,
                    }
                )
            (request / "request.json").write_text(json.dumps({"jobs": entries}, indent=1), encoding="utf-8")
        except FileNotFoundError as error:
            raise RunnerError(f"The model {error.filename} is gone.", hint="Run again.") from None
        except OSError as error:
            raise _unwritable(request, error) from None
        return request, response

    def _store_model(self, source: Path, target: Path) -> None:
        """Copies a model once per version; later requests share our copy, which nobody writes to any more."""
        stat = source.stat()
        version = f"{source.resolve()}:{stat.st_mtime_ns}:{stat.st_size}"
        if version in self._stored and self._stored[version].exists():
            _link(self._stored[version], target)
        else:
            shutil.copyfile(source, target)
            self._stored[version] = target

    def _store(self, request: Path, array: np.ndarray, arrays: dict[int, str]) -> str:
        """Writes an input once, however many jobs and requests use it. Returns its path inside the request."""
        if id(array) not in arrays:  # ids are safe here: the jobs keep their arrays alive
            array_ = np.require(array, requirements="C")
            digest = hashlib.sha256(f"{array_.dtype.str}{array_.shape}".encode())
            digest.update(array_.reshape(-1).view(np.uint8).data)
            name = digest.hexdigest()[:24]
            path = request / "inputs" / f"{name}.npy"
            if name in self._stored and self._stored[name].exists():
                if not path.exists():  # it does when two equal arrays are in one request
                    _link(self._stored[name], path)
            else:
                with path.open("wb") as file:
                    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array_))
                    file.write(array_.data)  # np.save would lose the errno of a full disk
                self._stored[name] = path
            arrays[id(array)] = f"inputs/{name}.npy"
        return arrays[id(array)]


def _link(source: Path, target: Path) -> None:
    """A hard link where the file system can, else a copy: a request folder stands on its own, at little cost."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise
        shutil.copyfile(source, target)


def _disk_full(folder: Path) -> RunnerError:
    return RunnerError(
        f"The disk that holds {folder} is full.",
        hint="Free some space, or put the run folder elsewhere with --out DIR.",
    )


def _unwritable(folder: Path, error: OSError) -> RunnerError:
    if error.errno in _DISK_FULL:
        return _disk_full(folder)
    return RunnerError(
        f"{folder} cannot be written: {error.strerror or error}.",
        hint="Choose a folder you can write to with --out DIR.",
    )
