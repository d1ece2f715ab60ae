"""Runs jobs through a command of the user's: it takes a request folder and leaves a response folder.

The command is started anew for every request. What it owes is what `worker.py REQUEST RESPONSE` does (docs/devices.md);
what it fails to give is data, as with our own worker.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bisect_litert.devices.jobs import read_text
from bisect_litert.devices.runners import Runner
from bisect_litert.devices.worker_process import Link, exit_detail
from bisect_litert.errors import RunnerError, UsageError

REQUEST, RESPONSE = "{request}", "{response}"


def parse_command(text: str) -> tuple[str, ...]:
    """Splits a command as a shell does, and says where the two folders go.

    Raises:
        UsageError: It is empty, a quote is open, or it names only one of the folders.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--runner {text!r} cannot be read: {error}.", hint="Check its quotes.") from None
    if not words:
        raise UsageError("--runner is empty.", hint='Give a command, or "ssh HOST".')
    named = [mark for mark in (REQUEST, RESPONSE) if any(mark in word for word in words)]
    if len(named) == 1:
        raise UsageError(
            f"--runner {text!r} has {named[0]} and lacks {(RESPONSE if named[0] == REQUEST else REQUEST)}.",
            hint="Name both, or neither: then they are its last two arguments.",
        )
    return tuple(words) if named else (*words, REQUEST, RESPONSE)


class CommandRunner(Runner):
    """Runs jobs through a command; a context manager.

    Args:
        work_dir: Folder for requests and responses; created when missing.
        time_limit: Seconds one job may take; where answers come all at once, that many times the number of jobs.
        command: The command, with `{request}` and `{response}` where the folders go.
    """

    def __init__(self, work_dir: Path, time_limit: float, command: Sequence[str]) -> None:
        super().__init__(work_dir, time_limit, command)

    def _link(self, log: Path, environment: Mapping[str, str]) -> Link:
        return _CommandLink(self._command, log, environment)

    def _no_start(self, child: Link, timed_out: bool) -> RunnerError:
        name = shlex.join(word for word in self._command if word not in (REQUEST, RESPONSE))
        lines = read_text(child.log).strip().splitlines()
        how = "had left nothing when its time was over" if timed_out else f"left no answer: {child.how_it_ended()}"
        return RunnerError(
            f"The runner {name!r} {how}.",
            hint="Run it by hand with a request folder and an empty one, which has to hold JOB/response.json then.",
            detail="\n".join(lines[-20:]),
        )


class _CommandLink:
    """One command after the other, as a worker."""

    streams = False
    activity = 0
    where = ""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._command, self.log, self._environment = command, log, environment
        self._process: subprocess.Popen[bytes] | None = None
        self._response = Path()
        log.write_bytes(b"")

    @property
    def code(self) -> int | None:
        return self._process.poll() if self._process else None

    def send(self, request: Path, response: Path) -> bool:
        """Starts the command.

        Raises:
            RunnerError: There is no such command.
        """
        places = {REQUEST: str(request), RESPONSE: str(response)}
        words = [word.replace(REQUEST, places[REQUEST]).replace(RESPONSE, places[RESPONSE]) for word in self._command]
        self._response = response
        try:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    env=dict(self._environment), start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise RunnerError(
                f"The runner {words[0]!r} cannot be started: {error.strerror or error}.",
                hint="Give --runner a command that exists, with its path.",
            ) from None
        return True

    def wait(self, seconds: float) -> str:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        if self._process.poll() is None:
            return ""
        if self._process.returncode == 0 and next(self._response.glob("*/response.json"), None) is not None:
            return "done"
        return "ended"

    def how_it_ended(self) -> str:
        said = exit_detail(self.code)
        last = next((line.strip() for line in reversed(read_text(self.log).splitlines()) if line.strip()), "")
        return f"{said}: {last}" if last else said

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        self.kill()
