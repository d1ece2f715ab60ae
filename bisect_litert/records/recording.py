"""From findings to the record: the block table, the notes, and what is written."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bisect_litert.block_record import BlockResult, Comparison, TapInfo
from bisect_litert.devices import placement, residency
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.evaluation import GPU
from bisect_litert.measuring.metrics import compare_output, out_of_line
from bisect_litert.measuring.readings import OUTPUT, Errors, Tap, Values, block_errors
from bisect_litert.record import Culprit, OutputResult, Placement, RunInfo, RunRecord, Settings
from bisect_litert.records import environment, keeping
from bisect_litert.search.culprits import Reading, amplification, leaves_range
from bisect_litert.search.standing import Found
from bisect_litert.verdicts.judging import Findings, as_exact_as_fp32, block_ops, log_findings, place
from bisect_litert.vocabulary import OTHER_WEIGHTS, Cause, Mark, Residency, RunName, TapOrigin
from bisect_litert.wording import some_of

if TYPE_CHECKING:
    from bisect_litert.reports.drawing import Drawer

TARGETS = {
    (True, False): "gpu",
    (True, True): "gpu-fp32",
    (False, False): "emulated fp16, no GPU",
    (False, True): "cpu, no GPU",
}
"""What was judged, by whether a GPU ran and whether in fp32."""

_LOST = {
    "underflow": "flushes small numbers to zero",
    OTHER_WEIGHTS: "has other weights in the file",
    Cause.PRECISION_LOSS: "loses digits",
    Cause.OVERFLOW: "turns large numbers into infinities",
    Cause.CONVERSION: "was changed by the conversion",
}
"""What happens in a block that no output shows, by kind or cause."""


def build_record(known: Findings) -> RunRecord:
    """Puts everything known into the record."""
    where = place(known)
    blocks = _blocks(known, _keep_tensors(known))
    notes = list(
        dict.fromkeys([*known.verdict.notes, *known.notes, *_notes(known, where), *_not_tested(blocks, where)])
    )
    kinds = {RunName.GPU_FP32} - {RunName(r.name) for r in known.runs if r.name in set(map(str, RunName))}
    runs = list(known.runs)
    if kinds and known.target == GPU and known.found.readings and not known.settings.fp32:
        runs.append(RunInfo("gpu-fp32", "not needed", 0.0))
    return RunRecord(
        model=known.label,
        target=TARGETS[known.target == GPU, known.settings.fp32],
        verdict=replace(known.verdict, notes=tuple(notes)),
        culprits=tuple(known.found.culprits),
        blocks=tuple(blocks),
        outputs=tuple(_outputs(known)),
        runs=tuple(runs),
        inputs=tuple(known.inputs),
        placement=where,
        environment={**environment.describe(), **_device(known)},
        settings=known.settings,
        seconds=time.monotonic() - known.clock,
        started=known.started.isoformat(timespec="seconds"),
        artefact=known.artefact,
        reference=known.reference,
        definition=known.definition,
    )


def _device(known: Findings) -> dict[str, str]:
    if known.device is None:
        return {}
    version, lacks = _runtime(known)
    return environment.of_device(known.device, version, lacks)


def _runtime(known: Findings) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """What ran the GPU jobs, as it says itself, and what it has no way to ask for."""
    results = known.choice.results if known.choice else ()
    told = next((r for r in results if r.versions), None)
    return (told.versions, told.lacks) if told else ({}, ())


def _untold(known: Findings) -> list[str]:
    """What could not be told because the runtime has no means for it."""
    versions, lacks = _runtime(known)
    found = known.found
    if known.target != GPU or "fp32" not in lacks or not (found.culprits or found.lost or found.compounding):
        return []
    name = f"ai-edge-litert {versions.get('ai-edge-litert', '')}".rstrip()
    return [
        f"{name} has no option for fp32 on the GPU, so no control run tells fp16 from a wrong kernel: which of them it "
        "is rests on the emulated run."
    ]


def _notes(known: Findings, where: Placement) -> list[str]:
    notes = []
    choice, found = known.choice, known.found
    if choice is not None and choice.trouble:
        notes.append(choice.trouble)
    if choice is not None and choice.repeats is False:
        notes.append("The GPU does not repeat itself: two runs of the shipped graph gave different bits.")
    if where.refusals and not known.refused:
        ops = "; ".join(
            f"{r.op} ({r.reason.rstrip('.')}{': ' + some_of(r.blocks, 3) if r.blocks else ''})"
            for r in where.refusals[:6]
        )
        notes.append(f"Refused by the GPU delegate and run on the CPU: {ops}.")
    notes += [f"The GPU reported: {e}" for e in where.validation_errors[:2]]
    notes += _untold(known)
    for culprit in found.lost:
        what = _LOST.get(culprit.kind) or _LOST.get(culprit.cause) or "is off"
        notes.append(
            f"{culprit.block} {what}, which no output shows: {culprit.evidence[0] if culprit.evidence else ''}"
        )
    if known.target == GPU and not known.settings.fp32:
        wrong = {c.block for c in (*found.culprits, *found.lost)}
        predicted = [r.block for r in found.readings if r.block not in wrong and leaves_range(r, known.settings)]
        if predicted:
            where_to = ", ".join(dict.fromkeys(predicted))
            notes.append(f"Emulated fp16 leaves the range in {where_to}; this GPU does not, others may.")
    untapped = [t.key for t in known.taps if t.origin is TapOrigin.NONE and t.dtype == "float32"]
    if untapped:
        some = ", ".join(untapped[:5]) + (" ..." if len(untapped) > 5 else "")
        notes.append(f"Not tapped, so judged together with what follows: {some}.")
    return notes + found.notes


def _not_tested(blocks: Sequence[BlockResult], where: Placement) -> list[str]:
    """A block that the GPU had no part in is right for the wrong reason."""
    alone = [b.name for b in blocks if b.residency is Residency.CPU and b.mark is Mark.OK and b.errors]
    if not alone or where.gpu_ops <= 0:
        return []
    return [f"Not tested on the GPU, because all of it ran on the CPU: {some_of(alone, 6)}."]


def _outputs(known: Findings) -> list[OutputResult]:
    truth, found = known.truth, known.found
    if truth is None:
        return []
    values = found.values.get(GPU if known.target == GPU else "fp16")
    bare = known.choice.untapped if known.choice else None
    rows = []
    for label, reference in truth.outputs.items():
        expected = found.rounding.output_cumulative.get(label) if found.rounding else None
        rows.append(
            OutputResult(
                label,
                _output(values, label, reference, truth.terms.get(label, 0.0)),
                _output(bare, label, reference, truth.terms.get(label, 0.0)),
                expected.relative_l2 if expected else nan,
            )
        )
    return rows


def _output(values: Values | None, label: str, reference: np.ndarray, terms: float) -> Comparison | None:
    seen = values.outputs.get(label) if values else None
    if values is None or seen is None or seen.size != reference.size:
        return None
    return compare_output(reference=reference, target=seen, unwritten=values.unwritten.get(label, 0), terms=terms)


def _keep_tensors(known: Findings) -> dict[str, tuple[str, str]]:
    values = known.found.values.get(GPU if known.target == GPU else "fp16")
    if values is None or known.truth is None:
        return {}
    suspects = [c.block for c in known.found.culprits]
    return keeping.keep(known.folder, keeping.wanted(known.taps, suspects), known.truth.taps, values.taps)


def _blocks(known: Findings, kept: dict[str, tuple[str, str]]) -> list[BlockResult]:
    found = known.found
    ops = block_ops(known)
    gpu, refused = _where_ops_ran(known)
    by_block: dict[str, list[Tap]] = {}
    for tap in known.taps:
        by_block.setdefault(tap.block, []).append(tap)
    blame = {c.block: c for c in found.culprits}
    lost = {c.block: c for c in found.lost}
    levels = {r.tap: r.cumulative.relative_l2 for r in found.readings if r.cumulative is not None}
    readings = {(r.tap, r.output): r for r in found.readings}
    asked = known.choice.graph.names if known.choice is not None and known.choice.gpu else {}
    rows = []
    for order, (block, taps) in enumerate(
        [*by_block.items(), *([(OUTPUT, [])] if OUTPUT in known.owners.values() or not by_block else [])]
    ):
        output = block == OUTPUT
        keys = [label for label, owner in known.owners.items() if owner == OUTPUT] if output else [t.key for t in taps]
        mine = [readings[key, output] for key in keys if (key, output) in readings]
        lead = max(mine, key=lambda r: _key(r.local), default=None)
        culprit = blame.get(block) or lost.get(block)
        here = residency.of_block(ops.get(block, ()), gpu, refused) if known.target == GPU else Residency.EMULATED
        if known.target == GPU and gpu is None and not known.settings.fp32 and as_exact_as_fp32(mine):
            here = Residency.CPU  # the log does not tell, the digits do
        rows.append(
            BlockResult(
                name=block,
                module="" if output else taps[0].module,
                class_name="" if output else taps[0].class_name,
                call=1 if output else taps[0].call,
                order=order,
                taps=tuple(_tap_info(t, known.graph, kept.get(t.key, ("", ""))) for t in taps),
                ops=len(ops.get(block, ())),
                residency=here,
                mark=_mark(
                    block,
                    lead,
                    blame,
                    lost,
                    known.settings,
                    output,
                    taps,
                    measured=bool(found.readings),
                    asked=any(t.tensor in asked for t in taps),
                    unsettled=block in found.unsettled,
                ),
                cause=culprit.cause if culprit else Cause.NONE,
                errors=block_errors(_named(found, known), keys, output),
                expected=lead.expected.relative_l2 if lead and lead.expected else nan,
                allowance=lead.allowance if lead else 1.0,
                ratio=lead.ratio if lead else nan,
                amplification=amplification(lead, levels) if lead and lead.cumulative else nan,
            )
        )
    return rows


def _where_ops_ran(known: Findings) -> tuple[frozenset[int] | None, frozenset[int]]:
    """Returns the ops that ran on the GPU, None when that is not known, and those that were refused.

    It is the tapped run, whose numbers the blocks show, that is asked first: a copy more here or there can make another
    part of the graph the largest. Copies come after the graph's own ops, whose numbers stay.
    """
    choice, graph = known.choice, known.graph
    if known.target != GPU or choice is None or graph is None:
        return None, frozenset()
    asked = []
    run, shipped = choice.gpu.get(GPU), log_findings(known)
    if run is not None:
        tapped = choice.graph.graph
        asked.append((tapped, placement.read(run.log_text, len(tapped.ops), run.adapter_line)))
    if shipped is not None and graph is known.plain:
        asked.append((graph, shipped[0]))
    refused: frozenset[int] = frozenset()
    for each, log in asked:
        refused, _ = residency.refused_ops(each, log)
        gpu = residency.on_gpu(each, log, refused)
        if gpu is not None:
            return gpu, refused
    return None, refused


def _named(found: Found, known: Findings) -> dict[RunName, Errors]:
    """The target first: what a report shows without looking further."""
    emulated = RunName.CPU if known.settings.fp32 else RunName.FP16
    target = emulated if known.target != GPU else RunName.GPU_FP32 if known.settings.fp32 else RunName.GPU
    order = [target, *(n for n in RunName if n is not target)]
    return {n: found.errors[n] for n in order if n in found.errors}


def _key(comparison: Comparison | None) -> tuple[bool, float]:
    if comparison is None:
        return (False, -1.0)
    return (not comparison.finite_agreement, np.inf if isnan(comparison.relative_l2) else comparison.relative_l2)


def _mark(
    block: str,
    lead: Reading | None,
    blame: dict[str, Culprit],
    lost: dict[str, Culprit],
    settings: Settings,
    output: bool,
    taps: list[Tap],
    *,
    measured: bool,
    asked: bool,
    unsettled: bool,
) -> Mark:
    """One word for a block.

    Args:
        block: Its name.
        lead: The worst of its readings.
        blame: The culprits, by block.
        lost: What no output shows, likewise.
        settings: The thresholds.
        output: Whether this is what follows all blocks.
        taps: The block's.
        measured: Whether anything was compared in this run.
        asked: Whether the run that is judged was to bring back one of the block's tensors.
        unsettled: Whether it was wrong at what it was given, and right inputs were never tried.
    """
    if block in blame:
        return Mark.CULPRIT
    if block in lost:
        return Mark.NOTE
    if lead is None or lead.cumulative is None:
        exact = not output and all(t.origin in (TapOrigin.INPUT, TapOrigin.CONSTANT) for t in taps)
        if exact:
            return Mark.OK
        # What was asked for and did not come back is not known; nor is anything in a run that was stopped early.
        return Mark.UNTAPPED if measured and not asked else Mark.UNKNOWN
    if lead.local is None or unsettled:
        return Mark.UNKNOWN
    if out_of_line(lead.cumulative, settings.output_limit):
        return Mark.AFTER if blame else Mark.NOTE
    return Mark.OK


def _tap_info(tap: Tap, graph: Graph | None, files: tuple[str, str]) -> TapInfo:
    tensor = graph.tensors[tap.tensor] if graph is not None and tap.tensor >= 0 else None
    layout = tap.layout.describe(tensor.shape) if tensor is not None and tap.layout is not None else ""
    return TapInfo(tap.label, tap.origin, tensor.name if tensor else "", tap.shape, tap.dtype, layout, *files)


def write_record(known: Findings, folder: Path, drawer: Drawer | None = None) -> RunRecord:
    """Writes the run folder: run.json, report, plot."""
    from bisect_litert.reports import write_all

    return write_all(build_record(known), folder, drawer)
