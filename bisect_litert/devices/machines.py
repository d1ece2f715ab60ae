"""Where jobs run: all of them in the local worker, or the GPU's share of them somewhere else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bisect_litert.devices.command_runner import REQUEST, RESPONSE, CommandRunner, parse_command
from bisect_litert.devices.device_folder import DeviceFolder
from bisect_litert.devices.jobs import JobRunner
from bisect_litert.devices.recorded_runner import RecordedRunner
from bisect_litert.devices.routing import RoutedRunner
from bisect_litert.devices.runners import Runner, worker_command
from bisect_litert.devices.ssh_channel import host_of, parse_ssh
from bisect_litert.devices.ssh_runner import SshRunner
from bisect_litert.errors import UsageError
from bisect_litert.records.environment import OTHER_RUNTIME
from bisect_litert.request import RUNNER_PYTHON, BisectRequest


def open_runner(work: Path, request: BisectRequest) -> JobRunner:
    """Returns the runner that a request asks for; nothing is started yet.

    Args:
        work: Folder for what is sent and received.
        request: Says which machine or which interpreter the GPU jobs are for.
    """
    check(request)
    local = Runner(work, request.time_limit, alone=request.alone)
    target = work / "target"
    if request.runner:
        return RoutedRunner(local, _elsewhere(target, request))
    if request.answers:
        return RoutedRunner(local, RecordedRunner(request.answers))
    if request.python:
        there = Runner(target, request.time_limit, worker_command(request.python), alone=request.alone)
        return RoutedRunner(local, there)
    if request.no_gpu:
        return local
    # A worker for the GPU and one for the CPU: while the one compiles, the other's runs go on.
    return RoutedRunner(local, Runner(work, request.time_limit, alone=request.alone, name="gpu"))


def _elsewhere(work: Path, request: BisectRequest) -> JobRunner:
    """Raises: UsageError: The runner cannot be read as a command, or names ssh and no host."""
    command = parse_command(request.runner)
    if not _is_ssh(command):
        return CommandRunner(work, request.time_limit, command)
    ssh, destination = parse_ssh(command[:-2])
    return SshRunner(work, request.time_limit, ssh, destination, request.runner_python)


def _is_ssh(command: Sequence[str]) -> bool:
    return Path(command[0]).name == "ssh" and tuple(command[-2:]) == (REQUEST, RESPONSE)


def check(request: BisectRequest) -> None:
    """Refuses a request that names no usable place, before anything slow is done.

    Raises:
        UsageError: The command cannot be read, or two places are named, or no GPU run is wanted.
    """
    if not request.runner:
        return
    if request.python:
        raise UsageError("A runner and another interpreter are two places.", hint="Name one of them.")
    if request.no_gpu:
        raise UsageError("--no-gpu leaves nothing for --runner to run.", hint="Leave one of them out.")
    command = parse_command(request.runner)
    if _is_ssh(command):
        parse_ssh(command[:-2])
    elif request.runner_python != RUNNER_PYTHON:
        raise UsageError(
            "--runner-python names the Python that ssh starts, and --runner is another command.",
            hint="Let that command choose its own.",
        )


def device_name(request: BisectRequest) -> str | None:
    """Returns what reports call the place of the GPU jobs: empty if it names itself, None if it is where all runs."""
    if request.runner:
        command = parse_command(request.runner)
        return host_of(parse_ssh(command[:-2])[1]) if _is_ssh(command) else ""
    if request.answers:
        return DeviceFolder(request.answers).about().get("device", "a device reached by hand")
    return OTHER_RUNTIME if request.python else None
