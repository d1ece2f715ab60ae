"""Fixes a run that lies in a folder: finds its model again, and leaves the cure beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bisect_litert.devices import machines
from bisect_litert.errors import RunFolderError, UsageError
from bisect_litert.fixing.engine import fix
from bisect_litert.fixing.faults import faults_of
from bisect_litert.fixing.folder import FOLDER, leave
from bisect_litert.models import model_file
from bisect_litert.record import RunRecord
from bisect_litert.records.fix_record import FixRecord
from bisect_litert.request import BisectRequest, OnProgress, Progress


def fix_run(
    folder: Path,
    on_progress: OnProgress,
    *,
    model: str | None = None,
    inputs: Path | None = None,
    out: Path | None = None,
    tflite: Path | None = None,
    place: Mapping[str, str] | None = None,
) -> FixRecord:
    """Fixes the culprits of a run.

    Args:
        folder: The run folder.
        on_progress: Told of every attempt.
        model: The model it was made of; looked for by the name in the record if none.
        inputs: The .npz it was made with; looked for likewise.
        out: Where the cure goes; `folder`/fix if none.
        tflite: Where the fixed model's .tflite file goes as well.
        place: Fields of the request that say where GPU jobs run: runner, runner_python, python.

    Raises:
        BisectError: The run or its model cannot be read, or the run has nothing to fix.
    """
    record = RunRecord.load(folder)
    folder = folder if folder.is_dir() else folder.parent
    if not faults_of(record):
        raise UsageError(
            f"The run in {folder} has no culprit: {record.verdict.cause}.", hint="There is nothing to rewrite."
        )
    _check_place(record, place or {})
    request = replace(request_of(record, folder, model, inputs), **(place or {}))  # type: ignore[arg-type]
    machines.check(request)
    return fix_record(record, folder, request, on_progress, out=out, tflite=tflite)


def _check_place(record: RunRecord, place: Mapping[str, str]) -> None:
    """Raises: UsageError: What is tried here would say nothing of the file or the GPU that the fault was found with."""
    if record.settings.tflite:
        raise UsageError(
            f"The run is of {record.settings.tflite}, which rewriting the model does not change.",
            hint=f"Bisect {record.model} without --tflite, fix that run, then make the file anew.",
        )
    device = record.environment.get("device", "")
    if device and not place.get("runner") and not place.get("python"):
        raise UsageError(
            f"The run's GPU was that of {device}, and a fix has to be proved there.",
            hint='Say how to reach it: --runner "ssh HOST"; or bisect on this machine\'s GPU and fix that run.',
        )


def fix_record(
    record: RunRecord,
    folder: Path,
    request: BisectRequest,
    on_progress: OnProgress,
    *,
    out: Path | None = None,
    tflite: Path | None = None,
) -> FixRecord:
    """Fixes the culprits of a run, as `fix_run` does, with the request that it was made with.

    Raises:
        BisectError: There is no model to rewrite, or it cannot be read.
    """
    if Path(request.model).suffix == ".tflite":
        raise UsageError(
            f"{request.model} is a .tflite file, and rewrites are made in PyTorch.",
            hint="Bisect the model file it was converted from, and fix that run.",
        )
    on_progress(Progress("load model", state="start"))
    loaded = model_file.load(request.model, inputs_path=request.inputs, seed=request.seed)
    on_progress(Progress("load model", state="done"))
    fixed = fix(loaded, record, request, on_progress)
    return leave(fixed, request, out or folder / FOLDER, on_progress, tflite=tflite)


def request_of(record: RunRecord, folder: Path, model: str | None, inputs: Path | None) -> BisectRequest:
    """Returns what to ask for so that the run repeats.

    Raises:
        RunFolderError: The model or its inputs are not where they could be found.
    """
    settings = record.settings
    if inputs is None and settings.inputs:
        inputs = _found(settings.inputs, folder)
        if inputs is None:
            raise RunFolderError(
                f"The run was made with inputs from {settings.inputs}, which is not here.",
                hint="Say where they are: --inputs FILE.",
            )
    return BisectRequest(
        model=model or _model_of(record, folder),
        blocks=settings.blocks,
        inputs=inputs,
        seed=settings.seed,
        tap="reexport" if settings.tap == "reexport" else "auto",
        strict=settings.strict,
        ratio_limit=settings.ratio_limit,
        output_limit=settings.output_limit,
        no_gpu=settings.no_gpu,
        fp32=settings.fp32,
    )


def _model_of(record: RunRecord, folder: Path) -> str:
    name, colon, attribute = record.model.rpartition(":")
    file = name if colon else record.model
    if not file.endswith(".py"):
        return record.model  # a module's dotted name
    path = _found(file, folder)
    if path is None:
        raise RunFolderError(
            f"The run is of {record.model}, which is not here.", hint="Say where it is: --model path/to/model.py."
        )
    return f"{path}{colon}{attribute if colon else ''}"


def _found(name: str, folder: Path) -> Path | None:
    """A file by its bare name: here, beside the run folder, or in one folder below here, if there is only one."""
    for place in (Path.cwd(), folder.resolve().parent):
        if (place / name).is_file():
            return _near(place / name)
    below = [p for p in Path.cwd().glob(f"*/{name}") if p.is_file()]
    return _near(below[0]) if len(below) == 1 else None


def _near(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
