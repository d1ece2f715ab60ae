"""The far end of an ssh connection: keeps files by hash, runs the worker there and sends back what it leaves.

Its text goes over the connection and is run by the Python there, which needs nothing but the standard library for it.
Both sides speak frames: a line of JSON, followed by as many bytes as its "n" says. File content comes in pieces that
are compressed each on its own, so that a transfer can go on at any piece. Everything lies in one folder, the session:

    store/HASH, store/HASH.partial     files that were sent, complete and not
    requests/NAME/...                  a request, made of links into the store; its answers in NAME/response/
    owner                              a word that the newest connection wrote; an older far end that reads it ends

A connection that breaks leaves the session for `keep` seconds; whoever connects again goes on with it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

GREETING = "bisect-litert far end 1"
PREFIX = "bisect-litert-far-"
PIECE = 1 << 18
_STALE_SECONDS = 2 * 86400.0
_TICK = 0.05
_TAIL = 4000
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Gone(Exception):
    """The connection is closed, or another far end has taken over."""


class FarEnd:
    """Serves one connection."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink
        self._inbox: queue.Queue[tuple[str, Any, bytes]] = queue.Queue(8)
        self._session = Path()
        self._token = ""
        self._lock: Any = None
        self._keep = 600.0
        self._worker: Any = None
        self._log = Path()
        self._workers = 0
        self._request = Path()
        self._waiting: dict[str, bool] = {}
        """Jobs of the running request that are not answered; whether "started" was told."""
        self._trouble: OSError | None = None

    def serve(self) -> None:
        """Answers frames and tells of the worker until the connection closes."""
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            while True:
                try:
                    kind, head, body = self._inbox.get(timeout=_TICK if self._waiting else 1.0)
                except queue.Empty:
                    self._look()
                    continue
                if kind == "closed":
                    raise Gone
                if kind == "worker":
                    self._look()
                    self._heard(head)
                    continue
                try:
                    leave = self._answer(head, body)
                except OSError as error:
                    if isinstance(error, BrokenPipeError):
                        raise
                    self._say({"re": head["op"], "error": f"{error.strerror or error}", "full": error.errno in _FULL})
                    continue
                if leave:
                    return
        except (Gone, KeyboardInterrupt, BrokenPipeError):
            self._stop_worker()
            self._wait_for_successor()
        finally:
            self._stop_worker()

    # -- the connection ------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                line = self._source.readline()
                if not line:
                    break
                head = json.loads(line)
                body = self._source.read(head["n"]) if head.get("n") else b""
                if len(body) < head.get("n", 0):
                    break
                self._inbox.put(("frame", head, body))
        self._inbox.put(("closed", None, b""))

    def _say(self, head: dict[str, Any], body: bytes = b"") -> None:
        head = {**head, "n": len(body)} if body else head
        self._sink.write(json.dumps(head).encode() + b"\n" + body)
        self._sink.flush()

    def _answer(self, head: dict[str, Any], body: bytes) -> bool:
        """Does what a frame asks for; returns whether that was the last one."""
        op = head["op"]
        if op == "put":  # many of them, answered by "stored"
            self._put(head, body)
        elif op == "get":
            self._get(head)
        elif op == "bye":
            self._stop_worker()
            shutil.rmtree(self._session, ignore_errors=True)
            self._say({"re": op})
            return True
        else:
            reply = getattr(self, f"_do_{op}")(head)
            self._say({"re": op, **(reply or {})})
        return False

    # -- the session ---------------------------------------------------------------------------------------------------

    def _do_hello(self, head: dict[str, Any]) -> dict[str, Any]:
        self._token, self._keep = head["token"], head["keep"]
        _remove_stale()
        before = Path(head["session"]) if head["session"] else None
        known = before is not None and before.name.startswith(PREFIX) and (before / "owner").is_file()
        self._session = before if known and before is not None else Path(tempfile.mkdtemp(prefix=PREFIX))
        for name in ("store", "requests"):
            (self._session / name).mkdir(exist_ok=True)
        (self._session / "owner").write_text(self._token)
        self._lock = (self._session / "lock").open("w")
        for _ in range(200):  # the far end of the broken connection may still be ending its worker
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(_TICK)
        lacking = [name for name in ("numpy", "ai_edge_litert") if find_spec(name) is None]
        python = ".".join(map(str, sys.version_info[:3]))
        return {"session": str(self._session), "python": python, "lacking": lacking}

    def _owned(self) -> bool:
        try:
            return (self._session / "owner").read_text() == self._token
        except OSError:
            return False

    def _wait_for_successor(self) -> None:
        """Keeps the session for whoever connects again, and removes it when nobody does."""
        for stream in (0, 1, 2):  # nothing may keep the connection's channel open
            with contextlib.suppress(OSError):
                os.close(stream)
        if self._lock:
            self._lock.close()
        until = time.monotonic() + self._keep
        while self._token and self._owned():
            if time.monotonic() > until:
                shutil.rmtree(self._session, ignore_errors=True)
                return
            time.sleep(min(1.0, self._keep))

    # -- files ---------------------------------------------------------------------------------------------------------

    def _do_have(self, head: dict[str, Any]) -> dict[str, Any]:
        """Which files are missing, with the bytes that are there of each."""
        store = self._session / "store"
        missing = {}
        for name in head["hashes"]:
            partial = store / f"{name}.partial"
            if not (store / name).exists():
                missing[name] = partial.stat().st_size if partial.exists() else 0
        return {"missing": missing}

    def _put(self, head: dict[str, Any], body: bytes) -> None:
        if self._trouble:
            return
        path = self._session / "store" / f"{head['hash']}.partial"
        try:
            with path.open("r+b" if path.exists() else "wb") as file:
                file.truncate(head["at"])
                file.seek(head["at"])
                file.write(zlib.decompress(body) if body else b"")
        except OSError as error:
            self._trouble = error

    def _do_stored(self, head: dict[str, Any]) -> dict[str, Any]:
        """Says which of the files that were put arrived whole."""
        trouble, self._trouble = self._trouble, None
        if trouble:
            raise trouble
        damaged = []
        for name in head["hashes"]:
            partial = self._session / "store" / f"{name}.partial"
            if not partial.exists() or _digest(partial) != name:
                damaged.append(name)
                with contextlib.suppress(OSError):
                    partial.unlink()
            else:
                partial.replace(partial.with_suffix(""))
        return {"damaged": damaged}

    def _get(self, head: dict[str, Any]) -> None:
        """Sends files piece by piece, each from where the other side has it already, and its hash at the end."""
        folder = self._session / "requests" / head["request"] / "response" / head["job"]
        for name, at in head["files"]:
            whole = hashlib.sha256()
            path = folder / Path(name).name
            if not path.is_file():
                self._say({"re": "get", "file": name, "absent": True})
                continue
            with path.open("rb") as file:
                while file.tell() < at:
                    whole.update(file.read(min(PIECE, at - file.tell())))
                for piece in iter(lambda: file.read(PIECE), b""):
                    whole.update(piece)
                    self._say({"re": "get", "file": name}, zlib.compress(piece, 1))
            self._say({"re": "get", "file": name, "end": whole.hexdigest()})

    # -- the worker ----------------------------------------------------------------------------------------------------

    def _do_run(self, head: dict[str, Any]) -> None:
        """Starts a request, or what is left of one that was interrupted."""
        self._request = self._session / "requests" / head["request"]
        store = self._session / "store"
        for name, digest in head["files"].items():
            path = self._request / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            os.link(store / digest, path)
        response = self._request / "response"
        response.mkdir(exist_ok=True)
        asked = json.loads((self._request / "request.json").read_text(encoding="utf-8"))
        left = [job for job in asked["jobs"] if not (response / job["id"] / "response.json").exists()]
        for job in left:
            shutil.rmtree(response / job["id"], ignore_errors=True)
        todo = self._request / "request.json.partial"
        todo.write_text(json.dumps({"jobs": left}), encoding="utf-8")
        todo.replace(self._request / "request.json")
        self._waiting = {job["id"]: False for job in asked["jobs"]}
        if self._worker is None or self._worker.poll() is not None:
            self._start_worker(store / head["worker"])
        with contextlib.suppress(OSError):  # it died: that is told by what watches it
            self._worker.stdin.write(f"{self._request}\t{response}\n".encode())

    def _do_kill(self, _: dict[str, Any]) -> None:
        self._stop_worker()

    def _do_end(self, _: dict[str, Any]) -> None:
        """Lets the worker end by itself, which lets the driver write its shader cache."""
        if self._worker:
            self._worker.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._worker.wait(5)
        self._stop_worker()

    def _start_worker(self, script: Path) -> None:
        self._workers += 1
        self._log = self._session / f"worker-{self._workers}.log"
        with self._log.open("wb") as stderr:
            self._worker = subprocess.Popen(
                [sys.executable, str(script), "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=stderr, start_new_session=True, bufsize=0,
                env={"XDG_RUNTIME_DIR": str(self._session), **os.environ},  # one it made would stay if it is killed
            )  # fmt: skip
        threading.Thread(target=self._hear, args=(self._worker,), daemon=True).start()

    def _hear(self, worker: Any) -> None:
        for line in worker.stdout:
            if line.strip() == b"done":
                self._inbox.put(("worker", (worker, True), b""))
        worker.wait()
        self._inbox.put(("worker", (worker, False), b""))

    def _heard(self, said: tuple[Any, bool]) -> None:
        worker, done = said
        if worker is not self._worker:
            return  # one that was ended on purpose
        if done:
            self._waiting = {}
            self._say({"event": "done", "request": self._request.name})
            return
        self._worker = None
        text = self._log.read_text(encoding="utf-8", errors="replace")[-_TAIL:]
        self._say({"event": "ended", "request": self._request.name, "code": worker.returncode, "log": text})

    def _look(self) -> None:
        """Tells which jobs have started and which are answered since the last look."""
        if self._token and not self._owned():
            raise Gone
        for job, told in list(self._waiting.items()):
            folder = self._request / "response" / job
            if (folder / "response.json").exists():
                del self._waiting[job]
                files = [[path.name, path.stat().st_size] for path in sorted(folder.iterdir())]
                self._say({"event": "answered", "request": self._request.name, "job": job, "files": files})
            elif not told and (folder / "started").exists():
                self._waiting[job] = True
                self._say({"event": "started", "request": self._request.name, "job": job})

    def _stop_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


def _digest(path: Path) -> str:
    whole = hashlib.sha256()
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(PIECE), b""):
            whole.update(piece)
    return whole.hexdigest()


def _remove_stale() -> None:
    """Removes sessions that nobody came back to: their far end was killed before it could."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid() and time.time() - (path / "owner").stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    """Greets, so that the other side can tell this from what a login script prints, and serves."""
    for end in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(end, signal.default_int_handler)
    sys.stdout.buffer.write(f"\n{GREETING}\n".encode())
    sys.stdout.buffer.flush()
    with contextlib.suppress(Gone, KeyboardInterrupt):
        FarEnd(sys.stdin.buffer, sys.stdout.buffer).serve()
    os._exit(0)  # a thread may still be reading stdin, which an ordinary exit would wait for


if __name__ == "__main__":
    main()
