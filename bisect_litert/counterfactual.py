"""The strongest evidence: keep the culprit off the GPU and see whether the model comes right.

The delegate's own switches do it without touching the file: LITERT_GPU_DEBUG_EXCLUDE_NODES keeps ops on the CPU, and
LITERT_GPU_DEBUG_END_NODE=N puts ops 0 to N on the GPU and the rest on the CPU. Both act on the graph as it ships,
taps or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bisect_litert.evaluation import GPU, GPU_FP32, Evaluator, TappedGraph
from bisect_litert.jobs import CRASHED, TIMED_OUT, JobResult
from bisect_litert.metrics import compare, out_of_line
from bisect_litert.record import Comparison

EXCLUDE = "LITERT_GPU_DEBUG_EXCLUDE_NODES"
END = "LITERT_GPU_DEBUG_END_NODE"


@dataclass(frozen=True, slots=True)
class Control:
    """What one control run showed."""

    outputs: Mapping[str, Comparison]
    """The model's float outputs against torch."""
    ok: bool
    detail: str = ""
    died: bool = False
    """Whether the runtime crashed or ran out of time."""

    def right(self, limit: float) -> bool:
        """Whether every output is in line."""
        return self.ok and bool(self.outputs) and not any(out_of_line(c, limit) for c in self.outputs.values())

    @property
    def worst(self) -> float:
        """Largest relative L2 error of an output; nan when one is not finite or nothing ran."""
        levels = [c.relative_l2 if c.finite_agreement else float("nan") for c in self.outputs.values()]
        return float(np.max(levels)) if levels else float("nan")


class Controls:
    """Control runs of one graph.

    Args:
        evaluator: Runs graphs.
        graph: The graph as it ships.
        truth: Torch's outputs, by label.
    """

    def __init__(self, evaluator: Evaluator, graph: TappedGraph, truth: Mapping[str, np.ndarray]) -> None:
        self._evaluator, self._graph, self._truth = evaluator, graph, truth
        self.jobs: list[JobResult] = []
        self._seen: dict[tuple[str, str, bool], Control] = {}

    def without(self, ops: Sequence[int]) -> Control:
        """Runs with these ops on the CPU and the others on the GPU."""
        return self._run(EXCLUDE, ",".join(map(str, sorted(ops))))

    def up_to(self, op: int, *, fp32: bool = False) -> Control:
        """Runs with the ops up to and including this one on the GPU and the rest on the CPU."""
        return self._run(END, str(op), fp32)

    def _run(self, switch: str, value: str, fp32: bool = False) -> Control:
        key = (switch, value, fp32)
        if key not in self._seen:
            kind = GPU_FP32 if fp32 else GPU
            result = self._evaluator.run(self._graph, [kind], f"-control{len(self._seen) + 1}", env={switch: value})[
                kind
            ]
            self.jobs.append(result)
            outputs = self._evaluator.values(result, self._graph).outputs if result.ok else {}
            self._seen[key] = Control(
                {k: compare(reference=self._truth[k], target=v) for k, v in outputs.items() if v.dtype.kind == "f"},
                result.ok,
                result.detail,
                result.status in (CRASHED, TIMED_OUT),
            )
        return self._seen[key]


def first_wrong(last: int, wrong: Callable[[int], bool | None]) -> int | None:
    """Finds the smallest N for which `wrong(N)` holds, given that it holds for `last`, by halving.

    Args:
        last: An op index known to be wrong.
        wrong: Whether the model is wrong with ops 0..N on the GPU; None when that could not be told, which counts as
            wrong so that
            the search goes on to smaller N and never names an op it has not seen right before.

    Returns:
        The op index, or None when nothing could be told at all.
    """
    low, high, told = -1, last, False
    while high - low > 1:
        middle = (low + high) // 2
        answer = wrong(middle)
        told = told or answer is not None
        if answer is False:
            low = middle
        else:
            high = middle
    return high if told or last == 0 else None
