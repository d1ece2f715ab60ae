"""The last word: what everything found so far amounts to, and what ran where."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from bisect_litert.devices import placement, residency
from bisect_litert.devices.jobs import CRASHED, TIMED_OUT, JobResult
from bisect_litert.graphs.graph import Graph, Op
from bisect_litert.measuring.evaluation import GPU
from bisect_litert.measuring.metrics import FP16_UNIT, compare, out_of_line
from bisect_litert.measuring.readings import OUTPUT, Forward, Tap
from bisect_litert.record import Artefact, Culprit, InputInfo, Placement, Refusal, RunInfo, Settings, Verdict
from bisect_litert.search.counterfactual import Controls
from bisect_litert.search.culprits import Reading
from bisect_litert.search.standing import Found
from bisect_litert.taps import fusion
from bisect_litert.taps.gate import Choice
from bisect_litert.verdicts import advice, diagnosis
from bisect_litert.vocabulary import Cause

EXACT = 0.02
"""Ratio below which an output was not stored in fp16: rounding it once costs at least a twentieth of what is expected
of its block, and fp32 costs a thousandth."""
UNDECIDED = Verdict(Cause.CANNOT_TEST, False, "Nothing was decided.", "Run it again.")


@dataclass
class Findings:
    """What is known so far. Everything has a value from the start, so that a run that stops early still leaves a
    record."""

    label: str
    inputs: list[InputInfo]
    settings: Settings
    reference: str
    """What blocks are held against."""
    started: datetime
    clock: float
    folder: Path = Path()
    last_stage: str = "the start"
    truth: Forward | None = None
    plain: Graph | None = None
    artefact: Artefact | None = None
    graph: Graph | None = None
    """The graph the taps live in, without them as outputs."""
    taps: list[Tap] = field(default_factory=list)
    links: dict[str, tuple[tuple[str, ...], float, int]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    target: str = GPU
    device: str | None = None
    """What to call the machine of the GPU jobs; None when it is the one that ran everything (machines.device_name)."""
    choice: Choice | None = None
    found: Found = field(default_factory=Found)
    runs: list[RunInfo] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    definition: Artefact | None = None
    refused: tuple[Refusal, ...] = ()
    """What the delegate took and then could not build, so that nothing ran."""
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
            status = "skipped" if result.unavailable else result.status  # nothing went wrong: there is no such thing
            self.add_run(result.id, result.seconds, status, result.detail, log)


def judge(known: Findings) -> Verdict:
    """Says the last word: runtime failures first, then what the search found, then where it ran."""
    choice, found, settings = known.choice, known.found, known.settings
    classes = {t.block: t.class_name for t in known.taps}
    if choice is not None and choice.failure is not None:
        if choice.failure.status not in (CRASHED, TIMED_OUT):
            return _not_run(known, choice.failure)
        return _runtime_failure(choice.failure, found.culprits, classes)
    outputs = [r.cumulative for r in found.readings if r.output and r.cumulative is not None]
    if choice is not None and choice.tested and not choice.agrees:
        verdict = _disagreement(known, choice)
        if verdict is not None:
            return verdict
    if found.culprits:
        return diagnosis.summarise(found.culprits, classes, outputs, settings, known.target, found.healed)
    if found.compounding:
        return diagnosis.compounding(found.readings, settings, known.target)
    where = place(known)
    if known.target == GPU and where.gpu_ops == 0:
        return Verdict(
            Cause.CPU_FALLBACK,
            False,
            f"No operation ran on the GPU, so the GPU was not tested. {where.line}".strip(),
            advice.default(Cause.CPU_FALLBACK),
        )
    if known.target == GPU and where.gpu_ops < 0 and not settings.fp32 and as_exact_as_fp32(found.readings):
        return Verdict(
            Cause.CPU_FALLBACK,
            False,
            "The results are as exact as fp32, which a GPU at its default precision cannot be: they come from the CPU, "
            f"or the GPU computes in fp32. So fp16 was not tested. {where.line}",
            "See that the GPU's library is loaded on the device, and bring the delegate's log back with the results.",
        )
    if settings.strict and where.refusals:
        ops = ", ".join(sorted({r.op for r in where.refusals}))
        return Verdict(
            Cause.REJECTED, True, f"The delegate refused {ops}; {where.line}", advice.default(Cause.REJECTED)
        )
    return diagnosis.summarise((), classes, outputs, settings, known.target, "")


def as_exact_as_fp32(readings: Sequence[Reading]) -> bool:
    """Whether no block shows the rounding that storing its output in fp16 costs, and some would have to."""
    rounded = [r for r in readings if r.expected is not None and r.expected.relative_l2 >= FP16_UNIT / 4]
    return bool(rounded) and all(r.ratio < EXACT for r in rounded)


def _runtime_failure(failure: JobResult, culprits: Sequence[Culprit], classes: Mapping[str, str]) -> Verdict:
    cause = Cause.HANG if failure.status == TIMED_OUT else Cause.CRASH
    said = f"The GPU run of the model {'did not end' if cause is Cause.HANG else 'crashed'} ({failure.detail})."
    for culprit in culprits[:1]:
        name = culprit.block + (f" ({classes[culprit.block]})" if classes.get(culprit.block) else "")
        said = f"{said} {name} is where: {culprit.evidence[-1]}"
    return Verdict(cause, True, said, advice.default(cause))


def _not_run(known: Findings, failure: JobResult) -> Verdict:
    """The verdict on a model that the GPU, which is there, does not run, with the CPU beside it either."""
    log = placement.read(failure.log_text, 0, failure.adapter_line)
    if log.not_built:
        said = [
            f"The GPU delegate takes the model and cannot build it, so nothing of it runs: {_sentence(log.not_built)}"
        ]
        for refusal in known.refused:
            said.append(
                f"It fails at {refusal.op} in {', '.join(refusal.blocks)}."
                if refusal.blocks
                else f"It fails at {refusal.op}."
            )
        step = next((r.advice for r in known.refused if r.advice), advice.default(Cause.REJECTED))
        return Verdict(Cause.REJECTED, False, " ".join(said), step)
    why = placement.why_failed(failure.log_text)
    if why:
        sentence, _, step = why.partition(". ")
        return Verdict(Cause.CANNOT_TEST, False, f"{sentence}.", step)
    said_last = f"The model does not run on the GPU: {_sentence(log.out_of_memory or failure.detail)}"
    return Verdict(
        Cause.CANNOT_TEST, False, said_last, "See the logs in the run folder; --runtime tries another version."
    )


def _sentence(text: str) -> str:
    return text.rstrip(".") + "."


def settle_refusal(known: Findings, controls: Controls) -> None:
    """Looks for the op that the delegate cannot build when the model as it ships does not run on the GPU for that."""
    choice = known.choice
    if choice is None or choice.failure is None or known.graph is None:
        return
    words = placement.read(choice.failure.log_text, 0, choice.failure.adapter_line).not_built
    found = fusion.localise_refusal(controls, known.graph, _ends(known)) if words else None
    if found is None:
        return
    op, runs = found
    entry = advice.for_refusal(op.type, words)
    text, issue = (entry.text, entry.reference) if entry else ("", "")
    if runs:
        known.notes.append(f"With only {op.type} (op {op.index}) kept off the GPU the model runs.")
    known.refused = (Refusal(op.type, words, 1, _blocks_with(known, known.graph, [op.index]), text, issue),)


def settle_death(known: Findings, controls: Controls) -> None:
    """Looks for the op that kills the runtime when the model as it ships does not survive on the GPU."""
    choice = known.choice
    if choice is None or choice.failure is None or known.graph is None:
        return
    failure = choice.failure
    if failure.status not in (CRASHED, TIMED_OUT):
        settle_refusal(known, controls)
        return
    cause = Cause.HANG if failure.status == TIMED_OUT else Cause.CRASH
    culprit = fusion.localise_death(controls, known.graph, block_ops(known), _ends(known), cause, failure.detail)
    known.found.culprits = [culprit] if culprit is not None else []


def settle_invalid(known: Findings, controls: Controls) -> bool:
    """Looks for the op whose commands the GPU refuses, and so drops the whole run: no tap tells anything then.

    Returns:
        Whether it was found; it is the only culprit that can be told.
    """
    seen = log_findings(known)
    if seen is None or not seen[0].validation_errors or known.graph is None:
        return False
    limit = known.settings.output_limit
    refused = fusion.localise_invalid(controls, known.graph, block_ops(known), _ends(known), limit)
    if refused is None or not refused.block:
        return False
    known.found.culprits, known.found.compounding, known.found.healed = [refused], False, ""
    known.found.scenes.clear()
    known.found.unsettled = frozenset(t.block for t in known.taps)
    return True


def settle_taps(known: Findings, controls: Controls) -> None:
    """Settles a disagreement between tapped and shipped graph: the shipped graph's outputs have the last word.

    Right as shipped, what the taps show is the taps' doing, and no culprit stands. Wrong as shipped, and nothing
    found with taps, the fault is looked for without any.
    """
    choice, found = known.choice, known.found
    if choice is None or choice.agrees or known.graph is None:
        return
    limit = known.settings.output_limit
    if controls.without(()).right(limit):
        for culprit in found.culprits:
            known.notes.append(
                f"Tapped, {culprit.block} looks like {culprit.cause}; the model as it ships does not show it."
            )
        found.culprits, found.compounding = [], False
    elif not found.culprits:
        hidden = fusion.localise(controls, known.graph, block_ops(known), _ends(known), limit)
        found.culprits = [hidden] if hidden is not None else []


def _ends(known: Findings) -> list[int]:
    return [t.tensor for t in known.taps if t.tensor >= 0]


def _disagreement(known: Findings, choice: Choice) -> Verdict | None:
    """The verdict when taps changed the outputs and no culprit is left to name."""
    if known.found.culprits:
        return None
    if choice.untapped is not None and known.truth is not None:
        wrong = [
            label
            for label, value in choice.untapped.outputs.items()
            if value.dtype.kind == "f"
            and out_of_line(
                compare(reference=known.truth.outputs[label], target=value, terms=known.truth.terms.get(label, 0.0)),
                known.settings.output_limit,
            )
        ]
        if wrong:
            cured = f" Tapping {', '.join(choice.changed_by)} cures it." if choice.changed_by else ""
            tapped = (
                f"and right when it is tapped.{cured}"
                if choice.gpu
                else f"and with taps it does not run, so that no block is known. {choice.trouble}"
            )
            text = f"On the GPU output {wrong[0]} is wrong when the model runs as it ships, {tapped}"
            return Verdict(Cause.TAP_EFFECT, True, text, advice.default(Cause.TAP_EFFECT))
    blocks = ", ".join(choice.changed_by)
    if not choice.gpu:
        what = f"with taps it does not run, so its outputs are all that is known. {choice.trouble}"
    elif blocks:
        what = f"tapping {blocks} puts an output off."
    else:
        what = "the block table shows what tapping its blocks does to it."
    text = f"The model as it ships is right on the GPU; {what}"
    return Verdict(Cause.TAP_EFFECT, False, text, "Nothing to do for the model that ships.")


def log_findings(known: Findings) -> tuple[placement.LogFindings, JobResult] | None:
    """Reads the log of the GPU run to go by: the untapped one where it worked."""
    choice = known.choice
    if choice is None or not choice.results:
        return None
    result = next((r for r in choice.results if r.ok), choice.results[0])
    graph = known.plain or known.graph
    total = len(graph.ops) if graph is not None else 0
    return placement.read(result.log_text, total, result.adapter_line), result


def place(known: Findings) -> Placement:
    """What ran where when the model ran as it ships."""
    seen = log_findings(known)
    if seen is None or known.target != GPU:
        why = seen[0].no_gpu_reason if seen else ""
        return Placement("", 0, 0, f"No GPU was used. {why}".strip())
    log, result = seen
    graph = known.plain or known.graph
    refusals = []
    if graph is not None:
        _, by_reason = residency.refused_ops(graph, log)
        for refused in log.refused:
            ops = by_reason[f"{refused.op}: {refused.reason}"]
            entry = advice.for_refusal(refused.op, refused.reason)
            text, issue = (entry.text, entry.reference) if entry else ("", "")
            blocks = _blocks_with(known, graph, ops)
            refusals.append(Refusal(refused.op, refused.reason, len(ops), blocks, text, issue))
    if log.gpu_ops is None and result.ok:  # another machine's results
        if log.no_gpu_reason:
            return Placement("", 0, len(graph.ops) if graph is not None else 0, log.no_gpu_reason)
        adapter = log.adapter or result.versions.get("gpu", "")
        why = "The log does not tell" if result.log_text.strip() else "There is no log that tells"
        return Placement(adapter, -1, -1, f"{why} where operations ran.")
    if not result.ok and log.not_built:
        line = f"Nothing ran: the delegate could not build the model ({log.not_built.rstrip('.')})."
        return Placement(log.adapter, 0, 0, line, known.refused, tuple(log.validation_errors))
    gpu, cpu = log.gpu_ops or 0, log.cpu_ops or 0
    whole = {0: "No operation runs", 1: "The only operation runs"}.get(gpu, f"All {gpu} operations run")
    line = log.line or f"{whole} on the GPU."
    return Placement(log.adapter, gpu, cpu, line, tuple(refusals), tuple(log.validation_errors))


def _blocks_with(known: Findings, graph: Graph, ops: Iterable[int]) -> tuple[str, ...]:
    if graph is not known.graph:
        return ()
    wanted = set(ops)
    return tuple(b for b, own in block_ops(known).items() if wanted.intersection(op.index for op in own))


def block_ops(known: Findings) -> dict[str, list[Op]]:
    """The ops of each block, in execution order."""
    graph = known.graph
    if graph is None:
        return {}
    at = {t.tensor for t in known.taps if t.tensor >= 0}
    found: dict[str, dict[int, Op]] = {}
    for tap in known.taps:
        own = found.setdefault(tap.block, {})
        if tap.tensor >= 0:
            own.update((op.index, op) for op in graph.inside([tap.tensor], at))
    left = [p.tensor for p in graph.outputs if p.tensor not in at]
    if left:
        found[OUTPUT] = {op.index: op for op in graph.inside(left, at)}
    return {block: [ops[i] for i in sorted(ops)] for block, ops in found.items()}
