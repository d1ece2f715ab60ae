"""Writes jobs as request folders, each of which stands on its own and can be carried to another machine."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bisect_litert.devices.jobs import Job
from bisect_litert.errors import DiskFullError, RunnerError
from bisect_litert.measuring.pieces import let_go

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RequestFolders:
    """Writes requests into `folder`/001, 002 and so on; models and inputs are stored once and shared.

    Args:
        folder: Created when missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        self._stored: dict[str, Path] = {}

    def write(self, jobs: Sequence[Job]) -> tuple[Path, Path]:
        """Writes the jobs and returns the request folder and the empty response folder.

        Raises:
            RunnerError: A model is gone, or the folder cannot be written.
        """
        self._count += 1
        request = self.folder / f"{self._count:03d}"
        response = request / "response"
        try:
            (request / "inputs").mkdir(parents=True, exist_ok=True)
            response.mkdir(exist_ok=True)
            models: dict[Path, str] = {}
            arrays: dict[int, str] = {}
            entries = []
            for job in jobs:
                if job.model not in models:
                    models[job.model] = f"{len(models):03d}-{job.model.name}"
                    self._store_model(job.model, request / models[job.model])
                inputs = {name: self._store(request, array, arrays) for name, array in job.inputs.items()}
                entries.append(
                    {
                        "id": job.id,
                        "model": models[job.model],
                        "accelerator": job.accelerator,
                        "fp32": job.fp32,
                        "inputs": inputs,
                        "env": dict(job.env),
                        "fallback": job.fallback,
                        "tensors": job.tensors,
                    }
                )
            (request / "request.json").write_text(json.dumps({"jobs": entries}, indent=1), encoding="utf-8")
        except FileNotFoundError as error:
            raise RunnerError(f"The model {error.filename} is gone.", hint="Run again.") from None
        except OSError as error:
            raise unwritable(request, error) from None
        return request, response

    def forget(self, job: Job, request: Path) -> None:
        """Deletes the files of a request whose only job has run and that nothing else reads."""
        shutil.rmtree(request / "inputs", ignore_errors=True)
        for path in (job.model, *request.glob(f"*-{job.model.name}")):
            with contextlib.suppress(OSError):
                path.unlink()

    def _store_model(self, source: Path, target: Path) -> None:
        """Copies a model once per version; later requests share our copy, which nobody writes to any more."""
        stat = source.stat()
        version = f"{source.resolve()}:{stat.st_mtime_ns}:{stat.st_size}"
        if version in self._stored and self._stored[version].exists():
            _link(self._stored[version], target)
        elif source.resolve().parent == self.folder.parent:
            _link(source, target)  # it lies in the runner's own folder, where nothing is written twice
        else:
            shutil.copyfile(source, target)
            self._stored[version] = target

    def _store(self, request: Path, array: np.ndarray, arrays: dict[int, str]) -> str:
        """Writes an input once, however many jobs and requests use it. Returns its path inside the request."""
        if id(array) not in arrays:  # ids are safe here: the jobs keep their arrays alive
            array_ = np.require(array, requirements="C")
            digest = hashlib.sha256(f"{array_.dtype.str}{array_.shape}".encode())
            digest.update(array_.reshape(-1).view(np.uint8).data)
            name = digest.hexdigest()[:24]
            path = request / "inputs" / f"{name}.npy"
            if name in self._stored and self._stored[name].exists():
                if not path.exists():  # it does when two equal arrays are in one request
                    _link(self._stored[name], path)
            else:
                with path.open("wb") as file:
                    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array_))
                    file.write(array_.data)  # np.save would lose the errno of a full disk
                self._stored[name] = path
            arrays[id(array)] = f"inputs/{name}.npy"
            let_go(array)
        return arrays[id(array)]


def _link(source: Path, target: Path) -> None:
    """A hard link where the file system can, else a copy: a request folder stands on its own, at little cost."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise
        shutil.copyfile(source, target)


def disk_full(place: Path | str, *, there: bool = False) -> RunnerError:
    """The error for a disk without room, here or on another machine."""
    return DiskFullError(f"The disk that holds {place} is full.", there=there)


def unwritable(folder: Path, error: OSError) -> RunnerError:
    """The error for a folder that cannot be written."""
    if error.errno in _DISK_FULL:
        return disk_full(folder)
    return RunnerError(
        f"{folder} cannot be written: {error.strerror or error}.",
        hint="Choose a folder you can write to with --out DIR.",
    )
