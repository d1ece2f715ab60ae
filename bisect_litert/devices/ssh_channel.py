"""One ssh process and the far end that it started (far_end.py), as a stream of frames.

All of a run goes through one connection. ssh is the user's own, with their configuration, keys and agent.
"""

from __future__ import annotations

import contextlib
import io
import json
import queue
import shlex
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisect_litert.errors import RunnerError, UsageError

FAR_END = Path(__file__).with_name("far_end.py")
GREETING = "bisect-litert far end 1"
_WITH_VALUE = "BbcDEeFIiJLlmOoPpQRSWw"
"""ssh's options that take a value."""
_KEEP_ALIVE = ("-T", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4", "-o", "ConnectTimeout=20")
# Ctrl-C is ours to handle: it must not take the connection away before the far end has cleaned up. Ignored signals stay
# ignored across exec.
_SHIELD = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
_BOOT = (
    "import sys;sys.version_info>=(3,9) or sys.exit(sys.executable+' is Python '+sys.version.split()[0]"
    "+', and 3.9 is needed');exec(compile(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())),'far_end','exec'))"
)


class ChannelLost(Exception):
    """The connection is gone; the text says what ssh said."""

    def __init__(self, said: str, code: int | None) -> None:
        super().__init__(said)
        self.said, self.code = said, code


@dataclass(frozen=True, slots=True)
class Frame:
    """What the far end sent: a head, and content that some heads announce."""

    head: dict[str, Any]
    body: bytes = b""


def parse_ssh(words: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Splits an ssh command line into ssh with its options, and the destination.

    Raises:
        UsageError: There is no destination, or something after it that is no option.
    """
    options, rest = [words[0]], list(words[1:])
    destination = ""
    while rest:
        word = rest.pop(0)
        if word.startswith("-") and len(word) > 1:
            options.append(word)
            letters = word[1:]
            at = next((i for i, letter in enumerate(letters) if letter in _WITH_VALUE), None)
            if at == len(letters) - 1 and rest:
                options.append(rest.pop(0))
        elif destination:
            raise UsageError(
                f"--runner has {word!r} after the host {destination!r}.",
                hint='Give "ssh HOST" alone: what runs there is our own worker.',
            )
        else:
            destination = word
    if not destination:
        raise UsageError("--runner names ssh and no host.", hint='For example --runner "ssh user@host".')
    return tuple(options), destination


def host_of(destination: str) -> str:
    """Returns the host's name alone: "user@host" and "ssh://user@host:22" give "host"."""
    name = destination.removeprefix("ssh://").rpartition("@")[2]
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0] if destination.startswith("ssh://") else name


class Channel:
    """An open connection.

    Args:
        ssh: ssh with its options.
        destination: Where to.
        python: The interpreter there.
        log: Gets what ssh and the far end print.

    Raises:
        RunnerError: There is no ssh here.
    """

    def __init__(self, ssh: Sequence[str], destination: str, python: str, log: Path) -> None:
        self._log = log
        if shutil.which(ssh[0]) is None:
            raise RunnerError(
                f"There is no {ssh[0]} here.", hint="Install an ssh client (Debian, Ubuntu: openssh-client)."
            )
        home, rest = ("~/", python[2:]) if python.startswith("~/") else ("", python)  # the shell there knows its home
        remote = f"exec {home}{shlex.quote(rest)} -u -c {_double_quoted(_BOOT)}"
        command = [*_SHIELD, *ssh, *_KEEP_ALIVE, "--", destination, remote]
        with log.open("ab") as stderr:
            self._said_from = stderr.tell()
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=0
            )
        self._inbox: queue.Queue[Frame | None] = queue.Queue(8)
        self._closed = False
        text = FAR_END.read_bytes()
        with contextlib.suppress(ChannelLost):  # said when its first answer does not come
            self._write(f"{len(text)}\n".encode() + text)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        """Sends a frame.

        Raises:
            ChannelLost: The connection is gone.
        """
        if body:
            head = {**head, "n": len(body)}
        self._write(json.dumps(head).encode() + b"\n" + body)

    def receive(self, seconds: float | None = None) -> Frame | None:
        """Returns the next frame, or None when none came in time.

        Raises:
            ChannelLost: The connection is gone.
        """
        try:
            frame = self._inbox.get(timeout=seconds) if not self._closed else None
        except queue.Empty:
            return None
        if frame is None:
            self._closed = True
            raise self._lost()
        return frame

    def close(self, seconds: float = 5.0) -> None:
        """Says goodbye, upon which the far end removes its folder, and ends the connection."""
        with contextlib.suppress(ChannelLost):
            self.send({"op": "bye"})
            while (frame := self.receive(seconds)) is not None:
                if frame.head.get("re") == "bye":
                    break
        self.drop()

    def drop(self) -> None:
        """Ends the connection without a word."""
        self._closed = True
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        # It closes its stream itself: a descriptor that is free again may be the next connection's.
        for _ in range(250):
            if not self._listener.is_alive():
                break
            with contextlib.suppress(queue.Empty):
                self._inbox.get(timeout=0.02)

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            view = memoryview(data)
            while view:
                view = view[self._process.stdin.write(view) :]
        except (OSError, ValueError):
            raise self._lost() from None
        except BaseException:  # Ctrl-C: with half a frame sent, nothing more can be said
            self.drop()
            raise

    def _listen(self) -> None:
        raw: Any = self._process.stdout
        with contextlib.suppress(OSError, ValueError), io.BufferedReader(raw) as said:
            for line in said:  # whatever login scripts print comes first
                if line.decode(errors="replace").strip() == GREETING:
                    break
            for line in said:
                head = json.loads(line)
                body = said.read(head["n"]) if "n" in head else b""
                if len(body) < head.get("n", 0):
                    break
                self._inbox.put(Frame(head, body))
        self._inbox.put(None)

    def _lost(self) -> ChannelLost:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        with self._log.open("rb") as file:
            file.seek(self._said_from)
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        return ChannelLost((lines[-1] if lines else "the connection was closed").rstrip("."), self._process.poll())


def _double_quoted(text: str) -> str:
    """Quotes for any shell there may be: the text has no double quote, dollar, backslash, backtick, or "!"."""
    assert not set(text) & set('"$\\`!')
    return f'"{text}"'


def cannot_connect(host: str, python: str, lost: ChannelLost) -> RunnerError:
    """The error for a connection that did not come about, from how ssh ended."""
    if lost.code == 255:
        return RunnerError(
            f"{host} cannot be reached over ssh: {lost.said}.", hint="Check that the same ssh command logs in by hand."
        )
    if lost.code in (126, 127):
        return RunnerError(
            f"{host} has no {python}: {lost.said}.",
            hint="Install Python 3.9 or newer there, or name one: --runner-python.",
        )
    return RunnerError(
        f"{host}: {lost.said}.", hint="Check what the same ssh command with `python3 --version` behind it prints."
    )
