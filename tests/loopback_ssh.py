"""A real sshd on loopback: unprivileged, with keys and configuration of its own; and a wire to it that can be cut."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/sbin")
needs_sshd = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None, reason="no sshd here (Debian, Ubuntu: apt install openssh-server)"
)


class LoopbackSsh:
    """An sshd that lets this user in with a key made for it; a context manager."""

    def __init__(self, folder: Path) -> None:
        assert SSHD is not None
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # root's sshd insists on it
        for name in ("host_key", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        config = folder / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {folder}/key.pub\nStrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\n"
        )
        self.options = (
            f"-F none -i {folder}/key -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no "
            f"-o UserKnownHostsFile={folder}/known -o LogLevel=ERROR"
        )
        self._log = folder / "sshd.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stdin=subprocess.DEVNULL, stderr=log)

    def __enter__(self) -> LoopbackSsh:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return self
            time.sleep(0.05)
        raise RuntimeError(self._log.read_text())

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def command(self, port: int = 0) -> str:
        """What --runner takes."""
        return f"ssh {self.options} -p {port or self.port} {getpass.getuser()}@127.0.0.1"


class Wire:
    """Passes connections on to a port, and cuts each after so many bytes in one direction; a context manager.

    Args:
        port: Where connections end.
        down: For each connection in turn, after how many bytes towards the caller it is cut; then no more cuts.
        up: The same for bytes from the caller.
    """

    def __init__(self, port: int, down: tuple[int, ...] = (), up: tuple[int, ...] = ()) -> None:
        self._target, self._down, self._up = port, list(down), list(up)
        self.connections = 0
        self.passed: list[int] = []
        """Bytes towards the caller, by connection."""
        self.sent: list[int] = []
        """Bytes from the caller likewise."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []

    def __enter__(self) -> Wire:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone leaves the thread that accepts
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Cuts what is open now."""
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._open = []

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                number, self.connections = self.connections, self.connections + 1
                self._open += [near, far]
                self.passed.append(0)
                self.sent.append(0)
                down = self._down[number] if number < len(self._down) else 0
                up = self._up[number] if number < len(self._up) else 0
                for a, b, limit, counts in ((near, far, up, self.sent), (far, near, down, self.passed)):
                    threading.Thread(target=self._pump, args=(a, b, limit, counts, number), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, limit: int, counts: list[int], number: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 14):
                counts[number] += len(data)
                if limit and counts[number] > limit:
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
