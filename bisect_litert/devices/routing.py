"""Two places to run jobs as one: what needs a GPU goes to the target machine, the rest stays with the local worker.

The local results are the reference and need no transfer. Both sides work at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from bisect_litert.devices.jobs import Job, JobResult, JobRunner

ON_TARGET = ("gpu", "gpu+cpu")
"""Accelerators of the jobs that go to the target machine."""


class RoutedRunner:
    """Runs GPU jobs in one place and all others in another; a context manager.

    Args:
        local: Runs CPU, interpreter and emulated jobs.
        target: Runs the jobs that name a GPU.
    """

    def __init__(self, local: JobRunner, target: JobRunner) -> None:
        self._local, self._target = local, target

    def __enter__(self) -> RoutedRunner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.stop()

    @property
    def notes(self) -> Sequence[str]:
        """What a report should say of where jobs ran."""
        return (*self._local.notes, *self._target.notes)

    def warm_up(self) -> None:
        """Starts both sides."""
        self._local.warm_up()
        self._target.warm_up()

    def run(self, jobs: Sequence[Job], on_done: Callable[[str], None] | None = None) -> dict[str, JobResult]:
        """Runs jobs, each side its own in order, and returns one result per job, in the order asked for.

        Raises:
            RunnerError: One side gave nothing usable back at all.
        """
        far = [job for job in jobs if job.accelerator in ON_TARGET]
        near = [job for job in jobs if job.accelerator not in ON_TARGET]
        if not far or not near:
            return (self._target if far else self._local).run(jobs, on_done)
        one_at_a_time = threading.Lock()

        def done(name: str) -> None:
            if on_done is not None:
                with one_at_a_time:
                    on_done(name)

        results: dict[str, JobResult] = {}
        trouble: list[BaseException] = []

        def run_near() -> None:
            try:
                results.update(self._local.run(near, done))
            except BaseException as error:
                trouble.append(error)

        # The target's side stays in the calling thread, which is the one that Ctrl-C reaches.
        side = threading.Thread(target=run_near, daemon=True)
        side.start()
        try:
            found = self._target.run(far, done)
            while side.is_alive():
                side.join(0.2)  # without a limit Ctrl-C would wait for the thread
        except BaseException:
            self._local.stop()
            side.join()
            raise
        if trouble:
            raise trouble[0]
        results.update(found)
        return {job.id: results[job.id] for job in jobs}

    def lane(self, job: Job) -> str:
        """Returns "target" or "local"."""
        return "target" if job.accelerator in ON_TARGET else "local"

    def close(self) -> None:
        """Lets both sides end by themselves; the files stay."""
        try:
            self._target.close()
        finally:
            self._local.close()

    def stop(self) -> None:
        """Ends both sides at once."""
        try:
            self._target.stop()
        finally:
            self._local.stop()
