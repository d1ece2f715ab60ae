"""Where jobs run: all of them in the local worker, or the GPU's share of them somewhere else."""

from __future__ import annotations

from pathlib import Path

from bisect_litert.jobs import JobRunner
from bisect_litert.request import BisectRequest
from bisect_litert.routing import RoutedRunner
from bisect_litert.runners import Runner, worker_command


def open_runner(work: Path, request: BisectRequest) -> JobRunner:
    """Returns the runner that a request asks for; nothing is started yet.

    Args:
        work: Folder for what is sent and received.
        request: Says which machine or which interpreter the GPU jobs are for.
    """
    local = Runner(work, request.time_limit)
    if request.python:
        return RoutedRunner(local, Runner(work / "target", request.time_limit, worker_command(request.python)))
    return local
