"""One model under several versions of the runtime: converted once, judged under each, put side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path

from bisect_litert import entrances
from bisect_litert.errors import BisectError, ExitCode, RunFolderError
from bisect_litert.record import RunRecord
from bisect_litert.records import run_folder
from bisect_litert.records.runtime_survey import Answer, RuntimeRow, RuntimeSurvey
from bisect_litert.reports import runtime_table
from bisect_litert.reports.outcome import exit_code, headline, is_emulated
from bisect_litert.request import BisectRequest, Interrupted, OnProgress, Progress
from bisect_litert.subjects.shared import SharedSubject
from bisect_litert.versions.runtimes import Runtime, order
from bisect_litert.vocabulary import Cause

TABLE_FILE = "runtimes.md"
_STAND_IN = re.compile(r" The (emulated fp16 run|run on the CPU) stands in.*")
"""What follows why there was no GPU; a row says nothing of the run that stands in."""


def run_survey(
    request: BisectRequest,
    runtimes: Sequence[Runtime],
    on_progress: OnProgress,
    on_row: Callable[[RuntimeRow], None] = lambda _: None,
) -> RuntimeSurvey:
    """Bisects a model under each runtime, oldest first.

    Args:
        request: What to do; `out` is the survey's folder, and gets a run folder for each version.
        runtimes: Where the GPU jobs run.
        on_progress: Told of every stage of every run.
        on_row: Told of every version that is done.

    Returns:
        The survey, already written. A version under which nothing can be tested is a row of it.

    Raises:
        BisectError: The model cannot be tested at all; exit code 2 or 125.
    """
    folder = run_folder.plan(request.out, run_folder.label_of(request.model))
    run_folder.check(folder, request.force)
    subject = SharedSubject(entrances.load_subject(request, on_progress))
    run_folder.create(folder, run_folder.label_of(request.model), request.force)
    survey = RuntimeSurvey(subject.label, ())
    for runtime, name in zip(*_named(runtimes), strict=True):
        on_progress(Progress(f"ai-edge-litert {name}", state="info"))
        one = replace(request, out=folder / name, python=runtime.python, force=True)
        try:
            row = _row(runtime, name, entrances.bisect_subject(subject, one, on_progress))
        except Interrupted:
            _write(replace(survey, interrupted=True), folder)
            raise
        except BisectError as error:
            if not subject.ready:
                raise
            kept = name if (folder / name).is_dir() else ""
            row = _untested(runtime, kept, f"{error.message} {error.hint}".strip())
        survey = replace(survey, rows=(*survey.rows, row))
        on_row(row)
        _write(survey, folder)
    return survey


def survey_exit_code(survey: RuntimeSurvey) -> ExitCode:
    """Returns the code the process ends with: 1 wrong under any, 125 tested under none, 0 right."""
    if survey.wrong:
        return ExitCode.DIVERGED
    return ExitCode.OK if survey.tested else ExitCode.CANNOT_TEST


def _named(runtimes: Sequence[Runtime]) -> tuple[list[Runtime], list[str]]:
    """The runtimes in their order, each with a folder name of its own."""
    ordered = sorted(runtimes, key=lambda r: order(r.version))
    names: list[str] = []
    for runtime in ordered:
        name, count = runtime.version, 1
        while name in names:
            count += 1
            name = f"{runtime.version}-{count}"
        names.append(name)
    return ordered, names


def _row(runtime: Runtime, name: str, record: RunRecord) -> RuntimeRow:
    lacks = tuple(filter(None, record.environment.get("device lacks", "").split(", ")))
    code = exit_code(record)
    answer = {ExitCode.DIVERGED: Answer.WRONG, ExitCode.OK: Answer.RIGHT}.get(code, Answer.UNKNOWN)
    if is_emulated(record):
        # What emulation says is the same for every version: nothing about this one.
        why = next((note for note in record.verdict.notes if _STAND_IN.search(note)), "No GPU was used.")
        return replace(_untested(runtime, name, _STAND_IN.sub("", why)), lacks=lacks, seconds=record.seconds)
    shipped = [o.untapped or o.comparison for o in record.outputs]
    levels = [c.relative_l2 if c.finite_agreement else nan for c in shipped if c is not None]
    return RuntimeRow(
        version=runtime.version,
        answer=answer,
        cause=record.verdict.cause.value,
        block=record.culprits[0].block if record.culprits else "",
        headline=headline(record),
        summary=record.verdict.summary,
        error=max(levels, key=lambda v: (v != v, v), default=nan),
        lacks=lacks,
        adapter=record.placement.adapter,
        folder=name,
        seconds=record.seconds,
    )


def _untested(runtime: Runtime, folder: str, why: str) -> RuntimeRow:
    return RuntimeRow(
        runtime.version, Answer.UNKNOWN, Cause.CANNOT_TEST.value, "", "cannot test", why, nan, (), "", folder, nan
    )


def _write(survey: RuntimeSurvey, folder: Path) -> None:
    try:
        survey.save(folder / run_folder.SURVEY_FILE)
        (folder / TABLE_FILE).write_text(runtime_table.markdown(survey), encoding="utf-8")
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be written: {error.strerror or error}.", hint="Give another folder with --out."
        ) from None
