"""A copy of the model with a module replaced."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_litert.devices.jobs import CRASHED
from bisect_litert.entrances import bisect_loaded
from bisect_litert.graphs.stored_conversion import Converter
from bisect_litert.models import eager
from bisect_litert.models.preparation import LoadedModel
from bisect_litert.record import RunRecord
from bisect_litert.request import BisectRequest

if TYPE_CHECKING:
    from bisect_litert.rewrites.contract import Replacement


@dataclass(frozen=True)
class Step:
    """One replacement at one place."""

    path: str
    replacement: Replacement


def replaced(loaded: LoadedModel, step: Step) -> LoadedModel:
    """Returns the model with one module replaced; the original stays as it is, parameters are shared."""
    from bisect_litert.rewrites.preamble import replace_module

    copy = eager.copy_module(loaded.module)
    new = step.replacement.build(copy.get_submodule(step.path))
    return replace(loaded, module=replace_module(copy, step.path, new))


def op_types(model: LoadedModel, request: BisectRequest, work: Path) -> Counter[str]:
    """Returns how many ops of each type a model converts to."""
    converter = Converter.of_user(request.cache)
    graph = converter.convert(model.module, model.args, model.kwargs, work / "ops.tflite", work / "ops.log").graph
    return Counter(op.type for op in graph.ops)


def bisected(model: LoadedModel, request: BisectRequest, last: RunRecord) -> tuple[RunRecord, str]:
    """Bisects a changed model; once more with a worker for each job if one dies that did not before.

    Args:
        model: The changed model.
        request: How to bisect it.
        last: The bisection before the change.

    Returns:
        The record, and what to note about dead workers; empty if there is nothing to note.

    Raises:
        BisectError: It does not convert, or nothing runs.
    """
    record = bisect_loaded(model, request)
    died = [run for run in record.runs if run.status == CRASHED]
    if not died or any(run.status == CRASHED for run in last.runs):
        return record, ""
    record = bisect_loaded(model, replace(request, alone=True))
    still = "it did again" if any(run.status == CRASHED for run in record.runs) else "it did not"
    return record, f"the worker died in {died[0].name} ({died[0].detail}); with a worker for each job {still}."
