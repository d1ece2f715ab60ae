"""What a matrix is asked to do: models and targets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from bisect_litert.request import BisectRequest

CELL_LIMIT = 3600.0
"""Seconds that all of a cell may take."""
NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
"""Names become folders."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a model is run on."""

    name: str
    no_gpu: bool = False
    fp32: bool = False
    runtime: str = ""
    """Version of ai-edge-litert that runs the GPU jobs; empty for the installed one."""
    runner: str = ""
    """"ssh HOST" or a command; see BisectRequest."""
    runner_python: str = "python3"
    python: str = ""
    """Interpreter whose ai-edge-litert runs the GPU jobs."""


@dataclass(frozen=True, slots=True)
class Model:
    """One row of the matrix: a model as the main command takes it, and how to judge it."""

    name: str
    model: str
    blocks: tuple[str, ...] = ()
    inputs: str = ""
    """Path of an .npz, relative to the plan's folder."""
    seed: int = 0
    tap: str = "auto"
    tflite: str = ""
    """The shipped file to hold against the model, relative to the plan's folder; empty when it is converted."""
    signature: str = ""
    """Of a .tflite file."""
    int_high: int | None = None
    """For a .tflite file's integer inputs."""
    strict: bool = False
    ratio_limit: float = 10.0
    output_limit: float = 1e-2
    time_limit: float = 300.0
    """Seconds one GPU run may take."""
    tap_memory: float = 1024.0
    """MiB of taps one run may return."""
    cell_limit: float = CELL_LIMIT
    """Seconds that all of it may take on one target."""
    targets: tuple[str, ...] = ()
    """Names of the targets it is run on."""
    skip: str = ""
    """Why it is not run at all; empty when it is."""
    needs: tuple[str, ...] = ()
    """Python packages without which it is skipped."""
    depends: tuple[str, ...] = ()
    """Files besides the model file that its result depends on."""

    def request(self, target: Target, folder: Path, out: Path, python: str) -> BisectRequest:
        """Returns the main command's request for one cell.

        Args:
            target: What to run it on.
            folder: The plan's folder, which paths are relative to.
            out: The run folder.
            python: Interpreter that runs the GPU jobs; empty for this one.
        """
        return BisectRequest(
            model=self.model,
            blocks=self.blocks,
            inputs=folder / self.inputs if self.inputs else None,
            seed=self.seed,
            out=out,
            tap="reexport" if self.tap == "reexport" else "auto",
            time_limit=self.time_limit,
            tap_memory=int(self.tap_memory * 2**20),
            tflite=folder / self.tflite if self.tflite else None,
            signature=self.signature,
            int_high=self.int_high,
            strict=self.strict,
            ratio_limit=self.ratio_limit,
            output_limit=self.output_limit,
            no_gpu=target.no_gpu,
            fp32=target.fp32,
            runner=target.runner,
            runner_python=target.runner_python,
            python=python,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """A matrix to run."""

    title: str
    folder: Path
    """Of the TOML file; model and input paths are relative to it."""
    models: tuple[Model, ...]
    targets: tuple[Target, ...]
    file: str = ""
    """The TOML file's name."""

    def target(self, name: str) -> Target:
        """Returns a target by name."""
        return next(t for t in self.targets if t.name == name)

    @property
    def cells(self) -> list[tuple[Model, Target]]:
        """All there is to run, row by row."""
        return [(m, t) for m in self.models for t in self.targets if t.name in m.targets]


KNOWN_TARGETS = {
    "cpu": Target("cpu", no_gpu=True, fp32=True),
    "emulated": Target("emulated", no_gpu=True),
    "gpu": Target("gpu"),
    "gpu-fp32": Target("gpu-fp32", fp32=True),
}
