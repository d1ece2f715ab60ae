"""A bisection whose GPU runs are made by hand: export what a device has to run, then go on from what it brings back.

Both are the ordinary bisection with a runner that answers from a folder (recorded_runner). The export stops where the
first answers are needed; `ingest` goes on as far as they reach, and asks for the rest in another round.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bisect_litert.devices.device_folder import RESULTS, DeviceFolder
from bisect_litert.entrances import bisect_subject
from bisect_litert.errors import ExportFolderError, UnansweredError
from bisect_litert.measuring.metrics import compare
from bisect_litert.record import RunRecord
from bisect_litert.request import BisectRequest, OnProgress, Progress
from bisect_litert.subjects import Subject
from bisect_litert.subjects.opening import open_subject

STATE = "state"
_REQUEST, _OUTPUTS, _INPUTS = "request.json", "outputs.npz", "inputs.npz"
_KEPT = (
    "blocks",
    "seed",
    "tap",
    "tap_memory",
    "signature",
    "int_high",
    "fp32",
    "ratio_limit",
    "output_limit",
    "strict",
)
_SAME = 1e-3
"""Relative L2 difference from which the model's own outputs are not those of the export: torch on another machine stays
far below, another checkpoint does not."""


def export(request: BisectRequest, folder: Path, on_progress: OnProgress) -> Path:
    """Writes what a device has to run first.

    Args:
        request: The model, and how to look at it.
        folder: The export folder; new or empty.
        on_progress: Told of every stage.

    Returns:
        The folder of the first round.

    Raises:
        BisectError: The model cannot be tested, or the folder cannot be used.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ExportFolderError(f"{folder} exists already.", hint="Give another folder with --out.")
    state = folder / STATE
    with tempfile.TemporaryDirectory(prefix="bisect-litert-") as scratch:
        # Control runs by cutting the graph: a device has the delegate's debug switches only if it happens to.
        changes: dict[str, Any] = {
            "answers": folder,
            "conversions": state,
            "switches": False,
            "out": Path(scratch, "run"),
        }
        request = replace(request, model=_absolute(request.model), **changes)
        subject = open_subject(request)
        try:
            state.mkdir(parents=True, exist_ok=True)
            _keep(subject, request, state, on_progress)
            bisect_subject(subject, request, on_progress)
        except UnansweredError:
            return folder / "round1"
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise ExportFolderError(
                    f"{folder} cannot be written: {error.strerror or error}.", hint="Give another folder with --out."
                ) from None
            raise
    raise AssertionError("a bisection needs the GPU, and there was none")


def ingest(
    folder: Path, results: Path | None, changes: Mapping[str, Any], on_progress: OnProgress
) -> tuple[RunRecord, Path | None]:
    """Goes on from what the device brought back.

    Args:
        folder: The export folder.
        results: Where the results lie, if not in its "results".
        changes: Fields of the request that differ from the export's: out, force, model.
        on_progress: Told of every stage.

    Returns:
        The record, already written to the run folder, and the folder of the next round, if runs are left to make.

    Raises:
        BisectError: The folder is no export, the model has changed, or there is nothing to go on from.
    """
    request = _recall(folder, changes)
    if results is not None:
        DeviceFolder(folder).take(results)
    elif not (folder / RESULTS).is_dir():
        raise ExportFolderError(
            f"{folder} has no {RESULTS} yet.", hint=f"Give the folder that the device wrote: ingest {folder} RESULTS."
        )
    subject = open_subject(request)
    _check(subject, request, folder / STATE, on_progress)
    record = bisect_subject(subject, request, on_progress)
    after = DeviceFolder(folder)
    waiting = [entry for entry in after.entries.values() if not (folder / RESULTS / entry["name"]).is_dir()]
    return record, folder / f"round{after.rounds}" if waiting else None


def _keep(subject: Subject, request: BisectRequest, state: Path, on_progress: OnProgress) -> None:
    """Writes what `ingest` needs to do the same again, and to see whether it is the same."""
    truth = subject.check(lambda name: _Quiet(name, on_progress))
    if truth is not None:
        np.savez(state / _OUTPUTS, *truth.outputs.values())
    if request.inputs is not None:
        shutil.copyfile(request.inputs, state / _INPUTS)
    kept = {name: getattr(request, name) for name in _KEPT}
    told = {"schema": 1, "model": request.model, "file": _digest(request.model), **kept}
    (state / _REQUEST).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def _recall(folder: Path, changes: Mapping[str, Any]) -> BisectRequest:
    state = folder / STATE
    try:
        told = json.loads((state / _REQUEST).read_text(encoding="utf-8"))
        kept = {name: told[name] for name in _KEPT}
        kept["blocks"] = tuple(kept["blocks"])
        inputs = state / _INPUTS if (state / _INPUTS).is_file() else None
        wanted = {name: value for name, value in changes.items() if value is not None}
        asked = {"model": told["model"], **kept, **wanted}
        return BisectRequest(**asked, inputs=inputs, answers=folder, conversions=state, switches=False)
    except FileNotFoundError:
        raise ExportFolderError(
            f"{folder} is no export: it has no {STATE}/{_REQUEST}.", hint="Give the folder that `export --out` wrote."
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportFolderError(f"{state / _REQUEST} cannot be read: {error}.", hint="Export again.") from None


def _check(subject: Subject, request: BisectRequest, state: Path, on_progress: OnProgress) -> None:
    """Raises: ExportFolderError: The model is not the one that was exported."""
    other = ExportFolderError(
        "The model gives other results than when it was exported, so the device's do not belong to it.",
        hint="Bring back the model as it was, or export again.",
    )
    truth = subject.check(lambda name: _Quiet(name, on_progress))
    if truth is None:
        if json.loads((state / _REQUEST).read_text(encoding="utf-8"))["file"] != _digest(request.model):
            raise other
        return
    with np.load(state / _OUTPUTS) as before:
        values = [before[f"arr_{i}"] for i in range(len(before.files))]
    if len(values) != len(truth.outputs):
        raise other
    for old, new in zip(values, truth.outputs.values(), strict=True):
        if old.shape != new.shape or old.dtype != new.dtype:
            raise other
        if new.dtype.kind == "f" and not np.array_equal(old, new, equal_nan=True):
            compared = compare(reference=old, target=new)
            if not (compared.relative_l2 <= _SAME and compared.new_nonfinite == 0):
                raise other


class _Quiet:
    """A stage that is told of and not timed: it comes again, in the bisection itself."""

    def __init__(self, name: str, on_progress: OnProgress) -> None:
        self._name, self._tell = name, on_progress

    def __enter__(self) -> None:
        self._tell(Progress(self._name, state="start"))

    def __exit__(self, *_: object) -> None:
        self._tell(Progress(self._name, state="done"))


def _absolute(model: str) -> str:
    """The same model, from whatever folder it is named later."""
    file, colon, name = model.rpartition(":")
    if not (colon and re.fullmatch(r"\w+", name)):
        file, colon, name = model, "", ""
    return f"{Path(file).resolve()}{colon}{name}" if Path(file).exists() else model


def _digest(model: str) -> str:
    path = Path(model)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.suffix == ".tflite" and path.is_file() else ""
