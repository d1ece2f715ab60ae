"""Jobs that run while the caller goes on: a runner with a thread for each of the places it has.

What a run is certain to need later is started early, in the order in which it will be needed; the worker is then never
idle while the parent packs graphs and runs PyTorch, nor the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType

from bisect_litert.devices.jobs import Job, JobResult, JobRunner

_INTERVAL = 0.2
"""Seconds between two looks: where a lock cannot be interrupted, Ctrl-C waits that long."""


class JobQueue:
    """A runner that can also start jobs without waiting for them; a context manager, as the runner it wraps.

    Args:
        runner: Where jobs run.
    """

    def __init__(self, runner: JobRunner) -> None:
        self._runner = runner
        self._lanes: dict[str, ThreadPoolExecutor] = {}

    def __enter__(self) -> JobQueue:
        self._runner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._runner.stop()  # first: the threads wait for what runs there
        for lane in self._lanes.values():
            lane.shutdown(wait=True, cancel_futures=True)
        self._runner.__exit__(kind, error, trace)

    def warm_up(self) -> None:
        """Starts what takes time to start."""
        self._runner.warm_up()

    def start(self, jobs: Sequence[Job]) -> Future[dict[str, JobResult]]:
        """Starts jobs that all go to one place, after those started there before."""
        name = self._runner.lane(jobs[0])
        if name not in self._lanes:
            self._lanes[name] = ThreadPoolExecutor(1, thread_name_prefix=f"jobs {name}")
        return self._lanes[name].submit(self._runner.run, jobs)

    def run(self, jobs: Sequence[Job], on_done: Callable[[str], None] | None = None) -> dict[str, JobResult]:
        """Runs jobs and returns one result per job, in order; those of other places run at the same time.

        Raises:
            RunnerError: A place gave nothing usable back at all.
        """
        lanes: dict[str, list[Job]] = {}
        for job in jobs:
            lanes.setdefault(self._runner.lane(job), []).append(job)
        results: dict[str, JobResult] = {}
        for running in [self.start(own) for own in lanes.values()]:
            results.update(result_of(running))
        for job in jobs:
            if on_done is not None:
                on_done(job.id)
        return {job.id: results[job.id] for job in jobs}

    @property
    def notes(self) -> Sequence[str]:
        """What a report should say of where jobs ran."""
        return self._runner.notes

    def lane(self, job: Job) -> str:
        """Returns the place a job goes to."""
        return self._runner.lane(job)

    def close(self) -> None:
        """Lets the worker end by itself."""
        self._runner.close()

    def stop(self) -> None:
        """Ends the worker at once, from any thread."""
        self._runner.stop()


def result_of(running: Future[dict[str, JobResult]]) -> dict[str, JobResult]:
    """Waits for jobs that were started.

    Raises:
        RunnerError: Nothing usable came back at all.
    """
    while not running.done():
        wait([running], _INTERVAL)
    return running.result()
