"""One worker process, as its parent holds it: start, send, wait, end.

`Link` is what the parent needs of any worker, be it a process here, a command, or a process on another machine.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from bisect_litert.errors import RunnerError

_EXIT_SECONDS = 5.0


class Link(Protocol):
    """A worker, wherever it runs; it fills response folders on this machine."""

    log: Path
    """What it says on stderr; may not exist."""
    streams: bool
    """Whether answers appear job by job. Where they come all at once, a job has as long as all of them together."""
    where: str
    """The folder and machine it works in, for messages; empty for this one."""

    @property
    def activity(self) -> int:
        """Grows while something is on its way, which is then no time of the job's own."""

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it lives."""

    def send(self, request: Path, response: Path) -> bool:
        """Hands over a request; False when the worker is gone."""

    def wait(self, seconds: float) -> str:
        """Waits until the worker has done a request or ends, at most `seconds`; returns "done", "ended" or ""."""

    def how_it_ended(self) -> str:
        """Says in a few words how it ended."""

    def kill(self) -> None:
        """Ends it at once, with all it started."""

    def close(self) -> None:
        """Lets it end by itself."""


class WorkerProcess:
    """A worker process in a session of its own, so that all it starts can be killed with it."""

    streams = True
    activity = 0
    where = ""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        try:
            with log.open("wb") as stderr:
                self.process = subprocess.Popen(
                    [*command, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                    env=dict(environment), start_new_session=True, bufsize=0,
                )  # fmt: skip
        except OSError as error:
            raise RunnerError(f"The worker process cannot be started: {error}.",
                              hint="Check the Python installation and the space on the disk.") from None  # fmt: skip

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it lives."""
        return self.process.poll()

    def how_it_ended(self) -> str:
        """Says in a few words how it ended."""
        return exit_detail(self.code)

    def send(self, request: Path, response: Path) -> bool:
        """Hands over a request; False when the process is gone."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{request}\t{response}\n".encode())
        except OSError:
            return False
        return True

    def wait(self, seconds: float) -> str:
        """Waits until the child says something or ends, at most `seconds`; returns "done", "ended" or ""."""
        assert self.process.stdout is not None
        # Not select.select: that refuses descriptors above 1023, which a long-lived process with many maps open has.
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            ready = selector.select(seconds)
        if not ready:
            return "" if self.process.poll() is None else "ended"
        text = os.read(self.process.stdout.fileno(), 65536)
        if not text:  # end of file: it is ending, or has closed its stdout and can never say "done"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_EXIT_SECONDS)
            return "ended"
        return "done" if b"done" in text else ""

    def kill(self) -> None:
        """Ends the whole process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._forget()

    def close(self) -> None:
        """Lets the process end by itself, which also lets the driver finish writing its shader cache."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_EXIT_SECONDS)
        self.kill()

    def _forget(self) -> None:
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def exit_detail(code: int | None) -> str:
    """Says in a few words how a process ended, from its `returncode`."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    # Nobody but the system's memory guard sends a worker this one.
    return f"signal {name}" + (" (the system may have run out of memory)" if name == "SIGKILL" else "")
