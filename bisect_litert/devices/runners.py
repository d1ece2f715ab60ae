"""The parent's side of the process boundary: hands jobs to a worker process and turns what becomes of it into results.

The worker (worker.py) is started once and kept warm. A job that kills it, or never ends, is marked so, and the jobs
after it run in a fresh worker. Everything lies under `work_dir/requests/NNN/`, one folder per request, which the caller
may keep or delete. `Runner` starts the worker here; what starts it elsewhere is a subclass with another `Link`.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from bisect_litert.devices.jobs import CRASHED, FAILED, NOT_RUN, TIMED_OUT, Job, JobResult, read_result, read_text
from bisect_litert.devices.request_folder import RequestFolders, disk_full, unwritable
from bisect_litert.devices.worker_process import Link, WorkerProcess
from bisect_litert.errors import RunnerError
from bisect_litert.versions.interpreters import foreign_environment

__all__ = ["Job", "JobResult", "Runner", "worker_command"]

WORKER_FILE = Path(__file__).with_name("worker.py")
_WORKER_DISK_FULL = 74  # worker.EXIT_DISK_FULL; the worker is a file to start, not a module to import
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*")
_POLL_SECONDS = 0.05
MOST_HELD = 1 << 28
"""Bytes of outputs after which a worker on this machine is replaced."""


def worker_command(python: str) -> tuple[str, ...]:
    """Returns how to start our worker with an interpreter, without the final `--serve`."""
    return (python, str(WORKER_FILE))


class Runner:
    """Runs jobs in a worker process; a context manager.

    Args:
        work_dir: Folder for requests and responses; created when missing.
        time_limit: Seconds one job may take, from the job before it being done to its own end.
        command: How to start a worker, without the final `--serve`; this package's own worker by default.
        alone: Whether each job gets a worker of its own.
        name: Tells several runners of one folder apart.
    """

    def __init__(
        self,
        work_dir: Path,
        time_limit: float = 300.0,
        command: Sequence[str] | None = None,
        *,
        alone: bool = False,
        name: str = "",
    ) -> None:
        self.work_dir = work_dir.resolve()
        self.time_limit = time_limit
        self._command = tuple(command) if command is not None else worker_command(sys.executable)
        self._alone = alone
        self._child: Link | None = None
        self._folder = self.work_dir / (f"{name}-requests" if name else "requests")
        self._requests = RequestFolders(self._folder)
        self._children = 0
        self._stopped = False
        self._answered = False
        """Whether any job was ever answered: a worker that then leaves nothing at all was ended by a job."""
        self._one_by_one = False
        """A worker whose answers come all at once left none: only a job that runs alone can be told to be the cause."""

    @property
    def notes(self) -> Sequence[str]:
        """Nothing: what went wrong stands in the results."""
        return ()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.stop()

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
                ended = self._attempt(pending[:1] if self._one_by_one or self._alone else pending, on_done)
            except RunnerError as error:
                if not results:
                    raise
                ended = {job.id: JobResult(job.id, NOT_RUN, error.message) for job in pending}
            except BaseException:  # Ctrl-C above all: the worker would not see it, being in its own session
                self._kill()
                raise
            on_gpu = [ended[job.id] for job in pending if job.id in ended and job.accelerator.startswith("gpu")]
            if self._alone or (not self._far() and _held(on_gpu) > MOST_HELD):
                self.close()  # what the delegate gives back of its buffers it does in its next run only
            results.update(ended)
            pending = [job for job in pending if job.id not in ended]
        self._one_by_one = False
        return {name: results[name] for name in ids}

    def lane(self, job: Job) -> str:
        """Returns "": there is one worker."""
        del job
        return ""

    def close(self) -> None:
        """Ends the worker; the files stay."""
        if self._child is not None:
            child, self._child = self._child, None
            child.close()

    def stop(self) -> None:
        """Ends the worker at once, from any thread; nothing runs after that."""
        self._stopped = True
        self._kill()

    def _kill(self) -> None:
        if self._child is not None:
            child, self._child = self._child, None
            child.kill()

    def _start(self) -> Link:
        if self._stopped:
            raise RunnerError("The runner was stopped.", hint="Run again.")
        self._children += 1
        folder = self._folder
        runtime = self.work_dir / "runtime"
        environment = dict(os.environ) if self._command[0] == sys.executable else foreign_environment()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if "XDG_RUNTIME_DIR" not in environment:
                runtime.mkdir(mode=0o700, exist_ok=True)
                environment["XDG_RUNTIME_DIR"] = str(runtime)
        except OSError as error:
            raise unwritable(folder, error) from None
        return self._link(folder / f"worker-{self._children:03d}.log", environment)

    def _link(self, log: Path, environment: Mapping[str, str]) -> Link:
        return WorkerProcess(self._command, log, environment)

    def _attempt(self, jobs: Sequence[Job], on_done: Callable[[str], None] | None) -> dict[str, JobResult]:
        """Sends the jobs to one worker. Returns results for all, or for those up to the one that ended the worker."""
        request, response = self._requests.write(jobs)
        fresh = self._child is None
        self.warm_up()
        child = self._child
        assert child is not None
        timed_out = False
        try:
            alive = child.send(request, response)
            if alive:
                alive, timed_out = self._wait(child, jobs, response, on_done)
        except RunnerError as error:  # the machine cannot be reached any more
            self._kill()
            kept = {job.id: read_result(job, response / job.id) for job in jobs if _answered(job, response)}
            if not kept:
                raise
            return kept | {job.id: JobResult(job.id, NOT_RUN, error.message) for job in jobs if job.id not in kept}
        if not alive:
            self._kill()
        results: dict[str, JobResult] = {}
        for job in jobs:
            folder = response / job.id
            log = folder / "stderr.log"
            if _answered(job, response):
                results[job.id] = read_result(job, folder)
                self._answered = True
                if job.once:
                    self._requests.forget(job, request)
                continue
            if alive:
                status, detail = FAILED, "the worker gave no answer for this job"
            elif child.code == _WORKER_DISK_FULL:
                raise disk_full(child.where or self.work_dir, there=bool(child.where))
            elif (folder / "started").exists() or (not child.streams and self._answered and len(jobs) == 1):
                status, detail = CRASHED, child.how_it_ended()
                if timed_out:
                    status, detail = TIMED_OUT, f"no result after {self.time_limit:g} s"
            elif not child.streams and not results and len(jobs) > 1:
                self._one_by_one = True
                break
            elif fresh and not results:
                raise self._no_start(child, timed_out)
            else:
                break  # it died between two jobs, or while idle: no job is to blame, a fresh worker takes over
            results[job.id] = JobResult(job.id, status, detail, log_text=read_text(log), log_path=log)
            if not alive:
                break
        return results

    def _wait(
        self, child: Link, jobs: Sequence[Job], response: Path, on_done: Callable[[str], None] | None
    ) -> tuple[bool, bool]:
        """Waits for the request to end. Returns whether the child lives on, and whether it ran out of time."""
        folders = {job.id: response / job.id for job in jobs}
        waiting, steps, activity = set(folders), 0, child.activity
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
            if (seen, child.activity) != (steps, activity):
                steps, activity, since = seen, child.activity, time.monotonic()
            elif time.monotonic() - since > self.time_limit * (1 if child.streams or steps else len(jobs)):
                return False, True

    def _far(self) -> bool:
        return self._child is not None and bool(self._child.where)

    def _place(self) -> tuple[str, str]:
        """What sentences call the worker, and how to look there."""
        return "process", ": python"

    def _no_start(self, child: Link, timed_out: bool) -> RunnerError:
        lines = read_text(child.log).strip().splitlines()
        how = f"did not start within {self.time_limit:g} s" if timed_out else f"ended with {child.how_it_ended()}"
        last = f": {lines[-1].strip()}" if lines else ""
        return RunnerError(
            f"The worker {self._place()[0]} {how} before its first job{last}.",
            hint=f"Check that ai-edge-litert imports{self._place()[1]} -c 'import ai_edge_litert.compiled_model'.",
            detail="\n".join(lines[-20:]),
        )


def _held(results: Sequence[JobResult]) -> int:
    """Bytes that jobs returned."""
    return sum(array.nbytes for result in results for array in result.outputs.values())


def _answered(job: Job, response: Path) -> bool:
    return (response / job.id / "response.json").exists()
