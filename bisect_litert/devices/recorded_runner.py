"""A runner without a machine: answers come from a folder of results, and jobs that have none become its next round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from bisect_litert.devices.device_folder import DeviceFolder, key_of
from bisect_litert.devices.jobs import NOT_RUN, Job, JobResult

NOT_YET = "not run on the device yet"


class RecordedRunner:
    """Answers GPU jobs from an export folder; a context manager.

    Args:
        folder: The export folder. A next round is written into it when this ends and jobs were left without an answer.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = DeviceFolder(folder)
        self._wanted: dict[str, Job] = {}
        self._waiting: list[str] = []
        self._shortcomings: dict[str, None] = {}

    def __enter__(self) -> RecordedRunner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    @property
    def notes(self) -> list[str]:
        """What a report has to say: results that are incomplete, odd, or not there yet."""
        notes = [*self._folder.doubts, *self._shortcomings]
        strangers = self._folder.strangers()
        if strangers:
            notes.append(f"Results that no entry of the manifest asks for were left out: {', '.join(strangers[:5])}.")
        if self._waiting:
            some = ", ".join(self._waiting[:6]) + (" ..." if len(self._waiting) > 6 else "")
            one = len(self._waiting) == 1
            runs = "1 run has" if one else f"{len(self._waiting)} runs have"
            notes.append(
                f"{runs} no result from the device yet ({some}): what {'it' if one else 'they'} would tell is left "
                f"open, and the next round of the export asks for {'it' if one else 'them'}."
            )
        return notes

    def warm_up(self) -> None:
        """There is nothing to start."""

    def run(self, jobs: Sequence[Job], on_done: Callable[[str], None] | None = None) -> dict[str, JobResult]:
        """Returns what came back from the device; a job that has no result is one that did not run."""
        results = {}
        for job in jobs:
            found = self._folder.answer(key := key_of(job), job)
            if found is None:
                self._want(key, job)
                results[job.id] = JobResult(job.id, NOT_RUN, NOT_YET)
                continue
            results[job.id], shortcomings = found
            if shortcomings:
                self._shortcomings[shortcomings] = None
            if on_done is not None:
                on_done(job.id)
        return results

    def lane(self, job: Job) -> str:
        """Returns "": it is one folder."""
        del job
        return ""

    def close(self) -> None:
        """Writes the next round, if there is anything to ask for."""
        wanted, self._wanted = self._wanted, {}
        if wanted:
            self._folder.write_round(wanted)

    def stop(self) -> None:
        """The same: what was asked for before something went wrong is worth asking a device."""
        self.close()

    def _want(self, key: str, job: Job) -> None:
        self._waiting.append(job.id)
        if key in self._folder.entries:
            return
        self._wanted.setdefault(key, job)
        # What the first look nearly always asks for next, so that it need not wait for another round.
        if self._folder.rounds:
            return
        if job.id == "gpu-untapped":
            again = replace(job, id="gpu-again")
            self._wanted.setdefault(key_of(again), again)
        elif (job.id == "gpu" or job.id.startswith("gpu-part")) and not job.fp32:
            control = replace(job, id=f"gpu-fp32{job.id[3:]}", fp32=True)
            self._wanted.setdefault(key_of(control), control)
