"""The truth where there is no PyTorch: LiteRT's plain CPU kernels on the very graph that ships.

Teacher forcing is the same graph with every tapped tensor's readers given a fed value instead, as in healing. What it
computes at the next tap is then what the CPU makes of the other run's own tensors.

Nothing here knows what the file was made of, so a fault of the conversion cannot show. What fp32 itself costs is the
difference between two implementations of it: the plain kernels, which add up one by one, and XNNPACK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bisect_litert.errors import RunnerError, UnfitReferenceError
from bisect_litert.evaluation import TappedGraph, heal, tap_graph
from bisect_litert.graph import FEED_PREFIX, Graph
from bisect_litert.jobs import Job, JobResult, JobRunner
from bisect_litert.metrics import compare
from bisect_litert.readings import Tap


@dataclass(frozen=True)
class Computed:
    """What one run computed; a `readings.Forward`."""

    taps: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


@dataclass
class FileReference:
    """Runs a file's graph on the CPU, as often as needed.

    Args:
        graph: The graph that ships.
        taps: The blocks' outputs in it.
        outputs: Signature output by label.
        inputs: By signature name.
        runner: Runs jobs.
        folder: Where .tflite files go.
    """

    graph: Graph
    taps: Sequence[Tap]
    outputs: Mapping[str, str]
    inputs: Mapping[str, np.ndarray]
    runner: JobRunner
    folder: Path
    results: list[JobResult] = field(default_factory=list, init=False)
    _base: TappedGraph = field(init=False)
    _cut: dict[frozenset[int], tuple[TappedGraph, Path]] = field(default_factory=dict, init=False)
    _count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._base = tap_graph(self.graph, [t.tensor for t in self.taps], self.outputs)

    def run(self, values: Mapping[int, np.ndarray]) -> Computed:
        """Returns the plain run.

        Args:
            values: Every tensor of it, by index; a second run has to repeat it.

        Raises:
            UnfitReferenceError: It holds NaN, or does not repeat itself.
        """
        at = {port.name: port.tensor for port in self.graph.outputs}
        truth = Computed(
            {tap.key: np.asarray(values[tap.tensor]).reshape(tap.shape) for tap in self.taps if tap.tensor in values},
            {label: np.asarray(values[at[name]]) for label, name in self.outputs.items() if at[name] in values},
        )
        named = {**truth.taps, **truth.outputs}
        bad = [key for key, value in named.items() if value.dtype.kind == "f" and np.isnan(value).any()]
        if bad:
            raise UnfitReferenceError(
                f"LiteRT's own CPU result holds NaN at {bad[0]}.",
                hint="Give inputs the model is made for with --inputs: there is no right answer to compare with.",
            )
        again = self.force({})
        for key, value in {**again.taps, **again.outputs}.items():
            if key in named and not np.array_equal(value, named[key], equal_nan=value.dtype.kind == "f"):
                raise UnfitReferenceError(
                    f"LiteRT on the CPU does not repeat its own result: {key} differs when it runs again.",
                    hint="The file draws random numbers; convert a model that does not.",
                )
        return truth

    def force(self, values: Mapping[str, np.ndarray]) -> Computed:
        """Returns a run in which what reads a block's output is given another value.

        Args:
            values: By tap key; taps without one keep the graph's own.

        Raises:
            RunnerError: The CPU cannot run the graph on these values.
        """
        given = self._given(values)
        graph, path = self._graph_for(frozenset(given))
        feeds = {name: given[t] for t in given if (name := f"{FEED_PREFIX}{t:05d}") in graph.feeds}
        result = self._run(path, feeds, "interpreter")
        computed = self._read(result, graph)
        # What the model returns is, where a block returns it, what was put in its place.
        at = {port.name: port.tensor for port in self.graph.outputs}
        returned = {label: given[at[name]] for label, name in self.outputs.items() if at[name] in given}
        return replace(computed, outputs={**computed.outputs, **returned})

    def fp32_cost(self) -> dict[str, float]:
        """Returns what XNNPACK's kernels differ by from the plain ones at their own inputs, by tap key and output."""
        _, path = self._graph_for(frozenset())
        seen = self._read(self._run(path, {}, "cpu"), self._base)
        forced = self.force(seen.taps)
        pairs = {**forced.taps, **forced.outputs}
        found = {}
        for key, value in {**seen.taps, **seen.outputs}.items():
            if value.dtype.kind == "f" and key in pairs:
                error = compare(reference=pairs[key], target=value).relative_l2
                found[key] = error if np.isfinite(error) else 0.0
        return found

    def _given(self, values: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
        found: dict[int, np.ndarray] = {}
        for tap in self.taps:
            value = values.get(tap.key)
            shape = self.graph.tensors[tap.tensor].shape
            if value is not None and tap.layout is not None and value.size == self.graph.tensors[tap.tensor].size:
                found[tap.tensor] = tap.layout.from_torch(np.asarray(value).reshape(tap.shape), shape)
        return found

    def _graph_for(self, given: frozenset[int]) -> tuple[TappedGraph, Path]:
        """The tapped graph that reads some tensors as inputs, and its file; made once."""
        if given not in self._cut:
            shapes = {t: np.zeros(self.graph.tensors[t].shape, np.float32) for t in given}
            graph = (heal(self._base, shapes) if shapes else None) or self._base
            self._cut[given] = graph, graph.graph.write(self.folder / f"reference-{len(self._cut):03d}.tflite")
        return self._cut[given]

    def _run(self, path: Path, feeds: Mapping[str, np.ndarray], accelerator: str) -> JobResult:
        self._count += 1
        name = f"reference-{self._count:03d}"
        result = self.runner.run([Job(name, path, accelerator, {**self.inputs, **feeds})])[name]
        if not result.ok:
            self.results.append(result)
            raise RunnerError(
                f"LiteRT cannot run the file on the CPU: {result.status}: {result.detail.rstrip('.')}.",
                hint="See logs in the run folder.",
                detail=result.log_text[-2000:],
            )
        return result

    def _read(self, result: JobResult, graph: TappedGraph) -> Computed:
        return Computed(
            {
                tap.key: np.asarray(result.outputs[name]).reshape(tap.shape)
                for tap in self.taps
                if (name := graph.names.get(tap.tensor, "")) in result.outputs
            },
            {label: np.asarray(result.outputs[name]) for label, name in self.outputs.items() if name in result.outputs},
        )
