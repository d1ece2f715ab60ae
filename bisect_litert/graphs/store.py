"""Files kept by the key of what they were made from: a folder in the user's cache that any number of runs share.

An entry is there whole or not at all, carries its own digest, and is dropped when that does not fit: whatever is wrong
with the folder costs a file made once more and never a wrong one. The folder stays under a size; what was not used
for longest goes first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import platformdirs

LIMIT = 4 << 30
"""Bytes that a folder may hold."""
_MAGIC = b"bisect-litert 1 "
_HEADER = len(_MAGIC) + 64 + 1
_CHUNK = 1 << 20
_PARTIAL = ".partial"


def user_store(name: str) -> Store:
    """Returns the store of a name in the user's cache folder."""
    return Store(platformdirs.user_cache_path("bisect-litert") / name)


class Store:
    """Files by key.

    Args:
        folder: Created when something is put into it.
        limit: Bytes that all entries together may have.
    """

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.folder, self._limit = folder, limit

    def get(self, key: str, target: Path) -> bool:
        """Writes an entry to `target`; False when there is none that can be trusted, and `target` is then not there.

        Raises:
            OSError: `target` cannot be written.
        """
        path = self.folder / key
        try:
            source = path.open("rb")
        except OSError:
            return False
        with source:
            header = source.read(_HEADER)
            whole = False
            with target.open("wb") as out:
                digest = _copy(source, out)
            whole = header == _MAGIC + digest.encode() + b"\n"
        with contextlib.suppress(OSError):
            if whole:
                os.utime(path)
            else:
                path.unlink()
        if not whole:
            target.unlink()
        return whole

    def put(self, key: str, source: Path) -> None:
        """Keeps a file; quietly does without where the folder takes nothing."""
        size = source.stat().st_size
        if size > self._limit // 2:  # it would push everything else out
            return
        with contextlib.suppress(OSError), self._partial() as (out, partial):
            out.write(bytes(_HEADER))
            with source.open("rb") as file:
                digest = _copy(file, out)
            out.seek(0)
            out.write(_MAGIC + digest.encode() + b"\n")
            out.close()
            partial.replace(self.folder / key)
            self._shrink()

    @contextlib.contextmanager
    def _partial(self) -> Iterator[tuple[BinaryIO, Path]]:
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self.folder, suffix=_PARTIAL)
        try:
            with os.fdopen(descriptor, "wb") as out:
                yield out, Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    def _shrink(self) -> None:
        """Drops what was not used for longest; what a run that died left half-written goes the same way."""
        entries = []
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):  # another run may be faster
                stat = path.stat()
                entries.append((stat.st_mtime, stat.st_size, path))
        excess = sum(size for _, size, _ in entries) - self._limit
        for _, size, path in sorted(entries):
            if excess <= 0:
                break
            path.unlink(missing_ok=True)
            excess -= size


def _copy(source: BinaryIO, target: BinaryIO) -> str:
    """Copies the rest of a file and returns its digest."""
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        target.write(chunk)
    return digest.hexdigest()
