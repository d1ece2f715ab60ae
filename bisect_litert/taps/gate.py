"""The untapped gate: taps are trusted only when the model's own outputs come out the same with and without them.

GPU runs repeat bit by bit, so the untapped graph's outputs are a sharp test. When copies of tapped tensors cure or
cause a symptom the tensors themselves are exposed; what then still differs is said to be so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bisect_litert.devices import placement
from bisect_litert.devices.jobs import NOT_RUN, JobResult
from bisect_litert.measuring.evaluation import GPU, UNTAPPED, Evaluator, TappedGraph, merge, only, tap_graph
from bisect_litert.measuring.metrics import compare, out_of_line
from bisect_litert.measuring.readings import Forward, Values
from bisect_litert.taps.aliasing import operand_in_place_of
from bisect_litert.taps.tapping import Tapping

MAX_BATCHES = 16
MAX_NAMED = 5


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
    agrees: bool = True
    """Whether the believed run and the untapped one show the same outputs."""
    trouble: str = ""
    """What the taps did, in a sentence; empty when nothing."""
    repeats: bool | None = None
    """Whether two runs gave the same bits: the untapped and the tapped one, or else the untapped one twice; None when
    nothing was run twice."""
    failure: JobResult | None = None
    """The untapped run, when it crashed, hung or failed."""
    changed_by: tuple[str, ...] = ()
    """Where the two do not agree: the blocks whose taps alone make the difference."""
    unanswered: bool = False
    """Whether the tapped run was not made at all, as on a device whose results are still to come."""


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
    evaluator.ahead(plain, [GPU], UNTAPPED)
    evaluator.ahead(copies, [GPU])
    untapped = evaluator.run(plain, [GPU], UNTAPPED)[GPU]
    bare = evaluator.values(untapped, plain) if untapped.ok else None
    gate = _Gate(evaluator, bare, truth, limit)
    first, agrees = gate.run(copies)
    results = [untapped, first.without_tensors()]  # of the others' tensors only the believed ones are kept
    reason = placement.read(untapped.log_text + first.log_text, len(plain.graph.ops)).no_gpu_reason
    if first.status == NOT_RUN:
        return Choice(copies, {}, tuple(results), False, f"{first.detail}.", unanswered=True)
    if not untapped.ok and not first.ok:
        absent = untapped.unavailable and "gpu" in untapped.lacks
        if reason or absent:  # there is no GPU; anything else is what the GPU makes of the model
            return Choice(copies, {}, tuple(results), False, reason or f"{untapped.detail}.")
        return Choice(copies, {}, tuple(results), True, failure=untapped)
    repeats = None
    if untapped.ok and first.ok and _same_outputs(untapped, plain, first, copies):
        repeats = True  # two compiles that gave the same bits: no third one is needed to know
    elif untapped.ok:
        again = evaluator.run(plain, [GPU], "-again")[GPU]
        results.append(again.without_tensors())
        repeats = again.ok and _same_bits(untapped, again) if again.status != NOT_RUN else None
    choice = Choice(copies, {GPU: first}, tuple(results), True, untapped=bare, repeats=repeats)
    if bare is None:
        return replace(
            choice, trouble=f"The untapped graph {untapped.status} ({untapped.detail}); only tapped runs were seen."
        )
    if agrees:
        return choice
    # The next rung: the tensors themselves, without copies.
    raw = tap_graph(tapped.graph, [t.tensor for t in tapped.taps if t.tensor >= 0], tapped.outputs, copies=False)
    second, agrees = gate.run(raw, "-raw")
    results.append(second.without_tensors())
    choice = replace(choice, results=tuple(results))
    if agrees:
        raw = _without_aliased(raw, evaluator.values(second, raw), tapped)
        said = "cures or hides the fault" if first.ok else f"does not run ({first.status}: {first.detail})"
        return replace(
            choice,
            graph=raw,
            gpu={GPU: second},
            trouble=f"Copying the tapped tensors {said}; they are exposed themselves instead.",
        )
    if not first.ok:
        return _batched(gate, tapped, copies, replace(choice, agrees=False), first)
    changing = gate.changing(copies)
    results += gate.results
    blocks = tuple(dict.fromkeys(t.block for t in tapped.taps if t.tensor in changing))
    return replace(
        choice,
        agrees=False,
        results=tuple(results),
        trouble="The model's outputs come out differently when blocks are tapped, through copies and directly alike; "
        f"{_named(blocks)} {'alone is' if len(blocks) == 1 else 'together are'} enough for it.",
        changed_by=blocks,
    )


def _same_bits(one: JobResult, other: JobResult) -> bool:
    return one.outputs.keys() == other.outputs.keys() and all(
        np.asarray(v).tobytes() == np.asarray(other.outputs[k]).tobytes() for k, v in one.outputs.items()
    )


def _same_outputs(one: JobResult, graph: TappedGraph, other: JobResult, another: TappedGraph) -> bool:
    """Whether the model's own outputs came out of two graphs with the same bits."""
    pairs = [
        (one.outputs.get(name), other.outputs.get(another.outputs[label])) for label, name in graph.outputs.items()
    ]
    return bool(pairs) and all(
        a is not None and b is not None and np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs
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
        terms = truth.terms.get(label, 0.0)
        a = compare(reference=truth.outputs[label], target=one, terms=terms)
        b = compare(reference=truth.outputs[label], target=other, terms=terms)
        if out_of_line(a, limit) == out_of_line(b, limit):
            continue
        levels = sorted((a.relative_l2, b.relative_l2))
        # A symptom that hovers at the limit is one symptom; three times apart is not.
        if not (a.finite_agreement and b.finite_agreement) or levels[1] > 3 * levels[0]:
            return False
    return True


def _batched(gate: _Gate, tapped: Tapping, copies: TappedGraph, choice: Choice, first: JobResult) -> Choice:
    """Halves the taps until the rest is known, and has the evaluator keep to those batches."""
    taken, merged, agrees = gate.in_batches(copies)
    results = (*choice.results, *gate.results)
    how = f"{first.status}: {first.detail}"
    if merged is None:
        return replace(choice, gpu={}, results=results, trouble=f"No tapped run worked: {how}.")
    gate.evaluator.keep_apart(taken)
    kept = [t for batch in taken for t in batch]
    lost = tuple(dict.fromkeys(t.block for t in tapped.taps if t.tensor in copies.names and t.tensor not in kept))
    said = f" With {_named(lost)} tapped it does not run at all." if lost else ""
    return replace(
        choice,
        graph=only(copies, kept),
        gpu={GPU: merged},
        results=results,
        agrees=agrees,
        trouble=f"All taps at once do not run ({how}); they were taken in batches.{said}",
    )


class _Gate:
    """Runs tapped graphs and holds each against the untapped run."""

    def __init__(self, evaluator: Evaluator, bare: Values | None, truth: Forward, limit: float) -> None:
        self.evaluator, self._bare, self._truth, self._limit = evaluator, bare, truth, limit
        self.results: list[JobResult] = []
        """Runs of some of the taps."""

    def run(self, graph: TappedGraph, suffix: str = "") -> tuple[JobResult, bool]:
        """Runs a tapped graph. Returns what came of it, and whether it shows the untapped run's outputs in every part
        that it was split into."""
        parts = self.evaluator.parts(graph)
        names = [suffix] if len(parts) == 1 else [f"{suffix}-part{n}" for n, _ in enumerate(parts, 1)]
        ran = [self.evaluator.run(part, [GPU], name)[GPU] for part, name in zip(parts, names, strict=True)]
        return merge(ran, GPU + suffix), all(self._agrees(*pair) for pair in zip(ran, parts, strict=True))

    def _agrees(self, result: JobResult, graph: TappedGraph) -> bool:
        if not result.ok or self._bare is None:
            return False
        return same_outputs(self._bare, self.evaluator.values(result, graph), self._truth, self._limit)

    def _some(self, graph: TappedGraph, taps: list[int]) -> tuple[JobResult, bool]:
        result, agrees = self.run(only(graph, taps), f"-batch{len(self.results) + 1}")
        self.results.append(result.without_tensors())
        return result, agrees

    def in_batches(self, graph: TappedGraph) -> tuple[list[list[int]], JobResult | None, bool]:
        """Halves the taps until batches run; GPU runs repeat, so batches are as good as one run.

        Returns:
            The batches that ran, what they gave together, and whether all show the untapped run's outputs.
        """
        taken, ran, agree = [], [], True
        todo = _halves(sorted(graph.names))
        while todo and len(self.results) < MAX_BATCHES:
            batch = todo.pop(0)
            result, agrees = self._some(graph, batch)
            if result.ok:
                taken.append(batch)
                ran.append(result)
                agree = agree and agrees
            elif len(batch) > 1:
                todo[:0] = _halves(batch)
        return taken, merge(ran, GPU) if ran else None, agree

    def changing(self, graph: TappedGraph) -> list[int]:
        """Halves taps that change the outputs as long as one half alone does."""
        found = sorted(graph.names)
        while len(found) > 1:
            half = next((half for half in _halves(found) if not self._some(graph, half)[1]), None)
            if half is None:
                break
            found = half
        return found


def _named(blocks: Sequence[str]) -> str:
    return ", ".join(blocks[:MAX_NAMED]) + (" ..." if len(blocks) > MAX_NAMED else "")


def _halves(batch: list[int]) -> list[list[int]]:
    middle = len(batch) // 2
    return [half for half in (batch[:middle], batch[middle:]) if half]
