"""Runs jobs on a machine reached over ssh, with our own worker there, kept warm."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bisect_litert.devices.runners import WORKER_FILE, Runner
from bisect_litert.devices.ssh_host import KEEP_SECONDS, SshHost
from bisect_litert.devices.worker_process import Link, exit_detail
from bisect_litert.errors import RunnerError

ANSWER = "response.json"


class SshRunner(Runner):
    """Runs jobs over ssh; a context manager.

    Args:
        work_dir: Folder here for requests and responses; created when missing.
        time_limit: Seconds one job may take, transfers not counted.
        ssh: ssh with its options.
        destination: Where to, as ssh takes it.
        python: The interpreter there, with numpy and ai-edge-litert.
        keep: Seconds the folder there outlives a broken connection.
        worker: The file that runs there.
    """

    def __init__(
        self,
        work_dir: Path,
        time_limit: float,
        ssh: Sequence[str],
        destination: str,
        python: str = "python3",
        keep: float = KEEP_SECONDS,
        worker: Path = WORKER_FILE,
    ) -> None:
        super().__init__(work_dir, time_limit)
        self.host = SshHost(ssh, destination, python, worker, self.work_dir / "ssh.log", keep)

    def close(self) -> None:
        """Ends the worker, removes its folder there and closes the connection; the files here stay."""
        try:
            super().close()
        finally:
            self.host.close()

    def stop(self) -> None:
        """The same at once."""
        try:
            super().stop()
        finally:
            self.host.close()

    def _link(self, log: Path, environment: Mapping[str, str]) -> Link:
        self.host.connect()
        return _SshLink(self.host, log)

    def _place(self) -> tuple[str, str]:
        return f"on {self.host.name}", " there: python3"


class _SshLink:
    """The worker there, seen from here."""

    streams = True

    def __init__(self, host: SshHost, log: Path) -> None:
        self._host, self.log = host, log
        self.where = f"{host.session} on {host.name}"
        self.code: int | None = None
        self._request, self._response = Path(), Path()
        self._started: list[str] = []
        self._connection = 0

    @property
    def activity(self) -> int:
        return self._host.activity

    def send(self, request: Path, response: Path) -> bool:
        self._request, self._response, self._started = request, response, []
        self._run()
        return True

    def _run(self) -> None:
        self._host.run(self._request)
        self._connection = self._host.connections

    def wait(self, seconds: float) -> str:
        if self._connection != self._host.connections:
            self._run()  # what was under way ended with the connection; what is not answered yet starts again
        event = self._host.event(seconds)
        return self._see(event) if event is not None and event["request"] == self._request.name else ""

    def _see(self, event: Mapping[str, Any]) -> str:
        kind = event["event"]
        if kind == "done":
            self._fetch_logs()
            return "done"
        if kind == "ended":
            self.code = int(event["code"])
            self.log.write_text(event["log"], encoding="utf-8")
            self._fetch_logs()
            return "ended"
        folder = self._response / event["job"]
        folder.mkdir(exist_ok=True)
        if kind == "started":
            (folder / "started").touch()
            self._started.append(event["job"])
        elif not (folder / ANSWER).exists():
            names = [name for name, _ in event["files"] if name not in (ANSWER, "started")]
            self._host.fetch(self._request.name, event["job"], [*names, ANSWER], folder)
        return ""

    def _fetch_logs(self) -> None:
        """Brings what a job printed that was never answered."""
        for job in self._started:
            folder = self._response / job
            if not (folder / ANSWER).exists():
                self._host.fetch(self._request.name, job, ["stderr.log"], folder)

    def how_it_ended(self) -> str:
        return f"{exit_detail(self.code)} on {self._host.name}"

    def kill(self) -> None:
        if self.code is None:
            self._host.end_worker(kill=True)
            self.code = -9
            if self._host.idle:
                with contextlib.suppress(RunnerError, OSError):  # such a log is not worth another failure
                    self._fetch_logs()

    def close(self) -> None:
        if self.code is None:
            self._host.end_worker(kill=False)
            self.code = 0
