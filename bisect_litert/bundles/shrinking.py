"""The smallest cut that still fails: ops are taken away as long as the same cause shows on the GPU here.

Every subset of the ops is a graph that can be run, because what an op lacks is fed to it: the CPU's own value of that
tensor. A step is kept only if the GPU is wrong in the way the cause says (`repro_script.verdict`), measured against the
CPU on the same inputs. For causes that fp32 cures the inputs are rounded to fp16 first, so that what is measured is the
ops' own doing and not what rounding their inputs costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bisect_litert.bundles.repro_script import SAME, error, off, verdict
from bisect_litert.bundles.reproduction import (
    BUFFERS,
    CONTEXT,
    DEATHS,
    MODEL,
    OpName,
    Reproduction,
    fed,
    tolerance,
    written,
)
from bisect_litert.devices.jobs import CRASHED, FAILED, TIMED_OUT, Job, JobResult, JobRunner
from bisect_litert.graphs.cutting import boundary, compact, cut
from bisect_litert.graphs.editor import with_taps
from bisect_litert.graphs.emulation import Rounding, emulate, round_array
from bisect_litert.graphs.graph import Graph, Op
from bisect_litert.measuring.metrics import FP16_MAX
from bisect_litert.record import Settings
from bisect_litert.vocabulary import Cause

ROUNDED = (Cause.OVERFLOW, Cause.PRECISION_LOSS)
"""Causes whose inputs are rounded to fp16 first."""
MAX_TRIES = 60
"""GPU runs of one bundle; shrinking stops there and keeps what it has."""
MAX_SECONDS = 300.0
"""Likewise, for faults that take their time limit to show."""
MAX_OPS_ONE_BY_ONE = 40
NO_GPU = "No adapters found"
"""What LiteRT says where there is no GPU; no other cut will find one."""
_ALL = {"values": "all"}
SMALLEST_HALF = 2.0**-25
"""Half of fp16's smallest number: what lies below becomes zero."""


@dataclass(frozen=True)
class Trial:
    """A cut that was run."""

    graph: Graph
    ops: tuple[OpName, ...]
    inputs: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]
    """What the CPU gives, by output."""
    gpu: Mapping[str, Mapping[str, float]]
    """`repro_script.error` by output."""
    fp32: Mapping[str, Mapping[str, float]]
    tolerance: float
    accelerator: str
    shows: bool
    """Whether the cause shows."""
    why: str = ""
    """Why it could not be run; empty when it could."""
    worst: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Where each wrong output is furthest off in default precision."""


@dataclass(frozen=True)
class Shrunk:
    """What shrinking came to."""

    trial: Trial | None
    """The smallest cut that shows the fault; None when none did."""
    alone: bool
    """Whether it holds ops of the culprit's block only."""
    tries: int
    predicted: str = ""
    """Why emulated fp16 stood in for the GPU; empty when it did not."""
    untested: str = ""
    """Why nothing could be run on the GPU; empty when something was."""


def fits(value: np.ndarray, kind: str) -> bool:
    """Whether fp16 can hold a tensor, so that a fault at it is the doing of the ops that read it.

    Args:
        value: The tensor.
        kind: The cause's sub-kind; what an "underflow" makes of it must not have happened before.
    """
    if value.dtype.kind != "f":
        return True
    sizes = np.abs(value[np.isfinite(value)])
    lost = kind == "underflow" and bool(((sizes > 0) & (sizes <= SMALLEST_HALF)).any())
    return not lost and float(sizes.max(initial=0.0)) <= FP16_MAX


def prepared(value: np.ndarray, kind: str) -> np.ndarray:
    """Returns a tensor rounded to fp16 where fp16 can hold it, else as it is."""
    if value.dtype != np.float32 or not fits(value, kind):
        return value
    return round_array(value, Rounding.HALF)


class Shrinker:
    """Shrinks one kept reproduction.

    Args:
        kept: What the run kept.
        folder: Where it lies.
        runner: Where jobs run.
        work: Folder for .tflite files.
        settings: The run's thresholds.
        say: Told of each step.
    """

    def __init__(
        self,
        kept: Reproduction,
        folder: Path,
        runner: JobRunner,
        work: Path,
        settings: Settings,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.kept, self.runner, self.work, self.settings, self.say = kept, runner, work, settings, say
        self.tries = 0
        self.exact = kept.cause not in ROUNDED
        wide = bool(kept.context)
        self.names = kept.context if wide else kept.ops
        self.graph = Graph.read(folder / (CONTEXT if wide else MODEL))
        if len(self.names) != len(self.graph.ops):
            raise ValueError("repro.json and its model do not fit together")
        files = kept.context_inputs if wide else kept.inputs
        inputs = {t.name: np.load(folder / t.file, allow_pickle=False) for t in files}
        self.values = self._values(inputs)
        block = {op.index for op in kept.ops}
        self.block = [i for i, op in enumerate(self.names) if op.index in block]
        self.guilty = [i for i, op in enumerate(self.names) if op.index == kept.guilty]
        self.unfit = {t for t in boundary(self.graph, self._ops(self.block)) if not self._fits(t)}
        self.accelerator = "gpu"
        self.by_emulation = False
        self._deadline = time.monotonic() + MAX_SECONDS

    @property
    def spent(self) -> bool:
        """Whether enough was tried."""
        return self.tries >= MAX_TRIES or time.monotonic() > self._deadline

    def emulated(self) -> Shrinker:
        """Lets emulated fp16 stand in for the GPU from here on, for a fault that no GPU was there to show or that this
        one does not."""
        self.by_emulation, self.accelerator, self.tries = True, "gpu", 0
        return self

    def shrink(self) -> Shrunk:
        """Finds the smallest cut that shows the fault."""
        for positions in self._guesses():
            trial = self._try(positions)
            if trial is not None and trial.shows:
                return self._end(positions, True)
            if trial is not None and NO_GPU in trial.why:
                return Shrunk(None, False, self.tries, untested=trial.why)
        for accelerator in ("gpu", "gpu+cpu"):
            self.accelerator = accelerator
            whole = self._try(self.block)
            if whole is not None and whole.shows:
                return self._end(self._smaller(self.block), True)
            wide = list(range(len(self.names)))
            around = self._try(wide) if len(wide) > len(self.block) else None
            if around is not None and around.shows:
                left = self._smaller(wide)
                return self._end(left, set(left) <= set(self.block))
            ran = next((t for t in (whole, around) if t is not None and not t.why), None)
            if ran is not None:
                return Shrunk(None, False, self.tries)
        why = next((t.why for t in (whole, around) if t is not None), "its ops could not be cut out")
        return Shrunk(None, False, self.tries, untested=why)

    def _guesses(self) -> list[list[int]]:
        """The guilty op alone, then with what feeds it and with what follows: most kernels fail so, in a run or two."""
        if not self.guilty:
            return []
        at = self.guilty[0]
        op = self.graph.ops[at]
        feeds = [i for i in self.block if set(self.graph.ops[i].outputs) & set(op.inputs)]
        follows = [i for i in self.block if set(self.graph.ops[i].inputs) & set(op.outputs)]
        found = [[at], sorted({at, *feeds}), sorted({at, *follows}), sorted({at, *feeds, *follows})]
        return [g for i, g in enumerate(found) if g not in found[:i]]

    def _end(self, positions: Sequence[int], alone: bool) -> Shrunk:
        """Drops outputs that are right, and says what is left."""
        trial = self._try(positions)
        if trial is None or not trial.shows:  # it did a moment ago: the GPU does not repeat itself
            return Shrunk(None, alone, self.tries)
        wrong = [n for n, measured in trial.gpu.items() if off(measured, trial.tolerance)]
        if wrong and len(wrong) < len(trial.expected):
            fewer = self._try(positions, wrong)
            trial = fewer if fewer is not None and fewer.shows else trial
        return Shrunk(trial, alone, self.tries)

    def _smaller(self, positions: Sequence[int]) -> list[int]:
        """Takes chunks of ops away, from the back and from the front first, then wherever it goes."""
        left = list(positions)
        size = len(left) // 2
        while size and not self.spent:
            removed = False
            starts = [*range(len(left) - size, -1, -size)]
            if size > 1 or len(left) > MAX_OPS_ONE_BY_ONE:
                starts = list(dict.fromkeys([len(left) - size, 0, *starts]))
            for start in starts:
                without = [*left[:start], *left[start + size :]]
                if not without or (self.guilty and self.guilty[0] not in without):
                    continue
                if self.spent:
                    break
                trial = self._try(without)
                if trial is not None and trial.shows:
                    left, removed = without, True
                    break
            if not removed:
                size //= 2
            else:
                size = min(size, max(1, len(left) // 2))
        return left

    # -- running -------------------------------------------------------------------------------------------------------

    def _ops(self, positions: Sequence[int]) -> list[Op]:
        return [self.graph.ops[i] for i in positions]

    def _values(self, inputs: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
        path = self.graph.write(self.work / "base.tflite")
        result = self.runner.run([Job("values", path, "interpreter", inputs, tensors="all")])["values"]
        given = {p.tensor: inputs[p.name] for p in self.graph.inputs if p.name in inputs}
        return {**result.tensors, **given}

    def _fits(self, tensor: int) -> bool:
        """Whether fp16 can hold a tensor, so that a fault at it is the ops' own."""
        value = self.values.get(tensor)
        return value is None or self.exact or fits(value, self.kept.kind)

    def _fed(self, tensor: int) -> np.ndarray:
        value = np.ascontiguousarray(self.values[tensor])
        return value if self.exact else prepared(value, self.kept.kind)

    def _try(self, positions: Sequence[int], only: Sequence[str] = ()) -> Trial | None:
        """Runs some of the ops; None when they cannot be cut out so that the answer would mean something."""
        ops = self._ops(positions)
        ends = written(self.graph, ops, self.kept.cause)
        ends = tuple(t for t in ends if self.graph.tensors[t].is_float and t in self.graph.computed)
        given = fed(self.graph, ops, ends)
        if not given or not ends or any(t not in self.values for t in given):
            return None
        if any(not self._fits(t) for t in set(given) - self.unfit):
            return None
        made = cut(self.graph, ops, given, ends)
        if only:
            made = cut(self.graph, ops, given, [made.outputs[name] for name in only])
        inputs = {name: self._fed(t) for name, t in made.inputs.items()}
        limit = tolerance(self.graph, ops, self.settings)
        trial = self.run(compact(made.graph), inputs, limit, [self.names[i] for i in positions])
        count = f"{len(trial.ops)} op{'s' * (len(trial.ops) != 1)}"
        self.say(f"{count}: {'still fails' if trial.shows else trial.why or 'right'}")
        return trial

    def run(self, graph: Graph, inputs: Mapping[str, np.ndarray], limit: float, names: Sequence[OpName]) -> Trial:
        """Runs a graph on the CPU and on the GPU in both precisions, and compares."""
        self.tries += 1
        path = graph.write(self.work / f"try-{self.tries:03d}.tflite")
        results = self._results(graph, path, inputs)
        blank = Trial(graph, tuple(names), inputs, {}, {}, {}, limit, self.accelerator, False)
        if self.kept.cause in DEATHS:
            return self._survival(blank, results)
        failed = next((r for r in results.values() if not r.ok), None)
        if failed is not None:
            return replace(blank, why=failed.detail or failed.status)
        right = results["cpu"].outputs
        if self.kept.cause in BUFFERS:  # read one by one: the CPU may lose the buffers of its outputs as well
            at = {port.name: port.tensor for port in graph.inputs}
            held = {**results["values"].tensors, **{at[name]: value for name, value in inputs.items()}}
            right = {port.name: held[port.tensor] for port in graph.outputs if port.tensor in held}
        expected = {name: np.array(value) for name, value in right.items()}
        gpu, fp32 = (
            {name: error(value, results[key].outputs[name]) for name, value in expected.items()}
            for key in ("gpu", "fp32")
        )
        shows = verdict(self.kept.cause, limit, gpu, fp32) == SAME
        worst = {
            name: _furthest(value, np.asarray(results["gpu"].outputs[name]))
            for name, value in expected.items()
            if off(gpu[name], limit)
        }
        return replace(blank, expected=expected, gpu=gpu, fp32=fp32, shows=shows, worst=worst)

    def cured(self, trial: Trial) -> Graph | None:
        """Returns the cut with more tensors as outputs, if that makes its own outputs right; None otherwise."""
        graph = trial.graph
        inner = [t for op in graph.ops for t in op.outputs if t in graph.consumers and graph.tensors[t].is_float]
        for copies in (True, False) if inner else ():
            tapped, _ = with_taps(graph, inner, copies=copies)
            again = self.run(tapped, trial.inputs, trial.tolerance, trial.ops)
            if not again.why and not any(off(again.gpu[name], trial.tolerance) for name in trial.expected):
                return tapped
        return None

    def _results(self, graph: Graph, path: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, JobResult]:
        runs = {"cpu": (path, "cpu", False), "gpu": (path, self.accelerator, False)}
        if self.by_emulation:
            rounded = emulate(graph, Rounding.HALF).write(self.work / f"try-{self.tries:03d}-fp16.tflite")
            runs["gpu"], runs["fp32"] = (rounded, "cpu", False), (path, "cpu", False)
        elif self.kept.cause not in DEATHS:
            runs["fp32"] = (path, self.accelerator, True)
        if self.kept.cause in BUFFERS:
            runs["values"] = (path, "interpreter", False)
        jobs = [
            Job(f"{self.tries:03d}-{key}", model, where, inputs, fp32=fp32, fallback=False, tensors=_ALL.get(key, ""))
            for key, (model, where, fp32) in runs.items()
        ]
        return dict(zip(runs, self.runner.run(jobs).values(), strict=True))

    def _survival(self, blank: Trial, results: Mapping[str, JobResult]) -> Trial:
        """What runs came to whose fault is that they end."""
        cpu, gpu = results["cpu"], results["gpu"]
        if not cpu.ok or gpu.status == FAILED:
            failed = gpu if cpu.ok else cpu
            return replace(blank, why=failed.detail or failed.status)
        expected = {name: np.array(value) for name, value in cpu.outputs.items()}
        ended = CRASHED if self.kept.cause == Cause.CRASH else TIMED_OUT
        return replace(blank, expected=expected, shows=gpu.status == ended)


def _furthest(right: np.ndarray, seen: np.ndarray) -> tuple[int, ...]:
    """Where a tensor is furthest off, what is not finite first."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(seen.astype(np.float64) - right.astype(np.float64))
    apart = np.where(np.isfinite(apart), apart, np.inf)
    return tuple(int(n) for n in np.unravel_index(int(np.argmax(apart)), apart.shape)) if apart.ndim else ()
