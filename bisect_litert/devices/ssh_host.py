"""A machine reached over ssh: what was sent stays there, and a connection that breaks is made again and goes on."""

from __future__ import annotations

import hashlib
import secrets
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bisect_litert.devices.request_folder import unwritable
from bisect_litert.devices.ssh_channel import Channel, ChannelLost, Frame, cannot_connect, host_of
from bisect_litert.errors import RunnerError

PIECE = 1 << 18
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before each attempt to connect again; then it is given up."""
MAX_CUTS = 5
"""Connections in a row that may break without anything having come through."""
KEEP_SECONDS = 600.0
"""How long the far end keeps its folder when a connection breaks and nobody comes back."""
_ANSWER_SECONDS = 120.0
_Result = TypeVar("_Result")


class SshHost:
    """Files, requests and answers on another machine; one connection, made when first needed.

    Args:
        ssh: ssh with its options.
        destination: Where to, as ssh takes it.
        python: The interpreter there.
        worker: Our worker's file, which runs there.
        log: Gets what ssh prints.
        keep: Seconds the folder there outlives a broken connection.
    """

    def __init__(
        self, ssh: Sequence[str], destination: str, python: str, worker: Path, log: Path, keep: float = KEEP_SECONDS
    ) -> None:
        self.name = host_of(destination)
        self.activity = 0
        """Grows with everything that comes through."""
        self.cuts = 0
        """Connections that broke since anything came through."""
        self.connections = 0
        """Connections so far. The worker of an earlier one has ended with it, so its request has to be run again."""
        self.session = ""
        self._ssh, self._destination, self._python, self._worker = tuple(ssh), destination, python, worker
        self._log, self._keep = log, keep
        self._channel: Channel | None = None
        self._events: deque[dict[str, Any]] = deque()
        self._under_way = False
        """Whether a transfer was begun and has not ended: what comes next on the connection still belongs to it."""
        self._arrived = 0
        """Bytes of unfinished files that had arrived there when last asked."""
        self._hashes: dict[tuple[int, int, int], str] = {}

    # -- the connection ------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether there is a connection, as far as is known, with nothing under way."""
        return self._channel is not None and not self._under_way

    def connect(self) -> None:
        """Connects, when there is no connection.

        Raises:
            RunnerError: It cannot be reached, or lacks what the worker needs.
        """
        if self._channel is None:
            try:
                self._open()
            except ChannelLost as lost:
                raise cannot_connect(self.name, self._python, lost) from None

    def _open(self) -> None:
        channel = Channel(self._ssh, self._destination, self._python, self._log)
        try:
            channel.send({"op": "hello", "session": self.session, "token": secrets.token_hex(8), "keep": self._keep})
            frame = channel.receive(_ANSWER_SECONDS)
            if frame is None:
                raise ChannelLost(f"it said nothing for {_ANSWER_SECONDS:g} s", None)
            if "error" in frame.head:
                raise RunnerError(
                    f"{self.name} has no folder to work in: {frame.head['error']}.",
                    hint="Make room in its temporary folder.",
                )
        except BaseException:
            channel.drop()
            raise
        self._channel, self.session = channel, str(frame.head["session"])
        self.connections += 1
        self._events.clear()
        if frame.head["lacking"]:
            lacking = " and ".join(frame.head["lacking"])
            self.close()
            raise RunnerError(
                f"{self._python} on {self.name} (Python {frame.head['python']}) lacks {lacking}.",
                hint=f"Install them there: {self._python} -m pip install numpy ai-edge-litert; or name another Python "
                "with --runner-python.",
            )

    def _reconnect(self, lost: ChannelLost) -> None:
        """Makes the connection again, in the folder it had.

        Raises:
            RunnerError: It keeps breaking, or cannot be made again.
        """
        self.drop()
        self.cuts += 1
        if self.cuts > MAX_CUTS:
            raise RunnerError(
                f"The connection to {self.name} broke {self.cuts} times in a row: {lost.said}.",
                hint="Look at the network or at the machine itself, and run again.",
            )
        for pause in PAUSES:
            time.sleep(pause)
            self.activity += 1
            try:
                return self._open()
            except ChannelLost as again:
                lost = again
        raise RunnerError(
            f"The connection to {self.name} broke and cannot be made again: {lost.said}.",
            hint="Run again when the machine can be reached.",
        )

    def _persist(self, action: Callable[[Channel], _Result]) -> _Result:
        """Does something over the connection, again when it breaks meanwhile."""
        self.connect()
        while True:
            assert self._channel is not None
            try:
                return action(self._channel)
            except ChannelLost as lost:
                self._reconnect(lost)

    def drop(self) -> None:
        """Forgets the connection, as it is."""
        channel, self._channel, self._under_way = self._channel, None, False
        if channel is not None:
            channel.drop()

    def close(self) -> None:
        """Removes the folder there and ends the connection."""
        if self._under_way:  # stopped in the middle of it, which may be far from its end
            self.drop()
        if self._channel is None and self.session:
            try:
                self._open()
            except (ChannelLost, RunnerError):  # the far end removes it by itself, later
                self.drop()
        channel, self._channel, self.session = self._channel, None, ""
        if channel is not None:
            channel.close()

    def _came_through(self) -> None:
        self.activity += 1
        self.cuts = 0

    def _ask(self, channel: Channel, op: str, **what: Any) -> dict[str, Any]:
        """Sends a frame and returns its answer; what the worker does meanwhile is kept for later."""
        channel.send({"op": op, **what})
        head = self._next(channel, op).head
        self._refuse_errors(head)
        return head

    def _next(self, channel: Channel, op: str) -> Frame:
        while True:
            frame = channel.receive(_ANSWER_SECONDS)
            if frame is None:
                raise ChannelLost(f"it said nothing for {_ANSWER_SECONDS:g} s", None)
            if frame.head.get("re") == op or "error" in frame.head:
                return frame
            if "event" in frame.head:
                self._events.append(frame.head)

    def _refuse_errors(self, head: Mapping[str, Any]) -> None:
        if "error" in head:
            what = "is full" if head.get("full") else f"cannot be written: {head['error']}"
            raise RunnerError(
                f"The disk of {self.name} that holds {self.session or 'its temporary files'} {what}.",
                hint="Free some space there, or set TMPDIR for its logins to a place with room.",
            )

    # -- requests ------------------------------------------------------------------------------------------------------

    def run(self, request: Path) -> None:
        """Sends what is not there yet of a request, and starts it, or what is left of it.

        Raises:
            RunnerError: The machine cannot be reached any more, or has no room.
        """
        paths = sorted(p for p in request.rglob("*") if p.is_file() and request / "response" not in p.parents)
        files = {path.relative_to(request).as_posix(): self._hash(path) for path in paths}
        worker = self._hash(self._worker)
        content = {self._hash(path): path for path in (*paths, self._worker)}
        self._persist(lambda channel: self._run(channel, request.name, files, worker, content))

    def _run(
        self, channel: Channel, name: str, files: Mapping[str, str], worker: str, content: Mapping[str, Path]
    ) -> None:
        self._upload(channel, content)
        self._ask(channel, "run", request=name, files=files, worker=worker)

    def _upload(self, channel: Channel, content: Mapping[str, Path]) -> None:
        for _ in range(3):
            missing: dict[str, int] = self._ask(channel, "have", hashes=list(content))["missing"]
            if not missing:
                return
            if sum(missing.values()) > self._arrived:
                self._came_through()
            self._arrived, self._under_way = sum(missing.values()), True
            for digest, at in missing.items():
                with content[digest].open("rb") as file:
                    file.seek(at)
                    while True:
                        piece = file.read(PIECE)
                        channel.send({"op": "put", "hash": digest, "at": at}, zlib.compress(piece, 1))
                        at += len(piece)
                        self.activity += 1
                        if len(piece) < PIECE:
                            break
            self._ask(channel, "stored", hashes=list(missing))
            self._arrived, self._under_way = 0, False
            self._came_through()
        raise RunnerError(f"Files arrive damaged on {self.name}.", hint="Look at its disk, and run again.")

    def _hash(self, path: Path) -> str:
        stat = path.stat()
        key = (stat.st_ino, stat.st_mtime_ns, stat.st_size)  # requests share their files by hard links
        if key not in self._hashes:
            whole = hashlib.sha256()
            with path.open("rb") as file:
                for piece in iter(partial(file.read, PIECE), b""):
                    whole.update(piece)
            self._hashes[key] = whole.hexdigest()
        return self._hashes[key]

    def event(self, seconds: float) -> dict[str, Any] | None:
        """Returns what the worker there did next, or None when it did nothing in that time.

        Raises:
            RunnerError: The connection broke and cannot be made again.
        """
        if not self._events:
            self.connect()
            assert self._channel is not None
            try:
                frame = self._channel.receive(seconds)
            except ChannelLost as lost:
                self._reconnect(lost)
                return None
            if frame is None or "event" not in frame.head:
                return None
            self._events.append(frame.head)
        return self._events.popleft()

    def fetch(self, request: str, job: str, names: Sequence[str], folder: Path) -> None:
        """Brings files of an answer here; each is there whole or not at all, the last of them last.

        Raises:
            RunnerError: The machine cannot be reached any more, or the disk here is full.
        """
        for _ in range(3):
            try:
                if self._persist(lambda channel: self._fetch(channel, request, job, names, folder)):
                    return
            except OSError as error:
                self.drop()  # what is still on its way would be taken for the answer to something else
                raise unwritable(folder, error) from None
        raise RunnerError(f"Files arrive damaged from {self.name}.", hint="Look at the disks, and run again.")

    def _fetch(self, channel: Channel, request: str, job: str, names: Sequence[str], folder: Path) -> bool:
        """Returns whether all of them arrived as they are there."""
        names = [name for name in names if not (folder / name).exists()]
        partials = {name: folder / f"{name}.partial" for name in names}
        wanted = [[name, path.stat().st_size if path.exists() else 0] for name, path in partials.items()]
        channel.send({"op": "get", "request": request, "job": job, "files": wanted})
        good, self._under_way = True, True
        for name, path in partials.items():
            whole = hashlib.sha256()
            if path.exists():
                with path.open("rb") as file:
                    for piece in iter(partial(file.read, PIECE), b""):
                        whole.update(piece)
            with path.open("ab") as file:
                while True:
                    frame = self._next(channel, "get")
                    self._refuse_errors(frame.head)
                    if not frame.body:
                        break
                    piece = zlib.decompress(frame.body)
                    whole.update(piece)
                    file.write(piece)
                    self._came_through()
            if frame.head.get("end") == whole.hexdigest():
                path.replace(folder / name)
            else:
                path.unlink()
                good = good and bool(frame.head.get("absent"))
        self._under_way = False
        return good

    def end_worker(self, *, kill: bool) -> None:
        """Ends the worker there; nothing happens when the connection is gone, since the worker is then as well."""
        if self._channel is not None and not self._under_way:
            try:
                self._ask(self._channel, "kill" if kill else "end")
            except ChannelLost:
                self.drop()
