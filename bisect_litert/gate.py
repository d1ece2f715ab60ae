"""The untapped gate: taps are trusted only when the model's own outputs come out the same with and without them.

GPU runs repeat bit by bit, so the untapped graph's outputs are a sharp test. When copies of tapped tensors cure or
cause a symptom the tensors themselves are exposed; what then still differs is said to be so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bisect_litert import placement
from bisect_litert.aliasing import operand_in_place_of
from bisect_litert.evaluation import GPU, Evaluator, TappedGraph, merge, only, tap_graph
from bisect_litert.jobs import CRASHED, TIMED_OUT, JobResult
from bisect_litert.metrics import compare, out_of_line
from bisect_litert.readings import Forward, Values
from bisect_litert.tapping import Tapping

MAX_BATCHES = 16


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tapped GPU run to believe."""

    graph: TappedGraph
    gpu: dict[str, JobResult]
    """The believed run under "gpu"; empty when none worked."""
    results: tuple[JobResult, ...]
    tested: bool
    """Whether anything ran on a GPU."""
    why_not: str = ""
    untapped: Values | None = None
    rung: str = "copies"
    """"copies", "raw" or "none": how the believed taps leave the graph."""
    agrees: bool = True
    """Whether the believed run and the untapped one show the same outputs."""
    trouble: str = ""
    """What the taps did, in a sentence; empty when nothing."""
    repeats: bool | None = None
    """Whether the untapped run gave the same bits twice; None when it was not run twice."""
    failure: JobResult | None = None
    """The untapped run, when it crashed, hung or failed."""


def choose_taps(
    evaluator: Evaluator, tapped: Tapping, plain: TappedGraph, copies: TappedGraph, truth: Forward, limit: float
) -> Choice:
    """Runs the untapped and the tapped graph on the GPU and climbs down the ladder until the two agree.

    Args:
        evaluator: Runs graphs.
        tapped: The taps, to build the next rung from.
        plain: The graph that ships.
        copies: The graph tapped through copies.
        truth: Torch's forward.
        limit: Relative L2 error from which an output counts as wrong.
    """
    untapped = evaluator.run(plain, [GPU], "-untapped")[GPU]
    first = evaluator.run(copies, [GPU])[GPU]
    results = [untapped, first]
    reason = placement.read(untapped.log_text + first.log_text, len(plain.graph.ops)).no_gpu_reason
    if not untapped.ok and not first.ok:
        crashed = untapped.status in (CRASHED, TIMED_OUT)
        if reason or not crashed:
            why = reason or f"The GPU run failed: {untapped.detail}."
            return Choice(copies, {}, tuple(results), False, why)
        return Choice(copies, {}, tuple(results), True, failure=untapped)
    bare = evaluator.values(untapped, plain) if untapped.ok else None
    repeats = None
    if untapped.ok:
        again = evaluator.run(plain, [GPU], "-again")[GPU]
        results.append(again)
        repeats = again.ok and _same_bits(untapped, again)
    choice = Choice(copies, {GPU: first}, tuple(results), True, untapped=bare, repeats=repeats)
    if bare is None:
        return replace(
            choice, trouble=f"The untapped graph {untapped.status} ({untapped.detail}); only tapped runs were seen."
        )
    if first.ok and same_outputs(bare, evaluator.values(first, copies), truth, limit):
        return choice
    # The next rung: the tensors themselves, without copies.
    raw = tap_graph(tapped.graph, [t.tensor for t in tapped.taps if t.tensor >= 0], tapped.outputs, copies=False)
    second = evaluator.run(raw, [GPU], "-raw")[GPU]
    results.append(second)
    choice = replace(choice, results=tuple(results))
    if second.ok:
        raw = _without_aliased(raw, evaluator.values(second, raw), tapped)
    if second.ok and same_outputs(bare, evaluator.values(second, raw), truth, limit):
        said = "cures or hides the fault" if first.ok else f"does not run ({first.status}: {first.detail})"
        return replace(
            choice,
            graph=raw,
            gpu={GPU: second},
            rung="raw",
            trouble=f"Copying the tapped tensors {said}; they are exposed themselves instead.",
        )
    if not first.ok:
        merged = _in_batches(evaluator, copies, results)
        if merged is not None:
            return replace(
                choice,
                gpu={GPU: merged},
                results=tuple(results),
                trouble=f"All taps at once do not run ({first.status}: {first.detail}); they were taken in batches.",
            )
        return replace(
            choice,
            gpu={},
            results=tuple(results),
            rung="none",
            agrees=False,
            trouble=f"No tapped run worked: {first.status}: {first.detail}.",
        )
    return replace(
        choice,
        agrees=False,
        trouble="The model's outputs come out differently when blocks are tapped, through copies and directly alike.",
    )


def _same_bits(one: JobResult, other: JobResult) -> bool:
    return one.outputs.keys() == other.outputs.keys() and all(
        np.asarray(v).tobytes() == np.asarray(other.outputs[k]).tobytes() for k, v in one.outputs.items()
    )


def _without_aliased(graph: TappedGraph, seen: Values, tapped: Tapping) -> TappedGraph:
    """Forgets taps that came back with an operand's values or unwritten: that is the tap's doing, not the model's."""
    spoiled = set()
    for tap in tapped.taps:
        value = seen.taps.get(tap.key)
        if value is None or tap.layout is None or graph.names[tap.tensor] in graph.outputs.values():
            continue
        flat = tap.layout.from_torch(value, tapped.graph.tensors[tap.tensor].shape)
        if (
            seen.unwritten.get(tap.key)
            or operand_in_place_of(tapped.graph, tap.tensor, flat, tapped.values) is not None
        ):
            spoiled.add(tap.tensor)
    return replace(graph, names={t: name for t, name in graph.names.items() if t not in spoiled})


def same_outputs(bare: Values, seen: Values, truth: Forward, limit: float) -> bool:
    """Whether two runs show the same symptom: bitwise equal, or right and wrong in the same outputs."""
    for label, one in bare.outputs.items():
        other = seen.outputs.get(label)
        if other is None or one.dtype.kind != "f" or np.array_equal(one, other, equal_nan=True):
            continue
        a = compare(reference=truth.outputs[label], target=one)
        b = compare(reference=truth.outputs[label], target=other)
        if out_of_line(a, limit) == out_of_line(b, limit):
            continue
        levels = sorted((a.relative_l2, b.relative_l2))
        # A symptom that hovers at the limit is one symptom; three times apart is not.
        if not (a.finite_agreement and b.finite_agreement) or levels[1] > 3 * levels[0]:
            return False
    return True


def _in_batches(evaluator: Evaluator, graph: TappedGraph, results: list[JobResult]) -> JobResult | None:
    """Halves the taps until batches run, and merges what they gave; GPU runs repeat, so batches are as good as one
    run."""
    taken: list[JobResult] = []
    todo, runs = _halves(sorted(graph.names)), 0
    while todo and runs < MAX_BATCHES:
        batch = todo.pop(0)
        runs += 1
        result = evaluator.run(only(graph, batch), [GPU], f"-batch{runs}")[GPU]
        results.append(result)
        if result.ok:
            taken.append(result)
        elif len(batch) > 1:
            todo[:0] = _halves(batch)
    return merge(taken, GPU) if taken else None


def _halves(batch: list[int]) -> list[list[int]]:
    middle = len(batch) // 2
    return [half for half in (batch[:middle], batch[middle:]) if half]
