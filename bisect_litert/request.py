"""What a front end asks of the main job, and what the job tells it while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bisect_litert.record import RunRecord, Settings

DEFAULTS = Settings()
RUNNER_PYTHON = "python3"


@dataclass(frozen=True, slots=True)
class BisectRequest:
    """One run, as asked for on the command line."""

    model: str
    """A path, "path.py:name" or "package.module:name", as typed."""
    blocks: tuple[str, ...] = ()
    """Globs over module paths; empty means the repeated and the top-level children."""
    inputs: Path | None = None
    """An .npz that overrides the model file's inputs by name or position."""
    seed: int = DEFAULTS.seed
    out: Path | None = None
    """The run folder; none means a new one in the current directory (run_folder.plan)."""
    force: bool = False
    """Replace the files of an earlier run in `out`."""
    tap: Literal["auto", "reexport"] = "auto"
    time_limit: float = 300.0
    """Seconds one GPU run may take."""
    tap_memory: int = 1 << 30
    """Bytes of taps that one run may return; more are taken in several runs of the same graph."""
    strict: bool = DEFAULTS.strict
    ratio_limit: float = DEFAULTS.ratio_limit
    output_limit: float = DEFAULTS.output_limit
    cache: bool = True
    """Take a conversion of the same program from the user's cache folder, and keep new ones there."""
    no_gpu: bool = False
    """Judge the emulated run even where a GPU is found."""
    fp32: bool = False
    """Judge fp32 arithmetic: the GPU's, or with `no_gpu` the file on the CPU, without emulation."""
    tflite: Path | None = None
    """The .tflite file that ships, to be bisected against the model instead of a conversion of it."""
    signature: str = ""
    """Which signature of a .tflite file to test; empty means its default one."""
    int_high: int | None = None
    """Integers drawn for a .tflite file's inputs are below this; none means the smallest table they look rows up in."""
    runner: str = ""
    """Where GPU jobs run instead: "ssh HOST" (with any options of ssh in between), or a command that takes a request
    folder and leaves a response folder."""
    runner_python: str = RUNNER_PYTHON
    """Interpreter on the machine that `runner` reaches over ssh."""
    python: str = ""
    """Interpreter of another environment on this machine, whose ai-edge-litert runs the GPU jobs."""
    answers: Path | None = None
    """An export folder whose results stand for the GPU jobs, and which gets a next round for those without one."""
    conversions: Path | None = None
    """Keeps the converted files; what it holds already is not converted again."""
    alone: bool = False
    """Start a worker of its own for every job here: none can then be the victim of one before it."""
    switches: bool = True
    """Let control runs use the delegate's debug switches where it heeds them; without them the graph is split, as for
    a runtime that has none."""

    def settings(self) -> Settings:
        """Returns the part of the request that is written into the record."""
        return Settings(
            ratio_limit=self.ratio_limit,
            output_limit=self.output_limit,
            seed=self.seed,
            blocks=self.blocks,
            strict=self.strict,
            tap=self.tap,
            inputs=self.inputs.name if self.inputs else "",
            no_gpu=self.no_gpu,
            fp32=self.fp32,
            tflite=self.tflite.name if self.tflite else "",
            signature=self.signature,
            int_high=self.int_high,
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """One message about one stage. Every "start" is followed by a "done" or by the next stage's "start"."""

    stage: str
    """A few words: "convert", "run gpu"."""
    done: int | None = None
    total: int | None = None
    state: Literal["start", "done", "info"] = "info"
    """"info" updates the running stage: its count, its detail, or both."""
    seconds: float | None = None
    """How long the stage took, with "done"; the drawer's own clock is used when none."""
    detail: str = ""
    found: str = ""
    """A sentence that is worth reading before the run ends, with "info"."""


OnProgress = Callable[[Progress], None]


class Stage:
    """Reports a stage's start and end."""

    def __init__(self, on_progress: OnProgress, name: str) -> None:
        self._tell, self._name = on_progress, name

    def __enter__(self) -> None:
        self._started = time.monotonic()
        self._tell(Progress(self._name, state="start"))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._tell(Progress(self._name, state="done", seconds=time.monotonic() - self._started))


@dataclass(frozen=True, slots=True)
class BlockLine:
    """One selectable block, as `bisect-litert blocks` lists it."""

    name: str
    class_name: str
    calls: int
    """How often one forward calls it; 0 when it is never called."""
    shapes: tuple[str, ...] = ()
    """The tensors of its (first) output: "[2, 16, 64] float32"."""
    selected: bool = False
    """Whether a run without --blocks would take it."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run that had already computed something.

    Args:
        record: What was found so far, fit to be written and shown.
    """

    def __init__(self, record: RunRecord) -> None:
        super().__init__()
        self.record = record
