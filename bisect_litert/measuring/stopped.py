"""What a run that was stopped can still tell: its runs that had ended, held against the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bisect_litert.devices.jobs import JobResult
from bisect_litert.measuring.evaluation import Evaluator, TappedGraph
from bisect_litert.measuring.readings import Errors, Forward, Tap, Values, by_size, compare_all
from bisect_litert.vocabulary import RunName


def errors_of(
    ended: Mapping[RunName, tuple[JobResult, TappedGraph]],
    evaluator: Evaluator,
    truth: Forward,
    measured: Mapping[str, Errors],
) -> dict[RunName, Errors]:
    """Returns the errors of the runs that worked.

    Args:
        ended: Each run and the graph it ran.
        evaluator: Has their tensors.
        truth: The reference.
        measured: What was measured already, by job; of the others there are cumulative errors only.
    """
    return {
        name: measured.get(result.id) or _without_forcing(evaluator.values(result, graph), truth)
        for name, (result, graph) in ended.items()
        if result.ok
    }


def _without_forcing(values: Values, truth: Forward) -> Errors:
    """No torch forward is spent on it any more."""
    return Errors(
        cumulative=compare_all(truth.taps, values.taps, values, truth.terms),
        local={},
        output_cumulative=compare_all(truth.outputs, values.outputs, values, truth.terms),
        output_local={},
    )


def furthest(runs: Mapping[RunName, Errors], taps: Sequence[Tap]) -> list[str]:
    """Returns a sentence for each run: which block is furthest off, and by how much."""
    words = {RunName.CPU: "the CPU", RunName.FP16: "emulated fp16", RunName.GPU: "the GPU"}
    blocks = {tap.key: tap.block for tap in taps}
    told = []
    for name, errors in runs.items():
        lost = next((blocks[key] for key, c in errors.cumulative.items() if not c.finite_agreement), "")
        seen = [(c.relative_l2, blocks[key]) for key, c in errors.cumulative.items()]
        if not seen:
            continue
        level, block = max(seen, key=lambda pair: by_size(pair[0]))  # nan is the worst
        off = f"not finite in {lost}" if lost else f"at most {level:.2g} off, in {block}"
        told.append(f"Ended before that: {words.get(name, 'the GPU in fp32')}, {off}.")
    return told
