"""The smallest cut that still fails: ops are taken away as long as the same cause shows on the GPU here.

Every subset of the ops is a graph that can be run, because what an op lacks is fed to it: the CPU's own value of that
tensor. A step is kept only if the GPU is wrong in the way the cause says (`repro_script.verdict`), measured against the
CPU on the same inputs. For causes that fp32 cures the inputs are rounded to fp16 first, so that what is measured is the
ops' own doing and not what rounding their inputs costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bisect_litert.cutting import boundary, compact, cut, sinks
from bisect_litert.emulation import Rounding, round_array
from bisect_litert.graph import Graph, Op
from bisect_litert.jobs import Job, JobRunner
from bisect_litert.metrics import FP16_MAX
from bisect_litert.record import Cause, Settings
from bisect_litert.repro_script import SAME, error, off, verdict
from bisect_litert.reproduction import CONTEXT, MODEL, OpName, Reproduction, tolerance

MAX_TRIES = 60
"""GPU runs of one bundle; shrinking stops there and keeps what it has."""
MAX_OPS_ONE_BY_ONE = 40
NO_GPU = "No adapters found"
"""What LiteRT says where there is no GPU; no other cut will find one."""
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


@dataclass(frozen=True)
class Shrunk:
    """What shrinking came to."""

    trial: Trial | None
    """The smallest cut that shows the fault; None when none did."""
    alone: bool
    """Whether it holds ops of the culprit's block only."""
    tries: int
    untested: str = ""
    """Why nothing could be run on the GPU; empty when something was."""


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

    def shrink(self) -> Shrunk:
        """Finds the smallest cut that shows the fault."""
        for positions in self._guesses():
            trial = self._try(positions)
            if trial is not None and trial.shows:
                return self._end(positions, True)
            if trial is not None and NO_GPU in trial.why:
                return Shrunk(None, False, self.tries, trial.why)
        for accelerator in ("gpu", "gpu+cpu"):
            self.accelerator = accelerator
            whole = self._try(self.block)
            if whole is not None and whole.shows:
                return self._end(self._smaller(self.block), True)
            wide = list(range(len(self.names)))
            around = self._try(wide) if len(wide) > len(self.block) else None
            if around is not None and around.shows:
                return self._end(self._smaller(wide), False)
            ran = next((t for t in (whole, around) if t is not None and not t.why), None)
            if ran is not None:
                return Shrunk(None, False, self.tries)
        why = next((t.why for t in (whole, around) if t is not None), "its ops could not be cut out")
        return Shrunk(None, False, self.tries, why)

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
        wrong = [n for n in trial.expected if off(trial.gpu[n], trial.tolerance)]
        if len(wrong) < len(trial.expected):
            fewer = self._try(positions, wrong)
            trial = fewer if fewer is not None and fewer.shows else trial
        return Shrunk(trial, alone, self.tries)

    def _smaller(self, positions: Sequence[int]) -> list[int]:
        """Takes chunks of ops away, from the back and from the front first, then wherever it goes."""
        left = list(positions)
        size = len(left) // 2
        while size and self.tries < MAX_TRIES:
            removed = False
            starts = [*range(len(left) - size, -1, -size)]
            if size > 1 or len(left) > MAX_OPS_ONE_BY_ONE:
                starts = list(dict.fromkeys([len(left) - size, 0, *starts]))
            for start in starts:
                without = [*left[:start], *left[start + size :]]
                if not without or (self.guilty and self.guilty[0] not in without):
                    continue
                if self.tries >= MAX_TRIES:
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
        if value is None or value.dtype.kind != "f" or self.kept.cause == Cause.WRONG_KERNEL:
            return True
        sizes = np.abs(value[np.isfinite(value)])
        lost = self.kept.kind == "underflow" and bool(((sizes > 0) & (sizes <= SMALLEST_HALF)).any())
        return not lost and float(sizes.max(initial=0.0)) <= FP16_MAX

    def _fed(self, tensor: int) -> np.ndarray:
        value = np.ascontiguousarray(self.values[tensor])
        if value.dtype != np.float32 or self.kept.cause == Cause.WRONG_KERNEL or not self._fits(tensor):
            return value
        return round_array(value, Rounding.HALF)

    def _try(self, positions: Sequence[int], only: Sequence[str] = ()) -> Trial | None:
        """Runs some of the ops; None when they cannot be cut out so that the answer would mean something."""
        ops = self._ops(positions)
        fed, written = boundary(self.graph, ops), sinks(ops)
        written = tuple(t for t in written if self.graph.tensors[t].is_float and t in self.graph.computed)
        if not fed or not written or any(t not in self.values for t in fed):
            return None
        if any(not self._fits(t) for t in set(fed) - self.unfit):
            return None
        made = cut(self.graph, ops, fed, written)
        if only:
            made = cut(self.graph, ops, fed, [made.outputs[name] for name in only])
        inputs = {name: self._fed(t) for name, t in made.inputs.items()}
        limit = tolerance(self.graph, ops, self.settings)
        trial = self.run(compact(made.graph), inputs, limit, [self.names[i] for i in positions])
        self.say(f"{len(trial.ops)} ops: {'still fails' if trial.shows else trial.why or 'right'}")
        return trial

    def run(self, graph: Graph, inputs: Mapping[str, np.ndarray], limit: float, names: Sequence[OpName]) -> Trial:
        """Runs a graph on the CPU and on the GPU in both precisions, and compares."""
        self.tries += 1
        path = graph.write(self.work / f"try-{self.tries:03d}.tflite")
        runs = {"cpu": ("cpu", False), "gpu": (self.accelerator, False), "fp32": (self.accelerator, True)}
        jobs = [
            Job(f"{self.tries:03d}-{key}", path, where, inputs, fp32=fp32, fallback=False)
            for key, (where, fp32) in runs.items()
        ]
        results = dict(zip(runs, self.runner.run(jobs).values(), strict=True))
        failed = next((r for r in results.values() if not r.ok), None)
        blank = Trial(graph, tuple(names), inputs, {}, {}, {}, limit, self.accelerator, False)
        if failed is not None:
            return replace(blank, why=failed.detail or failed.status)
        expected = {name: np.array(value) for name, value in results["cpu"].outputs.items()}
        gpu, fp32 = (
            {name: error(value, results[key].outputs[name]) for name, value in expected.items()}
            for key in ("gpu", "fp32")
        )
        shows = verdict(self.kept.cause, limit, gpu, fp32) == SAME
        return replace(blank, expected=expected, gpu=gpu, fp32=fp32, shows=shows)
