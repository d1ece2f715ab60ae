"""Runs on the CPU whose taps are too large to be kept: in stretches, each compared when it comes and then let go.

A stretch is a part of the graph that reads what those before it gave; it runs when one of its taps is asked for, which
the forced forward does in order. So a run costs what one run of the whole graph costs, and two stretches at a time lie
on disk. The GPU's runs are never parted so: where the graph ends decides what its delegate fuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bisect_litert.devices.job_queue import result_of
from bisect_litert.devices.jobs import JobResult
from bisect_litert.errors import RunnerError
from bisect_litert.graphs.cutting import Cut, boundary, can_be_parted, copies_early, cut
from bisect_litert.graphs.graph import Graph, Op
from bisect_litert.measuring.evaluation import ACCELERATOR, CPU, HALF, ROUNDING, Evaluator, Running, TappedGraph
from bisect_litert.measuring.readings import Errors, Values

KEPT_AT_ONCE = 2


def run(
    evaluator: Evaluator,
    tapped: TappedGraph,
    kinds: Sequence[str],
    suffix: str,
    whole: Sequence[str],
    measured: dict[str, Errors],
    price: Callable[[Values], Errors],
) -> dict[str, JobResult]:
    """Runs a tapped graph in each of the given ways, and measures at once those whose taps it does not keep.

    Args:
        evaluator: Runs graphs.
        tapped: The graph.
        kinds: How to run it.
        suffix: Ends the names of the jobs.
        whole: Ways whose tensors are needed afterwards.
        measured: Takes what was measured, by job.
        price: Holds what a run gave against the reference.

    Returns:
        Results by kind; without tensors where they were measured.
    """
    if not evaluator.passes(tapped):
        return evaluator.run(tapped, kinds, suffix)
    found = {}
    for kind in kinds:
        if kind not in (CPU, HALF, ROUNDING) or kind in whole:
            found.update(evaluator.run(tapped, [kind], suffix))
            continue
        passing = Passing(evaluator, tapped, kind, suffix)
        try:
            measured[kind + suffix] = price(passing.values)
            found[kind] = passing.result
        except LostStretchError as error:
            found[kind] = replace(error.result, id=kind + suffix)
        evaluator.ended(found[kind])
    return found


class LostStretchError(RunnerError):
    """A stretch did not run; its result says why."""

    def __init__(self, result: JobResult) -> None:
        super().__init__(f"LiteRT cannot run the graph on the CPU: {result.status}: {result.detail}.")
        self.result = result


class Passing:
    """One run in stretches.

    Args:
        evaluator: Reads results.
        tapped: The graph as it was tapped.
        kind: How it runs.
        suffix: Ends the names of the jobs.
    """

    def __init__(self, evaluator: Evaluator, tapped: TappedGraph, kind: str, suffix: str) -> None:
        self._evaluator, self._tapped, self._name, self._kind = evaluator, tapped, kind + suffix, kind
        self._graph = evaluator.made_for(tapped, kind)
        self._ends = {port.tensor: port.name for port in self._graph.outputs}
        self._stretches = _stretches(self._graph, self._ends, evaluator.stretch)
        number = {t: n for n, ops in enumerate(self._stretches) for op in ops for t in op.outputs}
        self._place = {name: number[t] for t, name in self._ends.items() if t in number}
        read_by = [set(boundary(self._graph, ops)) for ops in self._stretches]
        self._carried = set().union(*read_by)
        self._last_read = {t: max(n for n, read in enumerate(read_by) if t in read) for t in self._carried}
        given = evaluator.given(self._graph, tapped.feeds)
        self._inputs = {port.tensor: given[port.name] for port in self._graph.inputs if port.name in given}
        self._kept = dict(self._inputs)
        """What stretches that did not run yet read."""
        self._done = 0
        self._recent: dict[int, Values] = {}
        self._next: tuple[int, Cut, Running] | None = None
        self._results: list[JobResult] = []
        self.unwritten: dict[str, int] = {}

    @property
    def values(self) -> Values:
        """What the run gives, each stretch of it when it is asked for."""
        keys = self._evaluator.keys(self._tapped)
        taps = {key: self._place[name] for key, name in keys.items() if name in self._place}
        outputs = {key: self._place[name] for key, name in self._tapped.outputs.items() if name in self._place}
        return Values(
            _Asked(taps, lambda key: self._stretch(taps[key]).taps[key]),
            _Asked(outputs, lambda key: self._stretch(outputs[key]).outputs[key]),
            self.unwritten,
        )

    @property
    def result(self) -> JobResult:
        """What became of the run, without its tensors."""
        spent = sum(result.seconds for result in self._results)
        built = sum(result.compile_seconds for result in self._results)
        return replace(self._results[-1], id=self._name, outputs={}, seconds=spent, compile_seconds=built)

    def _stretch(self, number: int) -> Values:
        """What a stretch gives; it is run, and those before it that were not yet."""
        if number < self._done and number not in self._recent:  # asked for out of order, long after it was let go
            self._done, self._next, self._kept = 0, None, dict(self._inputs)
        while self._done <= number:
            self._run(self._done)
        return self._recent[number]

    def _run(self, number: int) -> None:
        if self._next is None or self._next[0] != number:
            self._start(number)
        assert self._next is not None
        _, made, running = self._next
        self._next = None
        result = next(iter(result_of(running).values()))
        if number == len(self._results):
            self._results.append(result.without_tensors())
        if not result.ok:
            raise LostStretchError(result)
        outputs: dict[str, np.ndarray] = {}
        for port, t in made.outputs.items():
            if t in self._ends:
                outputs[self._ends[t]] = result.outputs[port]
            if t in self._carried:
                self._kept[t] = result.outputs[port]
        self._done = number + 1
        for t in [t for t in self._kept if t not in self._inputs and self._last_read.get(t, -1) <= number]:
            del self._kept[t]
        counts = {self._ends[t]: result.unwritten.get(port, 0) for port, t in made.outputs.items() if t in self._ends}
        self._recent.pop(number, None)
        while len(self._recent) >= KEPT_AT_ONCE:
            del self._recent[next(iter(self._recent))]
        found = self._evaluator.values(replace(result, outputs=outputs, unwritten=counts), self._tapped)
        self._recent[number] = found
        self.unwritten.update(found.unwritten)
        if number + 1 < len(self._stretches):
            self._start(number + 1)  # while this one is compared

    def _start(self, number: int) -> None:
        graph, ops = self._graph, self._stretches[number]
        written = dict.fromkeys(t for op in ops for t in op.outputs if t in self._ends or t in self._carried)
        made = cut(graph, ops, [t for t in boundary(graph, ops) if t in self._kept], list(written))
        fed = {port: np.asarray(self._kept[t]) for port, t in made.inputs.items()}
        running = self._evaluator.start_once(f"{self._name}-{number + 1}", made.graph, fed, ACCELERATOR[self._kind])
        self._next = number, made, running


@dataclass(frozen=True)
class _Asked(Mapping[str, np.ndarray]):
    """Tensors that are there when they are asked for."""

    known: Mapping[str, int]
    ask: Callable[[str], np.ndarray]

    def __getitem__(self, key: str) -> np.ndarray:
        if key not in self.known:
            raise KeyError(key)
        return self.ask(key)

    def __contains__(self, key: object) -> bool:
        return key in self.known

    def __iter__(self) -> Iterator[str]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)


def _stretches(graph: Graph, ends: Mapping[int, str], budget: int) -> list[list[Op]]:
    """The ops in an order in which a tap's copy follows what it copies, parted where outputs would exceed a budget."""
    if not can_be_parted(graph):
        return [list(graph.ops)]
    parts: list[list[Op]] = [[]]
    room = budget
    for op in copies_early(graph):
        size = sum(4 * graph.tensors[t].size for t in op.outputs if t in ends)
        if size > room and parts[-1]:
            parts.append([])
            room = budget
        parts[-1].append(op)
        room -= size
    return parts
