"""RUN/fix/: the rewrites as code, a patch where the fault is in a class of the user's, the record, the last check."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from math import isnan, nan
from pathlib import Path

from bisect_litert.errors import RunFolderError
from bisect_litert.fixing import rewrites_file
from bisect_litert.fixing.engine import Fixed
from bisect_litert.fixing.finishing import finish
from bisect_litert.fixing.patching import PATCH, patch_of
from bisect_litert.records.fix_record import FIX_FILE, FIX_FOLDER, FixRecord, Outcome
from bisect_litert.reports import fix as report
from bisect_litert.reports import formats
from bisect_litert.request import BisectRequest, OnProgress, Progress

FOLDER = FIX_FOLDER
CHECK_LIMIT = 900.0
"""Seconds the independent check may take: it loads, converts and builds all kernels anew."""


def leave(
    fixed: Fixed,
    request: BisectRequest,
    folder: Path,
    on_progress: OnProgress,
    *,
    tflite: Path | None = None,
    check: bool = True,
) -> FixRecord:
    """Writes what a fix leaves behind and has it checked by another process.

    Args:
        fixed: What was tried and proven.
        request: How the model was loaded and run.
        folder: RUN/fix; its earlier files of these names are replaced.
        on_progress: Told of the stages.
        tflite: Where to put the fixed model's .tflite file as well.
        check: Whether another process applies the saved files to the model that the request names.

    Returns:
        The record, as written.

    Raises:
        RunFolderError: A file cannot be written.
        BisectError: The fixed model does not convert.
    """
    with tempfile.TemporaryDirectory(prefix="bisect-litert-fix-") as name:
        work = Path(name)
        on_progress(Progress("measure costs", state="start"))
        record, converted = finish(fixed, request, work)
        on_progress(Progress("measure costs", state="done"))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            record = replace(record, device=formats.device(fixed.last))
            record = _write_code(fixed, record, request, folder, on_progress, check)
            if tflite is not None and fixed.steps:
                tflite.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(converted, tflite)
            (folder / FIX_FILE).write_text(record.to_json(), encoding="utf-8")
            (folder / "fix.md").write_text(report.markdown(record), encoding="utf-8")
        except OSError as error:
            raise RunFolderError(
                f"{folder} cannot be written: {error.strerror or error}.", hint="Give another place with --out."
            ) from None
    return record


def _write_code(
    fixed: Fixed, record: FixRecord, request: BisectRequest, folder: Path, on_progress: OnProgress, check: bool
) -> FixRecord:
    files: dict[str, str] = {}
    for name in (rewrites_file.NAME, PATCH):
        (folder / name).unlink(missing_ok=True)
    if fixed.steps:
        steps = rewrites_file.pruned(fixed.original, fixed.steps)
        source = rewrites_file.write(record.model, steps)
        (folder / rewrites_file.NAME).write_text(source, encoding="utf-8")
        files[rewrites_file.NAME] = "apply(model) makes the replacements"
        patch = patch_of(fixed.original, steps, request, source)
        if patch:
            (folder / PATCH).write_text(patch, encoding="utf-8")
            files[PATCH] = "the same against your own files (patch -p1)"
        if check:
            on_progress(Progress("check the saved files", state="start"))
            record = _checked(record, request, folder)
            on_progress(Progress("check the saved files", state="done"))
    return replace(record, files={**files, "fix.md": "everything that was tried"})


def _checked(record: FixRecord, request: BisectRequest, folder: Path) -> FixRecord:
    """Runs `check` in a fresh process; what it does not confirm is not called fixed."""
    if request.no_gpu or request.runner or request.python:
        return replace(record, checked="not again: the check runs on this machine's GPU, and the run did not")
    command = [sys.executable, "-m", "bisect_litert.fixing.check", request.model, str(folder)]
    command += ["--seed", str(request.seed)]
    if request.inputs is not None:
        command += ["--inputs", str(request.inputs)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_LIMIT)
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        return replace(record, checked="the check of the saved files did not end")
    error, torch32 = (nan if found[key] is None else float(found[key]) for key in ("output_error", "torch32"))
    outputs = f"not right: {found['detail'] or 'one is not finite'}" if isnan(error) else f"off by {error:.2g}"
    said = f"{rewrites_file.NAME} applied in a process of its own: outputs {outputs}, torch off by {torch32:.2g}"
    record = replace(record, checked=said)
    if not found["complaint"] and (record.diverged_after or (found["on_gpu"] and error <= request.output_limit)):
        return record
    why = f"it did not hold when the saved files were checked: {said}"
    lost = [
        replace(c, outcome=Outcome.UNFIXED, why_not=why) if c.outcome is Outcome.FIXED else c for c in record.culprits
    ]
    return replace(record, diverged_after=True, culprits=tuple(lost))
