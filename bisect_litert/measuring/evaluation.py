"""Runs one tapped graph in the ways a round needs and brings every tensor back in PyTorch's layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

from bisect_litert.devices.job_queue import JobQueue, result_of
from bisect_litert.devices.jobs import Job, JobResult
from bisect_litert.graphs.cutting import with_copies_early
from bisect_litert.graphs.dequantised import as_floats
from bisect_litert.graphs.editor import COPY_SUFFIX, FEED_PREFIX, Editor, with_taps
from bisect_litert.graphs.emulation import Rounding, emulate
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.readings import Tap, Values
from bisect_litert.taps.tapper import Layout

Running = Future[dict[str, JobResult]]
TAP_MEMORY = 1 << 30
"""Default budget for the taps of one run, bytes."""
CPU, HALF, ROUNDING, GPU, GPU_FP32 = "cpu", "fp16", "rounding", "gpu", "gpu-fp32"
STRETCHES = 4
"""Runs whose taps lie there at one time, and so how many times smaller than the budget they are without more ado."""
UNTAPPED = "-untapped"
ACCELERATOR = {CPU: "cpu", HALF: "cpu", ROUNDING: "xnnpack", GPU: "gpu", GPU_FP32: "gpu"}
"""fp16 runs as it would ship, since it may stand in for the GPU: only there an output that nobody writes shows."""


@dataclass(frozen=True, slots=True)
class TappedGraph:
    """A graph with outputs for every tap, and how to ask for and read them."""

    graph: Graph
    names: Mapping[int, str]
    """Output name by tensor index."""
    outputs: Mapping[str, str]
    """Signature output by the model's own output label."""
    feeds: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Extra inputs, by signature name, in the graph's layout."""


class Evaluator:
    """Runs graphs of one model on one set of inputs.

    Args:
        runner: Where jobs run.
        folder: Where .tflite files go.
        inputs: The model's inputs, by signature name.
        taps: The taps to read back.
        output_shapes: PyTorch's shape of each model output, by label.
        tame: Tensors that hold nothing infinite, NaN or huge on the CPU.
        on_job: Called when a job has ended, with its name.
        tap_memory: Bytes of taps that one run may return; more are taken in several runs.
        fp32: The GPU is to be judged in fp32: every run on it is in fp32, and no run emulates fp16.
        layouts: How outputs hold what the model returns, by label, where they are not merely reshaped.
    """

    def __init__(
        self,
        runner: JobQueue,
        folder: Path,
        inputs: Mapping[str, np.ndarray],
        taps: Sequence[Tap],
        output_shapes: Mapping[str, tuple[int, ...]],
        tame: frozenset[int],
        on_job: Callable[[str], None],
        tap_memory: int = TAP_MEMORY,
        fp32: bool = False,
        layouts: Mapping[str, Layout] = MappingProxyType({}),
    ) -> None:
        self._runner, self._folder, self._inputs = runner, folder, inputs
        self._taps, self._shapes, self._tame, self._on_job = tuple(taps), output_shapes, tame, on_job
        self._tap_memory, self._fp32, self._layouts = tap_memory, fp32, layouts
        self._apart: dict[int, int] = {}
        self._files = 0
        self._running: dict[tuple[str, int], tuple[TappedGraph, Running]] = {}
        self.results: list[JobResult] = []

    def ahead(self, tapped: TappedGraph, kinds: Sequence[str], suffix: str = "") -> None:
        """Starts runs that `run` is certain to be asked for later; it then only waits for them.

        Those whose taps exceed the memory budget are left to it.
        """
        if len(self.parts(tapped)) == 1:
            for kind in kinds:
                # With the graph, so that no other one gets its id.
                self._running[kind + suffix, id(tapped)] = tapped, self._start(tapped, kind, suffix, {})

    def adopt(self, tapped: TappedGraph, kind: str, suffix: str, running: Running) -> None:
        """Takes over a run that was started before there was an evaluator, as `ahead` would have."""
        self._running[kind + suffix, id(tapped)] = tapped, running

    def run(
        self, tapped: TappedGraph, kinds: Sequence[str], suffix: str = "", env: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, JobResult]:
        """Runs the graph in each of the given ways.

        Taps that exceed the memory budget are spread over several runs of the same graph and put together again; runs
        repeat, so the split does not show.

        Returns:
            Results by kind; a job that failed is a result with a status, never an exception.
        """
        parts = self.parts(tapped)
        if len(parts) > 1:
            ran = [self.run(part, kinds, f"{suffix}-part{number}", env) for number, part in enumerate(parts, 1)]
            return {kind: merge([results[kind] for results in ran], kind + suffix) for kind in kinds}
        # Each is on its way while the next one's graph is made.
        running = {kind: self._start(tapped, kind, suffix, env) for kind in kinds}
        return {kind: self._result(kind + suffix, job) for kind, job in running.items()}

    def _start(self, tapped: TappedGraph, kind: str, suffix: str, env: Mapping[str, str]) -> Running:
        name = kind + suffix
        known = self._running.pop((name, id(tapped)), None)
        if known is not None:
            return known[1]
        job = Job(
            id=name,
            model=self._write(self.made_for(tapped, kind)),
            accelerator=ACCELERATOR[kind],
            inputs=self.given(tapped.graph, tapped.feeds),
            fp32=kind == GPU_FP32 or (kind == GPU and self._fp32),
            env=env,
        )
        return self._runner.start([job])

    def made_for(self, tapped: TappedGraph, kind: str) -> Graph:
        """Returns the graph that runs in one of the ways: itself, or with its numbers rounded."""
        if kind in (HALF, ROUNDING) and not self._fp32:
            rounding = Rounding.HALF if kind == HALF else Rounding.SIGNIFICAND
            return emulate(as_floats(tapped.graph), rounding, self._tame)
        return tapped.graph

    def start_once(self, name: str, graph: Graph, inputs: Mapping[str, np.ndarray], accelerator: str) -> Running:
        """Starts a run of a graph that nothing else runs, of inputs that nothing else reads."""
        return self._runner.start([Job(name, self._write(graph), accelerator, inputs, once=True)])

    def _result(self, name: str, running: Running) -> JobResult:
        result = result_of(running)[name]
        self.ended(result)
        return result

    def ended(self, result: JobResult) -> None:
        """Notes that a run has ended."""
        self._on_job(result.id)
        self.results.append(result.without_tensors())

    def parts(self, tapped: TappedGraph) -> list[TappedGraph]:
        """Splits a tapped graph so that no run's taps exceed the budget, or do not run together; mostly into one.

        Taps stay in the graph's order; a single one above the budget runs alone.
        """
        batches: list[list[int]] = [[]]
        room = self._tap_memory
        for t in sorted(tapped.names, key=lambda t: (self._apart.get(t, 0), t)):
            size = 4 * tapped.graph.tensors[t].size
            if batches[-1] and (size > room or self._apart.get(t, 0) != self._apart.get(batches[-1][-1], 0)):
                batches.append([])
                room = self._tap_memory
            batches[-1].append(t)
            room -= size
        return [tapped] if len(batches) == 1 else [only(tapped, batch) for batch in batches]

    def fits(self, graph: Graph, tensors: Iterable[int]) -> bool:
        """Whether tensors stay within the memory budget together."""
        return sum(4 * graph.tensors[t].size for t in set(tensors)) <= self._tap_memory

    def keep_apart(self, batches: Sequence[Sequence[int]]) -> None:
        """From now on runs taps of different batches in different runs, since all together they do not run."""
        self._apart = {t: number for number, batch in enumerate(batches, 1) for t in batch}

    def tensors(
        self,
        graph: Graph,
        name: str,
        feeds: Mapping[str, np.ndarray] = MappingProxyType({}),
        wanted: Literal["all"] | tuple[int, ...] = "all",
    ) -> dict[int, np.ndarray]:
        """Runs a graph op by op on the CPU and returns tensors by index; empty when that fails."""
        job = Job(name, self._write(graph), "interpreter", self.given(graph, feeds), tensors=wanted)
        result = self._runner.run([job])[name]
        self.results.append(result.without_tensors())
        return {t: graph.tensors[t].real(value) for t, value in result.tensors.items()}

    def given(self, graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the inputs that a graph still has: parts of one read less."""
        known = {**self._inputs, **feeds}
        return {port.name: known[port.name] for port in graph.inputs if port.name in known}

    def _write(self, graph: Graph) -> Path:
        self._files += 1
        return graph.on_disk(self._folder / f"graph-{self._files:03d}.tflite")

    @property
    def stretch(self) -> int:
        """Bytes of taps that a stretch of a run may have, where runs are made in stretches."""
        return self._tap_memory // STRETCHES

    def passes(self, tapped: TappedGraph) -> bool:
        """Whether the taps of all runs together are too large to lie there at one time."""
        return sum(4 * tapped.graph.tensors[t].size for t in tapped.names) > self.stretch

    def laid_out(self, tapped: TappedGraph) -> TappedGraph:
        """Returns the graph with its copies where they take the least memory, if that matters."""
        return replace(tapped, graph=with_copies_early(tapped.graph)) if self.passes(tapped) else tapped

    def keys(self, tapped: TappedGraph) -> dict[str, str]:
        """Returns the output name of each tap that a tapped graph has, by key."""
        asked = [(tap.key, tapped.names.get(tap.tensor)) for tap in self._taps if tap.layout is not None]
        return {key: name for key, name in asked if name is not None}

    def values(self, result: JobResult, tapped: TappedGraph) -> Values:
        """Brings a result's tensors into PyTorch's shape and order."""
        taps: dict[str, np.ndarray] = {}
        unwritten: dict[str, int] = {}
        for tap in self._taps:
            name = tapped.names.get(tap.tensor)
            if name is None or name not in result.outputs or tap.layout is None:
                continue
            taps[tap.key] = tap.layout.to_torch(tapped.graph.tensors[tap.tensor].real(result.outputs[name]))
            unwritten[tap.key] = result.unwritten.get(name, 0)
        outputs: dict[str, np.ndarray] = {}
        at = {port.name: port.tensor for port in tapped.graph.outputs}
        for label, name in tapped.outputs.items():
            if name in result.outputs:
                value = tapped.graph.tensors[at[name]].real(np.asarray(result.outputs[name]))
                layout = self._layouts.get(label)
                outputs[label] = layout.to_torch(value) if layout else value.reshape(self._shapes[label])
                unwritten[label] = result.unwritten.get(name, 0)
        return Values(taps, outputs, unwritten)


def start_untapped(
    runner: JobQueue, graph: Graph, inputs: Mapping[str, np.ndarray], folder: Path, fp32: bool
) -> Running:
    """Starts the GPU's run of the graph that ships, which needs to know of no taps; for `Evaluator.adopt`."""
    path = graph.on_disk(folder / "untapped.tflite")
    given = {port.name: inputs[port.name] for port in graph.inputs if port.name in inputs}
    return runner.start([Job(f"{GPU}{UNTAPPED}", path, ACCELERATOR[GPU], given, fp32=fp32)])


def float_outputs(graph: Graph, outputs: Mapping[str, str]) -> dict[str, int]:
    """Returns the tensor of each of the model's float outputs.

    Args:
        graph: The graph.
        outputs: Signature output by the model's own output label.
    """
    at = {port.name: port.tensor for port in graph.outputs}
    return {label: at[name] for label, name in outputs.items() if graph.tensors[at[name]].is_real}


def only(tapped: TappedGraph, tensors: Sequence[int]) -> TappedGraph:
    """Drops all taps but some; the model's own outputs stay."""
    names = {t: tapped.names[t] for t in tensors}
    wanted = set(names.values()) | set(tapped.outputs.values())
    editor = Editor(tapped.graph)
    ports = tapped.graph.outputs
    editor.drop_outputs()
    for port in ports:
        if port.name in wanted:
            editor.add_output(port.name, port.tensor)
    editor.prune()
    return TappedGraph(editor.graph(), names, tapped.outputs, tapped.feeds)


def merge(parts: Sequence[JobResult], name: str) -> JobResult:
    """Puts the taps of several runs of one graph together; the first run that failed stands for all."""
    failed = next((part for part in parts if not part.ok), None)
    if failed is not None:
        return replace(failed, id=name)
    outputs: dict[str, np.ndarray] = {}
    unwritten: dict[str, int] = {}
    for part in reversed(parts):
        outputs.update(part.outputs)
        unwritten.update(part.unwritten)
    return replace(parts[0], id=name, outputs=outputs, unwritten=unwritten, seconds=sum(p.seconds for p in parts))


def tap_graph(graph: Graph, tensors: Sequence[int], outputs: Mapping[str, str], *, copies: bool = True) -> TappedGraph:
    """Adds the taps to a graph; the model's own outputs stay as they are."""
    tapped, names = with_taps(graph, sorted(set(tensors)), copies=copies)
    return TappedGraph(tapped, names, outputs)


def heal(
    tapped: TappedGraph, given: Mapping[int, np.ndarray], within: Mapping[int, frozenset[int]] = {}
) -> TappedGraph | None:
    """Cuts a tapped graph behind tensors and feeds the given values to what read them.

    Args:
        tapped: The graph.
        given: Values by tensor index, in the graph's layout.
        within: For a tensor inside a block, the tensors made in that block: ops that make those keep reading what the
            graph computes.

    Returns:
        The healed graph; None when nothing but taps reads any of the tensors.
    """
    graph = tapped.graph
    copies = {
        op.outputs[0]
        for op in graph.ops
        if op.type in ("RESHAPE", "DEQUANTIZE") and graph.tensors[op.outputs[0]].name.endswith(COPY_SUFFIX)
    }
    read = {t: v for t, v in given.items() if any(op.outputs[0] not in copies for op in graph.consumers.get(t, ()))}
    if not read:
        return None
    editor = Editor(graph)
    feeds: dict[str, np.ndarray] = {}
    for t, value in read.items():
        name = f"{FEED_PREFIX}{t:05d}"
        # The tap's own copy keeps reading what the graph computes, so that a healed block is still seen.
        kept = copies | within.get(t, frozenset())
        own = [op for op in editor.subgraph.operators if int(op.outputs[0]) in kept]
        editor.rewire(t, editor.add_input(name, t), skip=own)
        feeds[name] = graph.tensors[t].stored(value)
    editor.prune()
    return TappedGraph(editor.graph(), tapped.names, tapped.outputs, feeds)
