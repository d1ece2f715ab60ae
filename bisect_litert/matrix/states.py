"""From what a run left, or what it failed with, to a cell: which code, and what stands beside it."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isnan

from bisect_litert.block_record import Comparison
from bisect_litert.errors import (
    BisectError,
    BlockSelectionError,
    ConversionError,
    ExitCode,
    InputsError,
    ModelFileError,
    RunFolderError,
    RunnerError,
    UnfitReferenceError,
    UsageError,
)
from bisect_litert.matrix.plan import Target
from bisect_litert.matrix.table import Cell, Code
from bisect_litert.record import Culprit, Placement, RunRecord
from bisect_litert.reports.outcome import anything_tested, exit_code, is_emulated
from bisect_litert.vocabulary import Cause

BETWEEN = "between"
"""Between two stages, and before the first: where targets are reached for."""
LOADING = ("load model", "torch")
"""Stages in which only PyTorch works; whatever ends them is no conversion's fault."""
CONVERTING = ("convert",)
_NO_GPU = "The emulated fp16 run stands in", "The run on the CPU stands in"
_REFUSALS = 8
"""More of them are only counted; the run folder has all."""


def from_record(model: str, target: Target, record: RunRecord) -> Cell:
    """Returns the cell of a run that came to an end."""
    verdict, place = record.verdict, record.placement
    culprit = record.culprits[0] if record.culprits else None
    shown = _worst_output(record)
    cell = Cell(
        model,
        target.name,
        _code(target, record),
        cause=verdict.cause,
        block=culprit.block if culprit else "",
        more=max(0, len(record.culprits) - 1),
        where=_where(culprit) if culprit else "",
        gpu_ops=place.gpu_ops,
        ops=place.gpu_ops + place.cpu_ops,
        refused=_refused(place),
        summary=verdict.summary,
        advice=verdict.next_step,
        device=_device(record),
        runtime=record.environment.get("device ai-edge-litert", record.environment.get("ai-edge-litert", "")),
        environment=record.environment,
        size=record.artefact.size if record.artefact else 0,
        sha256=record.artefact.sha256 if record.artefact else "",
        started=record.started,
        exit_code=exit_code(record),
        notes=verdict.notes,
    )
    if shown is not None:
        cell = replace(
            cell,
            relative_l2=shown.relative_l2,
            correlation=shown.correlation,
            nonfinite=shown.new_nonfinite + shown.unwritten,
        )
    if cell.code is Code.T_SKIP:
        why = next((note for note in verdict.notes if any(said in note for said in _NO_GPU)), record.placement.line)
        # The numbers are those of what stood in for the GPU, and no verdict on it.
        return replace(_without_verdict(cell), summary=why, advice="", exit_code=ExitCode.CANNOT_TEST)
    return cell


def _without_verdict(cell: Cell) -> Cell:
    blank = Cell(cell.model, cell.target, cell.code)
    return replace(
        blank,
        environment=cell.environment,
        size=cell.size,
        sha256=cell.sha256,
        started=cell.started,
        notes=cell.notes,
    )


def _code(target: Target, record: RunRecord) -> Code:
    verdict = record.verdict
    if not target.no_gpu and is_emulated(record):
        return Code.T_SKIP
    if verdict.cause in (Cause.CRASH, Cause.HANG, Cause.CANNOT_TEST):
        return Code.T_FAIL
    if verdict.cause is Cause.REJECTED and not anything_tested(record):
        return Code.T_FAIL  # the delegate took it and could not build it
    if verdict.cause in (Cause.CPU_FALLBACK, Cause.REJECTED):
        return Code.REJECT
    if verdict.cause is Cause.REFERENCE:
        return Code.L_FAIL
    if verdict.diverged:
        return Code.DIFF
    return Code.PARTIAL if record.placement.cpu_ops else Code.OK


def _worst_output(record: RunRecord) -> Comparison | None:
    seen = [c for o in record.outputs if (c := o.untapped or o.comparison) is not None]
    return max(
        seen, key=lambda c: (not c.finite_agreement, inf if isnan(c.relative_l2) else c.relative_l2), default=None
    )


def _where(culprit: Culprit) -> str:
    op = next((o for o in culprit.ops if o.index == culprit.op), None)
    if len(set(culprit.region)) > 1:
        what = f"ops {culprit.region[0]} to {culprit.region[-1]}"
    else:
        what = f"{op.type} (op {op.index})" if op else culprit.operator
    return ", ".join(part for part in (what, culprit.source) if part)


def _refused(place: Placement) -> str:
    told = [f"{r.op} x{r.count}: {r.reason.rstrip('.')}" for r in place.refusals[:_REFUSALS]]
    more = len(place.refusals) - _REFUSALS
    return "; ".join([*told, *([f"{more} more"] if more > 0 else [])])


def _device(record: RunRecord) -> str:
    named = record.environment.get("device", "")
    adapter = record.placement.adapter
    if named and adapter:
        return f"{adapter} ({named})"
    return adapter or named or f"CPU ({record.environment.get('platform', 'unknown platform')})"


def from_error(model: str, target: Target, stage: str, error: BisectError) -> Cell:
    """Returns the cell of a run that ended in an error.

    Args:
        model: The row.
        target: The column.
        stage: In which stage it was raised.
        error: What was raised.
    """
    code = _by_error(stage, error)
    more = "The cell's log has more." if error.detail else ""
    summary = " ".join(part for part in (error.message, error.hint, more) if part)
    cause = Cause.REFERENCE if isinstance(error, UnfitReferenceError) else Cause.CANNOT_TEST
    return Cell(model, target.name, code, cause=cause, summary=summary, exit_code=ExitCode.CANNOT_TEST)


_OF_THE_MODEL = (ModelFileError, InputsError, BlockSelectionError, UnfitReferenceError)


def _by_error(stage: str, error: BisectError) -> Code:
    if stage in LOADING or isinstance(error, _OF_THE_MODEL):
        return Code.L_FAIL
    if stage == BETWEEN and isinstance(error, (UsageError, RunnerError)) and not isinstance(error, RunFolderError):
        return Code.T_SKIP  # a runtime or runner that is not to be had
    if isinstance(error, ConversionError):
        return Code.C_FAIL
    return by_stage(stage)


def from_end(model: str, target: Target, stage: str, how: str) -> Cell:
    """Returns the cell of a run whose process ended without an answer.

    Args:
        model: The row.
        target: The column.
        stage: The stage it was last seen in.
        how: "signal SIGSEGV", "no end after 600 s".
    """
    code = by_stage(stage)
    doing = {Code.L_FAIL: "loading the model", Code.C_FAIL: "the conversion"}.get(code, f"the stage {stage!r}")
    cause = Cause.CANNOT_TEST if code is not Code.T_FAIL else Cause.HANG if how.startswith("no end") else Cause.CRASH
    summary = f"The process ended during {doing}: {how}."
    return Cell(model, target.name, code, cause=cause, summary=summary, exit_code=ExitCode.CANNOT_TEST)


def by_stage(stage: str) -> Code:
    """Returns the code of a failure that says nothing but when it happened."""
    if stage in LOADING:
        return Code.L_FAIL
    return Code.C_FAIL if stage in CONVERTING else Code.T_FAIL


def shared(code: Code) -> bool:
    """Whether a failure holds for all targets of a model, since none of them had a part in it."""
    return code in (Code.L_FAIL, Code.C_FAIL)
