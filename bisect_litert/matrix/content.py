"""What a cell's result depends on, as one hash: the model's specification and files, the target, and the versions."""

from __future__ import annotations

import hashlib
import json
import os
import site
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from bisect_litert.matrix.plan import Model, Target
from bisect_litert.records import environment

_NOT_CONTENT = ("name", "targets", "skip", "needs", "cell_limit")
"""Parts of a model's entry that no result depends on."""


def key_of(model: Model, target: Target, folder: Path) -> str:
    """Returns a cell's key: what it is run with, without what only the run itself can tell (`still_so`).

    Args:
        model: The row.
        target: The column.
        folder: The plan's folder.
    """
    spec = {k: v for k, v in asdict(model).items() if k not in _NOT_CONTENT}
    place = {k: v for k, v in asdict(target).items() if k != "name"}
    named = [model.model.rpartition(":")[0], model.model, model.inputs, model.tflite, *model.depends]
    files = {name: file_hash(folder / name) for name in named if name and (folder / name).is_file()}
    versions = {**environment.describe(), "target": _version_in(target.python)}
    content = json.dumps([spec, place, files, versions], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


@lru_cache(maxsize=64)
def _version_in(python: str) -> str:
    if not python:
        return ""
    code = "from importlib.metadata import version; print(version('ai-edge-litert'))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def file_hash(path: Path) -> str:
    """Returns a file's SHA-256; empty when it cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return _file_hash(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _file_hash(path: Path, _size: int, _modified: int) -> str:
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                found.update(part)
    except OSError:
        return ""
    return found.hexdigest()


def still_so(sources: Mapping[str, str], folder: Path) -> bool:
    """Whether the files a run read are what they were."""
    return all(file_hash(folder / name) == known for name, known in sources.items())


class ReadFiles:
    """Notes which files a process opens for reading while `on`, so that results are known to depend on them.

    One for all cells of a process: what was imported for the first is not opened again for the next.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self.on = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.on and event == "open" and isinstance(arguments[0], (str, bytes)):
            mode = arguments[1]
            if mode is None or not set(str(mode)) & set("wax+"):
                self._seen.add(os.fsdecode(arguments[0]))

    def sources(self, folder: Path) -> dict[str, str]:
        """Returns path relative to `folder` and hash of what belongs to the model: no library, no system file."""
        modules = [str(m.__file__) for m in list(sys.modules.values()) if getattr(m, "__file__", None)]
        foreign = _foreign()
        found = {}
        for name in sorted({os.path.abspath(name) for name in [*self._seen, *modules]}):
            path = Path(name)
            if path.suffix == ".pyc" or not path.is_file() or any(name.startswith(prefix) for prefix in foreign):
                continue
            found[os.path.relpath(name, folder)] = file_hash(path)
        return found


@lru_cache(maxsize=1)
def _foreign() -> tuple[str, ...]:
    """Folders whose files versions stand for."""
    own = Path(__file__).parent.parent
    paths: Iterable[str] = [*sysconfig.get_paths().values(), *_call(site.getsitepackages), site.getusersitepackages()]
    system = ["/proc", "/sys", "/dev", "/etc", "/usr/lib", "/usr/share"] if os.name == "posix" else []
    return tuple(os.path.join(os.path.abspath(path), "") for path in [*paths, str(own), *system])


def _call(function: Callable[[], list[str]]) -> list[str]:
    try:
        return function()
    except AttributeError:  # some virtual environments have none
        return []
