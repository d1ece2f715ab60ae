"""The `repro/` folder of a bundle: the smallest cut that still fails, what it reads, what is right, and its scripts.

It is shrunk by running it here, and then run once more as the reader will run it: as a script of its own, in a fresh
process.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bisect_litert.bundles import repro_script
from bisect_litert.bundles.far_reenacting import run_elsewhere
from bisect_litert.bundles.halving import halved, size_of
from bisect_litert.bundles.privacy import Scrubber
from bisect_litert.bundles.randomising import weights_of, without_inputs, without_weights
from bisect_litert.bundles.reenacting import SCRIPT, TIME_LIMIT, run_script
from bisect_litert.bundles.reproduction import DEATHS, MODEL, Reproduction, TensorFile
from bisect_litert.bundles.shrinking import NO_GPU, Shrinker, Shrunk, Trial
from bisect_litert.bundles.twinning import Twinner
from bisect_litert.devices import machines
from bisect_litert.devices.jobs import JobRunner
from bisect_litert.errors import BisectError, RunFolderError
from bisect_litert.graphs.editor import Editor
from bisect_litert.graphs.graph import Graph
from bisect_litert.record import Culprit, RunRecord
from bisect_litert.reports import formats, issue
from bisect_litert.request import BisectRequest
from bisect_litert.vocabulary import Cause

TAPPED = "tapped.tflite"
CRASH_LIMIT, HANG_LIMIT = 120.0, 60.0
"""Seconds after which a run counts as hung, where the fault is a crash, and where it is that."""


@dataclass(frozen=True)
class Desk:
    """Where one culprit's reproduction is put together."""

    source: Path
    """What the run kept of it."""
    out: Path
    """The bundle's folder of the reproduction; there is nothing in it yet."""
    scratch: Path
    record: RunRecord
    weights: bool
    """Whether the model's weights may be in the bundle."""
    inputs: bool
    """Likewise."""
    say: Callable[[str], None]
    scrub: Scrubber
    place: BisectRequest
    """Where GPU jobs run: here, under another runtime (`python`), or elsewhere (`runner`)."""

    def reproduction(self, culprit: Culprit) -> issue.Repro:
        """Writes the smallest .tflite that still fails.

        Raises:
            RunFolderError: What the run kept cannot be read.
            BisectError: Weights or inputs were to be left out, and the fault does not show without them.
        """
        kept = self._kept()
        if kept is None:
            known = any(block.name == culprit.block for block in self.record.blocks)
            why = "the run kept no reproduction of it" if known else "no single block is at fault"
            return issue.Repro(issue.NOT_TRIED, why)
        if kept.reference == "torch":
            return self._as_kept(kept, "nothing to shrink without PyTorch")
        elsewhere = bool(self.record.environment.get("device")) and not self.place.runner and not self.place.python
        seen = f"it was seen on {formats.device(self.record)}, and not on this machine's GPU"
        if elsewhere:
            self.say(f"The run's GPU was {formats.device(self.record)}; it is shrunk on this machine's.")
        place = replace(self.place, time_limit=kept.time_limit or TIME_LIMIT)
        with machines.open_runner(self.scratch / "runner", place) as runner:
            shrinker = Shrinker(kept, self.source, runner, self.scratch, self.record.settings, self.say)
            shrunk = shrinker.shrink()
            if shrunk.trial is None and kept.predicted:
                why = "there is no GPU here" if NO_GPU in shrunk.untested else shrunk.untested or "this GPU is right"
                shrunk = replace(shrinker.emulated().shrink(), predicted=why)
            if shrunk.trial is None:
                why = shrunk.untested or "it is right outside the model"
                if elsewhere and not shrunk.untested:  # which says nothing of that GPU
                    return self._as_kept(kept, seen)
                repro = self._as_kept(kept, why, runner)
                return repro if shrunk.untested else replace(repro, state=issue.NOT_ALONE)
            small = halved(shrunk.trial, shrinker)
            sizes = size_of(shrunk.trial), size_of(small)
            trial, weights, inputs = self._without(small, shrinker)
            tapped = shrinker.cured(trial) if kept.cause == Cause.TAP_EFFECT else None
            return replace(self._written(kept, shrunk, trial, tapped, weights, inputs, runner), sizes=sizes)

    def twin(self) -> issue.TwinReport:
        """Writes the PyTorch twin; never fails, since the bundle is of use without it."""
        kept = self._kept()
        if kept is None:
            return issue.TwinReport(issue.NO_TWIN, why="the run kept no reproduction of it")
        if self.place.runner or self.place.python:
            return issue.TwinReport(
                issue.NO_TWIN, why="it is tried with this machine's GPU and runtime, not with those of the run"
            )
        try:
            twinner = Twinner(self.source, kept, self.scratch, self.scrub, self.say)
            return twinner.make(self.out, weights=self.weights, inputs=self.inputs)
        except Exception as error:
            return issue.TwinReport(issue.NO_TWIN, why=self.scrub.text(f"{type(error).__name__}: {error}"))

    def _kept(self) -> Reproduction | None:
        try:
            kept = Reproduction.load(self.source)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self.source} cannot be read: {error}.", hint="Run bisect-litert again.") from None
        limits = {Cause.CRASH: CRASH_LIMIT, Cause.HANG: HANG_LIMIT}
        return replace(kept, time_limit=limits.get(Cause(kept.cause), 0.0))

    def _without(self, trial: Trial, shrinker: Shrinker) -> tuple[Trial, str, str]:
        weights = inputs = ""
        for wanted, what, option, make in (
            (self.weights, "weights", "--no-weights", without_weights),
            (self.inputs, "inputs", "--no-inputs", without_inputs),
        ):
            if wanted:
                continue
            found = make(trial, shrinker)
            if found is None:
                raise BisectError(
                    f"The fault does not show with random {what}, so a bundle without them would prove nothing.",
                    hint=f"Leave {option} out; the {what} it would hold are listed before they are written.",
                )
            trial, how = found
            weights, inputs = (how, inputs) if what == "weights" else (weights, how)
        return trial, weights, inputs

    def _written(
        self,
        kept: Reproduction,
        shrunk: Shrunk,
        trial: Trial,
        tapped: Graph | None,
        weights: str,
        inputs: str,
        runner: JobRunner,
    ) -> issue.Repro:
        graph = _renamed(trial.graph, self.scrub)
        _list_contents(graph, trial.inputs, weights, inputs, self.say)
        self.out.mkdir()
        graph.write(self.out / MODEL)
        if tapped is not None:
            _renamed(tapped, self.scrub).write(self.out / TAPPED)
        files = [_write_tensor(self.out, name, value, name, raw=True) for name, value in trial.inputs.items()]
        right = [_write_tensor(self.out, name, value, f"expected_{name}") for name, value in trial.expected.items()]
        about = replace(
            kept,
            block=self.scrub.text(kept.block),
            ops=trial.ops,
            inputs=tuple(files),
            outputs=tuple(right),
            tolerance=trial.tolerance,
            context=(),
            context_inputs=(),
            accelerator=trial.accelerator,
            tapped=TAPPED if tapped is not None else "",
        )
        state = issue.PREDICTED if shrunk.predicted else issue.ALONE if shrunk.alone else issue.IN_CONTEXT
        return self._finished(about, state, shrunk.predicted, graph, weights, inputs, runner)

    def _as_kept(self, kept: Reproduction, why: str, runner: JobRunner | None = None) -> issue.Repro:
        """The block as the run cut it, for what cannot be shrunk here."""
        if not (self.weights and self.inputs):
            raise BisectError(
                f"Weights and inputs can be left out only of what was seen to fail here, and it was not tried: {why}.",
                hint="Bundle it on the machine with the GPU, or leave --no-weights and --no-inputs out.",
            )
        graph = _renamed(Graph.read(self.source / MODEL), self.scrub)
        inputs = {t.name: np.load(self.source / t.file, allow_pickle=False, mmap_mode="r") for t in kept.inputs}
        _list_contents(graph, inputs, "", "", self.say)
        self.out.mkdir()
        graph.write(self.out / MODEL)
        files = [_write_tensor(self.out, name, value, name, raw=True) for name, value in inputs.items()]
        for t in kept.outputs:
            shutil.copyfile(self.source / t.file, self.out / t.file)
        about = replace(kept, block=self.scrub.text(kept.block), inputs=tuple(files), context=(), context_inputs=())
        return self._finished(about, issue.NOT_TRIED, why, graph, "", "", runner)

    def _finished(
        self,
        about: Reproduction,
        state: str,
        why: str,
        graph: Graph,
        weights: str,
        inputs: str,
        runner: JobRunner | None = None,
    ) -> issue.Repro:
        """Adds the script and what it prints when it is run as the reader will run it."""
        shutil.copyfile(Path(repro_script.__file__), self.out / SCRIPT)
        about.save(self.out)
        if self.place.runner and runner is not None:
            text, answer = run_elsewhere(self.out, about, runner)
        else:
            text, answer = run_script(self.out, self.scratch, self.place.python or sys.executable)
        found = str(answer.get("result", repro_script.UNTESTED))
        seen = {"state": state, "result": found, "ai-edge-litert": str(answer.get("version", ""))}
        seen["adapter"] = self.scrub.text(str(answer.get("adapter", "")))
        replace(about, seen=seen).save(self.out)
        text = self.scrub.text(text)
        (self.out / "output.txt").write_text(text, encoding="utf-8")
        if state == issue.PREDICTED:
            state = issue.ALONE if found == repro_script.SAME else state
        elif state != issue.NOT_TRIED and found != repro_script.SAME:
            state, why = issue.NOT_TRIED, "it failed while it was shrunk, and not in a process of its own"
        elif about.reference == "torch" and found == repro_script.SAME:
            state = issue.ALONE
        return issue.Repro(
            state=state,
            why=self.scrub.text(why),
            ops=_op_lines(graph),
            output=text,
            model_bytes=(self.out / MODEL).stat().st_size,
            weights=weights,
            inputs=inputs,
            versions=((seen["ai-edge-litert"], seen["adapter"] or "none", found),),
            tapped=bool(about.tapped),
            lives_apart=Cause(about.cause) in DEATHS,
        )


def _write_tensor(folder: Path, name: str, value: np.ndarray, stem: str, raw: bool = False) -> TensorFile:
    np.save(folder / f"{stem}.npy", value, allow_pickle=False)
    if raw:  # what LiteRT's own run_model and benchmark tools read
        (folder / f"{stem}.raw").write_bytes(np.ascontiguousarray(value).data)
    return TensorFile(name, f"{stem}.npy", value.dtype.name, value.shape)


def _renamed(graph: Graph, scrub: Scrubber) -> Graph:
    """The graph with tensor names that name nobody."""
    editor = Editor(graph)
    for index, tensor in enumerate(graph.tensors):
        name = scrub.text(tensor.name)
        if name != tensor.name:
            editor.rename(index, name)
    return editor.graph()


def _list_contents(graph: Graph, inputs: Any, weights: str, random: str, say: Callable[[str], None]) -> None:
    for t in weights_of(graph):
        tensor = graph.tensors[t]
        kind = f"random ({weights})" if weights else "of the model"
        say(f"weights in the bundle: {tensor.name} {list(tensor.shape)}, {4 * tensor.size} bytes, {kind}")
    for name, value in inputs.items():
        kind = f"random ({random})" if random else "from the run"
        say(f"input in the bundle: {name} {list(value.shape)}, {value.nbytes} bytes, {kind}")


def _op_lines(graph: Graph) -> tuple[str, ...]:
    tensors = graph.tensors
    return issue.op_lines([(op.type, [(tensors[t].shape, tensors[t].constant) for t in op.inputs]) for op in graph.ops])
