"""After the rewrites: what they cost, and how to run what could not be fixed."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from pathlib import Path

from bisect_litert.devices import machines
from bisect_litert.errors import BisectError
from bisect_litert.fixing import costing
from bisect_litert.fixing.engine import Fixed
from bisect_litert.fixing.placing import keep_off
from bisect_litert.graphs.conversion import input_names
from bisect_litert.graphs.stored_conversion import Converter
from bisect_litert.records.fix_record import FixRecord, Outcome
from bisect_litert.request import BisectRequest
from bisect_litert.vocabulary import RunName


def finish(fixed: Fixed, request: BisectRequest, work: Path) -> tuple[FixRecord, Path]:
    """Measures what is left to know of a fix.

    Args:
        fixed: The rewritten model, and the original.
        request: How the model is run.
        work: Folder for the two .tflite files.

    Returns:
        The record with costs, and with a placement for what is not fixed; the fixed model's .tflite file.

    Raises:
        BisectError: The model does not convert.
    """
    converter = Converter.of_user(request.cache)
    before, after = work / "before.tflite", work / "after.tflite"
    logs = work / "convert.log"
    first, last = fixed.original, fixed.model
    converter.convert(first.module, first.args, first.kwargs, before, logs)
    graph = converter.convert(last.module, last.args, last.kwargs, after, logs).graph
    inputs = input_names(graph, last.args, last.kwargs)
    on_gpu = fixed.record.target == RunName.GPU
    here = on_gpu and not request.runner and not request.python
    record = fixed.record
    if fixed.steps:
        record = replace(record, costs=costing.costs(before, after, inputs, work / "costs", gpu=here))
    left = [c for c in record.culprits if c.outcome is Outcome.UNFIXED]
    if left and on_gpu and request.switches:
        try:
            with machines.open_runner(work / "kept-off", replace(request, alone=True)) as runner:
                found = keep_off(
                    fixed.last.culprits,
                    graph,
                    after,
                    inputs,
                    fixed.truth,
                    request.output_limit,
                    runner,
                    time_here=here,
                )
        except BisectError:
            found = None
        if found is not None:
            outcome = Outcome.PLACED if found.right else Outcome.UNFIXED
            record = replace(
                record,
                culprits=tuple(
                    replace(c, kept_off=found, outcome=outcome) if c.outcome is Outcome.UNFIXED else c
                    for c in record.culprits
                ),
            )
    return record, after


def ratio(pair: tuple[float, float]) -> float:
    """Returns after / before; nan where one was not measured."""
    return pair[1] / pair[0] if pair[0] else nan
