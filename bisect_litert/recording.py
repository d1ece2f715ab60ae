"""From findings to the record: the verdict's last word, the block table, and what is written."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bisect_litert import diagnosis, environment, placement, residency
from bisect_litert.culprits import Reading, amplification, out_of_line
from bisect_litert.evaluation import GPU
from bisect_litert.gate import Choice
from bisect_litert.graph import Graph
from bisect_litert.healing import Found
from bisect_litert.jobs import CRASHED, TIMED_OUT, JobResult
from bisect_litert.metrics import compare
from bisect_litert.readings import OUTPUT, Errors, Forward, Tap, block_errors
from bisect_litert.record import (
    BlockResult,
    Cause,
    Comparison,
    Culprit,
    InputInfo,
    Mark,
    OutputResult,
    Placement,
    Refusal,
    Residency,
    RunInfo,
    RunName,
    RunRecord,
    Settings,
    TapInfo,
    TapOrigin,
    Verdict,
)

if TYPE_CHECKING:
    from bisect_litert.preparation import LoadedModel

EMULATED = "emulated fp16, no GPU"
UNDECIDED = Verdict(Cause.CANNOT_TEST, False, "Nothing was decided.", "Run it again.")


@dataclass
class Findings:
    """What is known so far. Everything has a value from the start, so that a run that stops early still leaves a record."""

    loaded: LoadedModel
    settings: Settings
    started: datetime
    clock: float
    folder: Path = Path()
    last_stage: str = "the start"
    truth: Forward | None = None
    plain: Graph | None = None
    graph: Graph | None = None
    """The graph the taps live in, without them as outputs."""
    taps: list[Tap] = field(default_factory=list)
    links: dict[str, tuple[tuple[str, ...], float, int]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    target: str = GPU
    choice: Choice | None = None
    found: Found = field(default_factory=Found)
    runs: list[RunInfo] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    verdict: Verdict = UNDECIDED

    def add_run(self, name: str, seconds: float, status: str = "ok", detail: str = "", log: str = "") -> None:
        """Notes how a run went."""
        self.runs.append(RunInfo(name, status, seconds, detail, log))

    def add_results(self, results: Iterable[JobResult]) -> None:
        """Notes how jobs went and keeps their logs."""
        for result in results:
            log = ""
            if result.log_path.is_file() and self.folder != Path():
                log = f"logs/{result.id}.log"
                try:
                    (self.folder / "logs").mkdir(exist_ok=True)
                    shutil.copyfile(result.log_path, self.folder / log)
                except OSError:
                    log = ""
            self.add_run(result.id, result.seconds, result.status, result.detail, log)


def judge(known: Findings) -> Verdict:
    """Says the last word: runtime failures first, then what the search found, then where it ran."""
    choice, found, settings = known.choice, known.found, known.settings
    if choice is not None and choice.failure is not None:
        return _runtime_failure(choice.failure)
    classes = {t.block: t.class_name for t in known.taps}
    outputs = [r.cumulative for r in found.readings if r.output and r.cumulative is not None]
    if choice is not None and choice.tested and not choice.agrees:
        verdict = _tap_effect(known, choice)
        if verdict is not None:
            return verdict
    if found.culprits:
        return diagnosis.summarise(found.culprits, classes, outputs, settings, known.target, found.healed)
    if found.compounding:
        return diagnosis.compounding(found.readings, settings, known.target)
    where = place(known)
    if known.target == GPU and where.gpu_ops == 0:
        return Verdict(
            Cause.CPU_FALLBACK, False, f"No operation ran on the GPU, so the GPU was not tested. {where.line}".strip(),
            diagnosis.advice(Cause.CPU_FALLBACK, ""),
        )
    if settings.strict and where.refusals:
        ops = ", ".join(sorted({r.op for r in where.refusals}))
        return Verdict(Cause.REJECTED, True, f"The delegate refused {ops}; {where.line}", diagnosis.advice(Cause.REJECTED, ""))
    return diagnosis.summarise((), classes, outputs, settings, known.target, "")


def _runtime_failure(failure: JobResult) -> Verdict:
    hung = failure.status == TIMED_OUT
    cause = Cause.HANG if hung else Cause.CRASH
    said = f"The GPU run of the model {'did not end' if hung else 'crashed'} ({failure.detail})."
    assert failure.status in (CRASHED, TIMED_OUT)
    return Verdict(cause, True, said, diagnosis.advice(cause, ""))


def _tap_effect(known: Findings, choice: Choice) -> Verdict | None:
    """When taps and the shipped graph disagree to the end: the shipped graph's outputs have the last word."""
    if choice.untapped is None or known.truth is None:
        return None
    bad = [
        label
        for label, value in choice.untapped.outputs.items()
        if value.dtype.kind == "f"
        and out_of_line(compare(reference=known.truth.outputs[label], target=value), known.settings.output_limit)
    ]
    if not bad:
        text = "The model as it ships is right on the GPU; it goes wrong only when blocks are tapped, so what the block table shows is the taps' doing."
        return Verdict(Cause.TAP_EFFECT, False, text, "Nothing to do for the model that ships.")
    if known.found.culprits:
        return None
    text = f"On the GPU output {bad[0]} is wrong when the model runs as it ships, and right when its blocks are tapped: the fault lies in fusing across blocks."
    return Verdict(Cause.TAP_EFFECT, True, text, diagnosis.advice(Cause.TAP_EFFECT, ""))


# -- placement -------------------------------------------------------------------------------------------------------------


def _findings(known: Findings) -> tuple[placement.LogFindings, JobResult] | None:
    choice = known.choice
    if choice is None or not choice.results:
        return None
    result = next((r for r in choice.results if r.ok), choice.results[0])
    total = len((known.plain or known.graph).ops) if (known.plain or known.graph) else 0
    return placement.read(result.log_text, total, result.adapter_line), result


def place(known: Findings) -> Placement:
    """What ran where when the model ran as it ships."""
    seen = _findings(known)
    if seen is None or known.target != GPU:
        why = seen[0].no_gpu_reason if seen else ""
        return Placement("", 0, 0, f"No GPU was used. {why}".strip())
    log, _ = seen
    graph = known.plain or known.graph
    refusals = []
    if graph is not None:
        _, by_reason = residency.refused_ops(graph, log)
        for refused in log.refused:
            ops = by_reason[f"{refused.op}: {refused.reason}"]
            refusals.append(Refusal(refused.op, refused.reason, len(ops), _blocks_with(known, graph, ops)))
    gpu, cpu = log.gpu_ops or 0, log.cpu_ops or 0
    line = log.line or f"All {gpu} operations run on the GPU."
    return Placement(log.adapter, gpu, cpu, line, tuple(refusals), tuple(log.validation_errors))


def _blocks_with(known: Findings, graph: Graph, ops: Iterable[int]) -> tuple[str, ...]:
    if graph is not known.graph:
        return ()
    wanted = set(ops)
    return tuple(b for b, own in _block_ops(known).items() if wanted.intersection(op.index for op in own))


def _block_ops(known: Findings) -> dict[str, list[Any]]:
    graph = known.graph
    if graph is None:
        return {}
    at = {t.tensor for t in known.taps if t.tensor >= 0}
    found: dict[str, dict[int, Any]] = {}
    for tap in known.taps:
        own = found.setdefault(tap.block, {})
        if tap.tensor >= 0:
            own.update((op.index, op) for op in graph.inside([tap.tensor], at))
    left = [p.tensor for p in graph.outputs if p.tensor not in at]
    if left:
        found[OUTPUT] = {op.index: op for op in graph.inside(left, at)}
    return {block: [ops[i] for i in sorted(ops)] for block, ops in found.items()}


# -- the record ------------------------------------------------------------------------------------------------------------


def build_record(known: Findings) -> RunRecord:
    """Puts everything known into the record."""
    where = place(known)
    notes = list(dict.fromkeys([*known.verdict.notes, *known.notes, *_notes(known, where)]))
    blocks = _blocks(known)
    kinds = {RunName.GPU_FP32} - {RunName(r.name) for r in known.runs if r.name in set(map(str, RunName))}
    runs = list(known.runs)
    if kinds and known.target == GPU and known.found.readings:
        runs.append(RunInfo("gpu-fp32", "not needed", 0.0))
    return RunRecord(
        model=known.loaded.label,
        target=GPU if known.target == GPU else EMULATED,
        verdict=replace(known.verdict, notes=tuple(notes)),
        culprits=tuple(known.found.culprits),
        blocks=tuple(blocks),
        outputs=tuple(_outputs(known)),
        runs=tuple(runs),
        inputs=tuple(_inputs(known.loaded)),
        placement=where,
        environment=environment.describe(),
        settings=known.settings,
        seconds=time.monotonic() - known.clock,
        started=known.started.isoformat(timespec="seconds"),
    )


def _notes(known: Findings, where: Placement) -> list[str]:
    notes = []
    choice, found = known.choice, known.found
    if choice is not None and choice.trouble:
        notes.append(choice.trouble)
    if where.refusals:
        ops = "; ".join(f"{r.op} ({r.reason}{': ' + ', '.join(r.blocks[:3]) if r.blocks else ''})" for r in where.refusals[:6])
        notes.append(f"Refused by the GPU delegate and run on the CPU: {ops}.")
    notes += [f"The GPU reported: {e}" for e in where.validation_errors[:2]]
    for culprit in found.lost:
        what = "loses digits" if culprit.cause is Cause.PRECISION_LOSS else "flushes small numbers to zero"
        notes.append(f"{culprit.block} {what}, which no output shows: {culprit.evidence[0] if culprit.evidence else ''}")
    if known.target == GPU:
        wrong = {c.block for c in (*found.culprits, *found.lost)}
        predicted = [r.block for r in found.readings if r.block not in wrong and _predicts(r, known.settings)]
        if predicted:
            notes.append(
                f"Emulated fp16 leaves the range in {', '.join(dict.fromkeys(predicted))}, which this GPU does not show; other GPUs may."
            )
    untapped = [t.key for t in known.taps if t.origin is TapOrigin.NONE and t.dtype == "float32"]
    if untapped:
        notes.append(f"Not tapped, so judged together with what follows: {', '.join(untapped[:5])}{' ...' if len(untapped) > 5 else ''}.")
    return notes + found.notes


def _predicts(reading: Reading, settings: Settings) -> bool:
    from bisect_litert.culprits import leaves_range

    return leaves_range(reading, settings)


def _inputs(loaded: LoadedModel) -> list[InputInfo]:
    from bisect_litert.structure import leaves

    found = []
    for label, tensor in leaves((loaded.args, loaded.kwargs)):
        value = tensor.detach().cpu().numpy()
        low, high = (float(value.min()), float(value.max())) if value.size else (nan, nan)
        name = label.replace("[0]", "", 1) if label.startswith("[0]") else label.replace("[1]", "", 1)
        found.append(InputInfo(name.strip("[]'\"") or "input", tuple(value.shape), str(value.dtype), low, high))
    return found


def _outputs(known: Findings) -> list[OutputResult]:
    truth, found = known.truth, known.found
    if truth is None:
        return []
    values = found.values.get(GPU if known.target == GPU else "fp16")
    bare = known.choice.untapped if known.choice else None
    rows = []
    for label, reference in truth.outputs.items():
        seen = values.outputs.get(label) if values else None
        alone = bare.outputs.get(label) if bare else None
        expected = found.rounding.output_cumulative.get(label) if found.rounding else None
        rows.append(
            OutputResult(
                label,
                compare(reference=reference, target=seen) if seen is not None and seen.size == reference.size else None,
                compare(reference=reference, target=alone) if alone is not None and alone.size == reference.size else None,
                expected.relative_l2 if expected else nan,
            )
        )
    return rows


def _blocks(known: Findings) -> list[BlockResult]:
    found = known.found
    ops = _block_ops(known)
    seen = _findings(known)
    gpu: frozenset[int] | None = None
    refused: frozenset[int] = frozenset()
    if seen is not None and known.target == GPU and known.graph is not None:
        refused, _ = residency.refused_ops(known.graph, seen[0])
        gpu = residency.on_gpu(known.graph, seen[0], refused) if known.graph is known.plain or not refused else None
    by_block: dict[str, list[Tap]] = {}
    for tap in known.taps:
        by_block.setdefault(tap.block, []).append(tap)
    blame = {c.block: c for c in found.culprits}
    lost = {c.block: c for c in found.lost}
    levels = {r.tap: r.cumulative.relative_l2 for r in found.readings if r.cumulative is not None}
    rows = []
    for order, (block, taps) in enumerate([*by_block.items(), *([(OUTPUT, [])] if OUTPUT in known.owners.values() or not by_block else [])]):
        output = block == OUTPUT
        keys = [label for label, owner in known.owners.items() if owner == OUTPUT] if output else [t.key for t in taps]
        mine = [r for r in found.readings if (r.tap in keys and r.output == output)]
        lead = max(mine, key=lambda r: _key(r.local), default=None)
        culprit = blame.get(block) or lost.get(block)
        here = residency.of_block(ops.get(block, ()), gpu, refused) if known.target == GPU else Residency.EMULATED
        rows.append(
            BlockResult(
                name=block,
                module="" if output else taps[0].module,
                class_name="" if output else taps[0].class_name,
                call=1 if output else taps[0].call,
                order=order,
                taps=tuple(_tap_info(t, known.graph) for t in taps),
                ops=len(ops.get(block, ())),
                residency=here,
                mark=_mark(block, lead, blame, lost, known.settings, output, taps),
                cause=culprit.cause if culprit else Cause.NONE,
                errors=block_errors(_named(found, known), keys, output),
                expected=lead.expected.relative_l2 if lead and lead.expected else nan,
                allowance=lead.allowance if lead else 1.0,
                ratio=lead.ratio if lead else nan,
                amplification=amplification(lead, levels) if lead and lead.cumulative else nan,
            )
        )
    return rows


def _named(found: Found, known: Findings) -> dict[RunName, Errors]:
    """The target first: what a report shows without looking further."""
    target = RunName.GPU if known.target == GPU else RunName.FP16
    order = [target, *(n for n in RunName if n is not target)]
    return {n: found.errors[n] for n in order if n in found.errors}


def _key(comparison: Comparison | None) -> tuple[bool, float]:
    if comparison is None:
        return (False, -1.0)
    return (not comparison.finite_agreement, np.inf if isnan(comparison.relative_l2) else comparison.relative_l2)


def _mark(
    block: str, lead: Reading | None, blame: dict[str, Culprit], lost: dict[str, Culprit], settings: Settings, output: bool, taps: list[Tap]
) -> Mark:
    if block in blame:
        return Mark.CULPRIT
    if block in lost:
        return Mark.NOTE
    if lead is None or lead.cumulative is None:
        exact = not output and all(t.origin in (TapOrigin.INPUT, TapOrigin.CONSTANT) for t in taps)
        return Mark.OK if exact else Mark.UNTAPPED
    if lead.local is None:
        return Mark.UNKNOWN
    if out_of_line(lead.cumulative, settings.output_limit):
        return Mark.AFTER if blame else Mark.NOTE
    return Mark.OK


def _tap_info(tap: Tap, graph: Graph | None) -> TapInfo:
    tensor = graph.tensors[tap.tensor] if graph is not None and tap.tensor >= 0 else None
    layout = tap.layout.describe(tensor.shape) if tensor is not None and tap.layout is not None else ""
    return TapInfo(tap.label, tap.origin, tensor.name if tensor else "", tap.shape, tap.dtype, layout)


def write_record(known: Findings, folder: Path) -> RunRecord:
    """Writes the run folder: run.json, report, plot."""
    from bisect_litert.reports import write_all

    return write_all(build_record(known), folder)
