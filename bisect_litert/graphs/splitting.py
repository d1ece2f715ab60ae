"""A model run in parts: some ops on the CPU and the others on the GPU, by cutting the graph where they meet.

That is what the delegate's own switches do, for runtimes that have none. The GPU's value of a tensor at a cut comes
from a graph that ends there: a tensor that is an output and is read by nothing cannot be handed to the wrong buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bisect_litert.devices.jobs import FAILED, JobResult
from bisect_litert.graphs.cutting import boundary, cut
from bisect_litert.graphs.graph import Graph, Op
from bisect_litert.measuring.evaluation import CPU, GPU, GPU_FP32, Evaluator, TappedGraph

MAX_RUNS = 16
"""GPU runs that one run in parts may take; where ops of both kinds alternate more often, it is not tried."""


class PartFailed(Exception):
    """A part could not be run, so nothing is known of the whole.

    Args:
        result: How the part's run ended.
    """

    def __init__(self, result: JobResult) -> None:
        super().__init__(result.detail)
        self.result = result


@dataclass(frozen=True, slots=True)
class Stretch:
    """Ops that follow each other with no op of another kind between them."""

    ops: tuple[Op, ...]
    reads: tuple[int, ...]
    """Tensors of the GPU's that it reads."""
    given: tuple[int, ...]
    """Tensors of stretches before it that it reads."""
    ends: tuple[int, ...]
    """Its tensors that other ops read, or that are wanted."""
    settled: bool
    """Whether it runs on the CPU in any case."""


class Parts:
    """Runs of one graph in parts.

    Args:
        evaluator: Runs graphs.
        graph: The graph as it ships.
    """

    def __init__(self, evaluator: Evaluator, graph: Graph) -> None:
        self._evaluator, self._graph, self._count = evaluator, graph, 0
        self._inputs = {port.tensor for port in graph.inputs}
        self._known: dict[tuple[object, ...], np.ndarray] = {}

    def compute(
        self,
        wanted: Sequence[int],
        off: Iterable[int] = (),
        settled: Iterable[int] = (),
        *,
        apart: bool = False,
        fp32: bool = False,
    ) -> dict[int, np.ndarray]:
        """Computes tensors with some ops kept off the GPU.

        Args:
            wanted: Tensors, by index.
            off: Ops to keep off the GPU.
            settled: Ops that are not on the GPU in any case, so that a cut does not bring them there.
            apart: Cut in the same places, and run `off` on the GPU all the same, in graphs of their own.
            fp32: Let the GPU compute in fp32.

        Returns:
            The tensors' values in the graph's layout. What the GPU did not write is NaN, and stays so on its way.

        Raises:
            PartFailed: A part did not run, or there are too many.
        """
        kind = GPU_FP32 if fp32 else GPU
        settled, off = frozenset(settled), frozenset(off)
        plan = self._plan(wanted, off - settled, settled)
        if sum(len(s.reads) + (len(s.ends) if apart and not s.settled else 0) for s in plan) >= MAX_RUNS:
            raise PartFailed(JobResult("parts", FAILED, f"it would take more than {MAX_RUNS} runs"))
        given: dict[int, np.ndarray] = {}
        for stretch in plan:
            cpu = stretch.settled or not apart
            fed = {t: given[t] for t in stretch.given}
            fed |= {t: self._prefix(t, given, kind, off, settled, apart) for t in stretch.reads}
            for ends in [stretch.ends] if cpu else [[t] for t in stretch.ends]:
                given.update(self._run(stretch.ops, fed, ends, CPU if cpu else kind))
        left = [t for t in wanted if t not in given]
        if len(left) == 1:
            given[left[0]] = self._prefix(left[0], given, kind, off, settled, apart)
        elif left:
            given.update(self._run(self._graph.ops, given, left, kind))
        return {t: given[t] for t in wanted}

    def finish(self, given: Mapping[int, np.ndarray], wanted: Sequence[int]) -> dict[int, np.ndarray]:
        """Computes tensors on the CPU alone, with the given ones put in place of what the graph computes.

        Raises:
            PartFailed: It did not run.
        """
        left = [t for t in wanted if t not in given]
        return {**given, **(self._run(self._graph.ops, given, left, CPU) if left else {})}

    def _prefix(
        self,
        t: int,
        given: Mapping[int, np.ndarray],
        kind: str,
        off: frozenset[int],
        settled: frozenset[int],
        apart: bool,
    ) -> np.ndarray:
        """The GPU's value of one tensor, from a graph that ends with it."""
        before = frozenset(op.index for op in self._graph.inside([t], ()))
        key = (t, kind, before & off, before & settled, apart and bool(before & off))
        if key not in self._known:
            self._known[key] = self._run(self._graph.ops, given, [t], kind)[t]
        return self._known[key]

    def _plan(self, wanted: Sequence[int], off: frozenset[int], settled: frozenset[int]) -> list[Stretch]:
        """Orders the ops that are not the GPU's in stretches, each of which needs only those before it."""
        graph = self._graph
        needed = [op for op in graph.inside(wanted, ()) if graph.computed.intersection(op.outputs)]
        colour = {op.index: 2 if op.index in off else 1 if op.index in settled else 0 for op in needed}
        depth: dict[int, int] = {}
        for op in needed:
            before = [graph.producer[t].index for t in op.inputs if t in graph.producer and t in graph.computed]
            depth[op.index] = max((depth[p] + (colour[p] != colour[op.index]) for p in before), default=0)
        stretches: dict[tuple[int, int], list[Op]] = {}
        for op in needed:
            if colour[op.index]:
                stretches.setdefault((depth[op.index], colour[op.index]), []).append(op)
        plan = []
        for (_, kind), ops in sorted(stretches.items(), key=lambda item: item[0]):
            mine = {op.index for op in ops}
            asked = [
                t for t in boundary(graph, ops) if t in graph.computed and t not in self._inputs and t in graph.producer
            ]
            read_outside = {t for op in needed if op.index not in mine for t in op.inputs} | set(wanted)
            plan.append(
                Stretch(
                    # What follows from constants alone belongs to whoever reads it.
                    ops=tuple(
                        op for op in graph.ops if op.index in mine or not graph.computed.intersection(op.outputs)
                    ),
                    reads=tuple(t for t in asked if not colour[graph.producer[t].index]),
                    given=tuple(t for t in asked if colour[graph.producer[t].index]),
                    ends=tuple(t for op in ops for t in op.outputs if t in read_outside),
                    settled=kind == 1,
                )
            )
        return plan

    def _run(
        self, ops: Sequence[Op], given: Mapping[int, np.ndarray], wanted: Sequence[int], kind: str
    ) -> dict[int, np.ndarray]:
        graph = self._graph
        part = cut(graph, ops, list(given), list(dict.fromkeys(wanted)))
        feeds = {name: np.ascontiguousarray(given[t]) for name, t in part.inputs.items()}
        tapped = TappedGraph(part.graph, {}, {name: name for name in part.outputs}, feeds)
        self._count += 1
        result = self._evaluator.run(tapped, [kind], f"-part{self._count}")[kind]
        if not result.ok:
            raise PartFailed(result)
        return {t: np.asarray(result.outputs[name]).reshape(graph.tensors[t].shape) for name, t in part.outputs.items()}
