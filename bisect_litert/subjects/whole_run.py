"""Every tensor of a graph, from one run of the plain CPU kernels, or in stretches where they are too large together.

Of a stretch what later ones read is kept, on disk; the rest is looked at, let go, and computed again when it is asked
for. Plain CPU kernels run op by op and repeat, so that changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bisect_litert.devices.jobs import Job, JobResult, JobRunner
from bisect_litert.errors import ConversionError, RunnerError
from bisect_litert.graphs.cutting import boundary, can_be_parted, cut, sinks
from bisect_litert.graphs.graph import Graph, Op
from bisect_litert.measuring.evaluation import STRETCHES, TAP_MEMORY
from bisect_litert.measuring.pieces import let_go
from bisect_litert.models.shelf import Shelf
from bisect_litert.taps.fingerprints import Tensors
from bisect_litert.verdicts.advice import way_around

_IN_MEMORY = 64 << 20
"""Bytes of what later stretches read that stay in memory."""
_NO_KERNEL = re.compile(r"Didn't find op for builtin opcode '(\w+)'")
_NOT_PREPARED = re.compile(r"(?:^|: )([^:\n]*?)\.? ?Node number \d+ \((\w+)\) failed to prepare")


def run_whole(
    runner: JobRunner,
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    folder: Path,
    name: str,
    budget: int = TAP_MEMORY,
) -> tuple[Tensors[int], JobResult]:
    """Runs a graph and returns every tensor by index, as real numbers, inputs included, and the last job it took.

    Args:
        runner: Where it runs.
        graph: The graph.
        inputs: By signature name.
        folder: Where .tflite files go.
        name: What to call the job.
        budget: Bytes of tensors that may lie there. A graph with more is run in stretches, one after the other,
            each on what those before it gave.

    Raises:
        ConversionError: The graph holds an op that LiteRT has no kernel for.
        RunnerError: It does not run.
    """
    stored = {p.tensor: np.asarray(inputs[p.name]) for p in graph.inputs if p.name in inputs}
    parts = _stretches(graph, budget)
    if len(parts) > 1:
        values = Stretched(runner, graph, stored, folder, name, parts, budget // STRETCHES)
        return values, values.run()
    result = _run(runner, Job(name, graph.on_disk(folder / f"{name}.tflite"), "interpreter", inputs, tensors="all"))
    stored.update(result.tensors)
    return Tensors({t: graph.tensors[t].real(value) for t, value in stored.items()}), result


class Stretched(Tensors[int]):
    """The tensors of a graph that is run in stretches.

    Args:
        runner: Where it runs.
        graph: The graph.
        stored: Its inputs, by tensor index, in the graph's own numbers.
        folder: Where .tflite files go.
        name: What to call the jobs.
        parts: The stretches.
        budget: Bytes that may lie there of what one stretch hands to another, when all have run.
    """

    def __init__(
        self,
        runner: JobRunner,
        graph: Graph,
        stored: Mapping[int, np.ndarray],
        folder: Path,
        name: str,
        parts: Sequence[Sequence[Op]],
        budget: int,
    ) -> None:
        super().__init__({})
        self._runner, self._graph, self._folder, self._name, self._parts = runner, graph, folder, name, parts
        self._place = {t: n for n, ops in enumerate(parts) for op in ops for t in op.outputs}
        self._kept = dict(stored)
        """What stretches read that did not write it."""
        self._reads = [[t for t in boundary(graph, ops) if t in stored or t in self._place] for ops in parts]
        self._last_read = {t: number for number, read in enumerate(self._reads) for t in read}
        # From every so many stretches on, everything can be computed again from what is kept there.
        passed_on = sum(4 * graph.tensors[t].size for t in self._last_read if t not in stored)
        self._every = max(1, -(-passed_on // max(budget, 1)))
        self._shelf = Shelf(_IN_MEMORY)
        self._recent: dict[int, Mapping[int, np.ndarray]] = {}
        """What the stretches that ran last gave, the last one last."""
        self._keys = dict.fromkeys(stored)
        self._runs = 0

    def run(self) -> JobResult:
        """Runs every stretch, and looks at all that it gives while it is there. Returns the last job."""
        for number in range(len(self._parts)):
            result = self._compute(number)
            for t in self._recent[number]:
                self._keys[t] = None
                self.look(t)
        return result

    def move_to(self, runner: JobRunner, folder: Path) -> None:
        """Computes there from now on what is asked for again."""
        self._runner, self._folder = runner, folder

    def __getitem__(self, key: int) -> np.ndarray:
        if key not in self:
            raise KeyError(key)
        return self._graph.tensors[key].real(self._stored(key))

    def __iter__(self) -> Iterator[int]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def _lasts(self, t: int) -> bool:
        """Whether a tensor is read beyond the next of the places from where on everything can be computed."""
        return self._last_read[t] >= (self._place[t] // self._every + 1) * self._every

    def _stored(self, t: int) -> np.ndarray:
        if t in self._kept:
            return self._kept[t]
        number = self._place[t]
        if number not in self._recent:
            self._reach(number)
        return self._recent[number][t]

    def _reach(self, number: int) -> None:
        """Runs a stretch again, and those before it that it cannot do without."""
        if any(t not in self._kept for t in self._reads[number]):
            for t in [t for t in self._kept if t in self._place and not self._lasts(t)]:
                del self._kept[t]
            for before in range(number // self._every * self._every, number):
                self._compute(before)
        self._compute(number)

    def _compute(self, number: int) -> JobResult:
        made = cut(self._graph, self._parts[number], self._reads[number], sinks(self._parts[number]))
        fed = {port: np.asarray(self._kept[t]) for port, t in made.inputs.items()}
        self._runs += 1
        again = f"-again{self._runs}" if self._runs > len(self._parts) else ""
        path = made.graph.write(self._folder / f"{self._name}-{number + 1}{again}.tflite")
        written = tuple({t for op in self._parts[number] for t in op.outputs})
        job = Job(f"{self._name}-{number + 1}{again}", path, "interpreter", fed, tensors=written, once=True)
        result = _run(self._runner, job)
        while len(self._recent) > 1:  # two are there at most
            del self._recent[next(iter(self._recent))]
        self._recent[number] = {t: result.tensors[t] for t in sorted(result.tensors)}
        for t in result.tensors:
            if t in self._last_read and t not in self._kept:
                self._kept[t] = self._shelf.keep(np.array(result.tensors[t]))
                let_go(result.tensors[t])
        for t in [t for t in self._kept if t in self._place and self._last_read[t] <= number and not self._lasts(t)]:
            del self._kept[t]
        return replace(result, tensors={})


def _stretches(graph: Graph, budget: int) -> list[list[Op]]:
    """The ops in file order, parted where what they write exceeds a budget; several parts lie there at one time."""
    sizes = [sum(4 * graph.tensors[t].size for t in op.outputs) for op in graph.ops]
    if sum(sizes) <= budget or not can_be_parted(graph):
        return [list(graph.ops)]
    parts: list[list[Op]] = [[]]
    room = budget // STRETCHES
    for op, size in zip(graph.ops, sizes, strict=True):
        if size > room and parts[-1]:
            parts.append([])
            room = budget // STRETCHES
        parts[-1].append(op)
        room -= size
    return parts


def _run(runner: JobRunner, job: Job) -> JobResult:
    result = runner.run([job])[job.id]
    if not result.ok:
        unknown = _NO_KERNEL.search(result.detail)
        if unknown:
            raise ConversionError(
                f"the converted graph holds {unknown.group(1)}, which LiteRT's runtime has no kernel for.",
                hint=way_around(unknown.group(1)) or "Replace the operation that becomes it in the model.",
            )
        refused = _NOT_PREPARED.search(result.detail)
        if refused:
            why, op = refused.groups()
            raise ConversionError(
                f"the converted graph holds {op}, which LiteRT's runtime does not run as it is: {why}.",
                hint=way_around(op) or "Replace the operation that becomes it in the model.",
            )
        raise RunnerError(
            f"LiteRT cannot run the converted graph on the CPU: {result.status}: {result.detail.rstrip('.')}.",
            hint="See logs in the run folder.",
            detail=result.log_text[-2000:],
        )
    return result
