"""The truth where there is no PyTorch: LiteRT's plain CPU kernels on the very graph that ships.

Teacher forcing is the same graph with every tapped tensor's readers given a fed value instead, as in healing. What it
computes at the next tap is then what the CPU makes of the other run's own tensors.

Nothing here knows what the file was made of, so a fault of the conversion cannot show. What fp32 itself costs is the
difference between two implementations of it: the plain kernels, which add up one by one, and XNNPACK. Where tensors
are integers that stand for real numbers, a third one is the same graph computed with floats (dequantised.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bisect_litert.devices.jobs import Job, JobResult, JobRunner
from bisect_litert.errors import RunnerError, UnfitReferenceError
from bisect_litert.graphs.dequantised import as_floats, has_integers
from bisect_litert.graphs.editor import FEED_PREFIX
from bisect_litert.graphs.emulation import Rounding, emulate
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.evaluation import TappedGraph, heal, tap_graph
from bisect_litert.measuring.metrics import compare
from bisect_litert.measuring.pieces import holds_nan
from bisect_litert.measuring.readings import Tap

REPEATS = 1e-6
"""Relative L2 difference up to which two runs are one."""


@dataclass(frozen=True)
class Computed:
    """What one run computed; a `readings.Forward`."""

    taps: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    terms: Mapping[str, float] = field(default_factory=dict)
    """Not known here; see `measuring.noise`."""


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
    _truth: Computed = field(init=False)
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
        self._truth = truth
        named = {**truth.taps, **truth.outputs}
        bad = next((key for key, value in named.items() if holds_nan(value)), None)
        if bad is not None:
            raise UnfitReferenceError(
                f"LiteRT's own CPU result holds NaN at {bad}.",
                hint="Give inputs the model is made for with --inputs: there is no right answer to compare with.",
            )
        again = self.force({})
        for key, value in {**again.taps, **again.outputs}.items():
            if key in named and not _same(named[key], value):
                raise UnfitReferenceError(
                    f"LiteRT on the CPU does not repeat its own result: {key} differs when it runs again.",
                    hint="The file draws random numbers; convert a model that does not.",
                )
        return truth

    def move_to(self, runner: JobRunner, folder: Path) -> None:
        """Runs in another place from now on; files are written anew there."""
        self.runner, self.folder = runner, folder
        self._cut.clear()

    def force(self, values: Mapping[str, np.ndarray]) -> Computed:
        """Returns a run in which what reads a block's output is given another value.

        Args:
            values: By tap key; taps without one keep the graph's own.

        Raises:
            RunnerError: The CPU cannot run the graph on these values.
        """
        given = self._given(values)
        graph, path = self._graph_for(frozenset(given))
        tensors = self.graph.tensors
        feeds = {name: tensors[t].stored(given[t]) for t in given if (name := f"{FEED_PREFIX}{t:05d}") in graph.feeds}
        result = self._run(path, feeds, "interpreter")
        computed = self._read(result, graph)
        # What the model returns is, where a block returns it, what was put in its place.
        at = {port.name: port.tensor for port in self.graph.outputs}
        returned = {label: given[at[name]] for label, name in self.outputs.items() if at[name] in given}
        return replace(computed, outputs={**computed.outputs, **returned})

    def fp32_cost(self) -> dict[str, float]:
        """Returns what other honest implementations differ by at their own inputs, by tap key and output label; one
        that cannot run the file says nothing."""
        _, path = self._graph_for(frozenset())
        paths = [path]
        if has_integers(self.graph):
            paths.append(as_floats(self._base.graph).write(self.folder / "reference-floats.tflite"))
        found: dict[str, float] = {}
        for path in paths:
            seen = self._other(path)
            forced = self.force(seen.taps)
            for key, error in _errors({**forced.taps, **forced.outputs}, {**seen.taps, **seen.outputs}).items():
                found[key] = max(found.get(key, 0.0), error)
        return found

    def steps(self) -> dict[str, float]:
        """Returns what rounding a quantised tensor to its steps costs, relative to its value, by tap key and label."""
        at = {port.name: port.tensor for port in self.graph.outputs}
        named = [(tap.key, tap.tensor, self._truth.taps.get(tap.key)) for tap in self.taps]
        named += [(label, at[name], self._truth.outputs.get(label)) for label, name in self.outputs.items()]
        found = {}
        for key, t, value in named:
            stands_for = self.graph.tensors[t].quantisation
            if stands_for is not None and value is not None and value.size:
                level = float(np.sqrt(np.mean(np.square(value, dtype=np.float64))))
                found[key] = stands_for.noise / level if level else 0.0
        return found

    def rounded_outputs(self) -> dict[str, float]:
        """Returns how far rounding every tensor to 11 bits puts each output off, where tensors are quantised: a last
        bit that tips a value over to the next of 256 steps costs a step."""
        if not has_integers(self.graph):
            return {}
        rounded = emulate(as_floats(self._base.graph), Rounding.SIGNIFICAND)
        seen = self._other(rounded.write(self.folder / "reference-rounded.tflite"))
        return _errors(self._truth.outputs, seen.outputs)

    def _other(self, path: Path) -> Computed:
        """What XNNPACK computes of a graph with this one's outputs; nothing where it cannot."""
        try:
            return self._read(self._run(path, {}, "cpu"), self._base)
        except RunnerError:
            return Computed({}, {})

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
        tensors, at = self.graph.tensors, {port.name: port.tensor for port in self.graph.outputs}
        labels = [(label, name) for label, name in self.outputs.items() if name in result.outputs]
        return Computed(
            {
                tap.key: tensors[tap.tensor].real(np.asarray(result.outputs[name])).reshape(tap.shape)
                for tap in self.taps
                if (name := graph.names.get(tap.tensor, "")) in result.outputs
            },
            {label: tensors[at[name]].real(np.asarray(result.outputs[name])) for label, name in labels},
        )


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two runs gave one value, up to how a last bit is rounded where integers are read as real numbers."""
    if one.dtype.kind != "f" or np.array_equal(one, other, equal_nan=True):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    found = compare(reference=one, target=other)
    return found.finite_agreement and found.relative_l2 < REPEATS


def _errors(reference: Mapping[str, np.ndarray], target: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Relative L2 errors of float tensors by name; 0 where there is nothing finite to compare."""
    found = {}
    for key, value in target.items():
        if value.dtype.kind == "f" and key in reference:
            error = compare(reference=reference[key], target=value).relative_l2
            found[key] = error if np.isfinite(error) else 0.0
    return found
