"""What is bisected, and what it is held against: one interface, an implementation per way a model comes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from bisect_litert.devices.job_queue import JobQueue
from bisect_litert.devices.jobs import JobResult
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.noise import Held, Noise, complete
from bisect_litert.measuring.pieces import OnTensor
from bisect_litert.measuring.readings import Forward, OtherWeights, Values
from bisect_litert.record import Culprit, InputInfo
from bisect_litert.search.sources import OpSources
from bisect_litert.taps.tapper import Layout
from bisect_litert.taps.tapping import Tapping

Stage = Callable[[str], AbstractContextManager[None]]
"""Reports a stage while it is entered."""


@dataclass(frozen=True)
class Workplace:
    """Where a subject may run and write."""

    runner: JobQueue
    folder: Path
    """For .tflite files; deleted when the run ends."""
    logs: Path
    """In the run folder."""
    stage: Stage
    note: Callable[[str, float, str], None]
    """Notes for the record what was done beside jobs: name, seconds, and what there is to say."""


@dataclass(frozen=True)
class Located:
    """The graph with its taps, and what is right there."""

    tapping: Tapping
    truth: Forward
    outputs: Mapping[str, str]
    """The shipped graph's signature output by the model's own output label."""
    cost: Mapping[str, float]
    """What fp32 itself costs locally (relative L2), by tap key and output label."""
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    """How outputs hold what the model returns, by its label; those not named come as they are, perhaps reshaped."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """What honest devices may differ by whatever their precision (relative L2), likewise: a step of quantised tensors,
    what weights of fewer bits cost beside the reference's, or what LiteRT's CPU kernels differ by among themselves."""
    output_limit: float = 0.0
    """Least error of an output that can count, where its own steps are coarser than the limit asked for."""
    noise: Mapping[str, Noise] = field(default_factory=dict)
    """Tensors of which fp32 holds no digit, likewise."""
    other_weights: OtherWeights = field(default_factory=OtherWeights)
    results: tuple[JobResult, ...] = ()
    """Of the jobs that were run on the way."""

    def held(self, outputs: Mapping[str, int], rounded: Values) -> Held:
        """Returns the reference, with what errors are held against where it is noise.

        Args:
            outputs: The graph's tensors by output label.
            rounded: What the run that rounds to 11 bits gave.
        """
        truth, tapped = self.truth, self.tapping
        single = {**truth.taps, **truth.outputs}
        at = {t.key: t.tensor for t in tapped.taps} | dict(outputs)
        seen = {**rounded.taps, **rounded.outputs}
        return Held(truth.taps, truth.outputs, complete(self.noise, single, seen, at, tapped.graph, tapped.values))

    def with_taps_of(self, shipped: Tapping) -> tuple[Located, str]:
        """Gives up the taps that only a second conversion has. Returns what is left, and a sentence on the rest."""
        had = {t.key for t in shipped.taps if t.tensor >= 0}
        lost = dict.fromkeys(t.block for t in self.tapping.taps if t.tensor >= 0 and t.key not in had)
        return replace(self, tapping=shipped), (
            "Tapped in a second conversion, which the tensors of "
            f"{', '.join(lost) or 'these blocks'} take, the model comes out differently on the GPU than it does as it "
            "ships. So they are left untapped."
        )


class Subject(Protocol):
    """A model as it came in. The methods are called in this order."""

    @property
    def label(self) -> str:
        """How reports call it."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What was changed about it before it was tested."""
        ...

    @property
    def path(self) -> Path | None:
        """The Python file that defines it; None where there is none."""
        ...

    @property
    def reference(self) -> str:
        """What its blocks are held against: "PyTorch" or "LiteRT CPU"."""
        ...

    @property
    def judges_conversion(self) -> bool:
        """Whether the reference is independent of the .tflite file, so that the file itself can be wrong."""
        ...

    def describe_inputs(self) -> list[InputInfo]:
        """Returns name, shape and range of every input tensor."""
        ...

    def check(self, stage: Stage) -> Forward | None:
        """Checks what can be checked before anything is written; returns the reference if it is known already.

        Raises:
            BisectError: It cannot be tested.
        """
        ...

    def graph(self, place: Workplace) -> Graph:
        """Returns the graph that ships."""
        ...

    def feed(self, graph: Graph) -> dict[str, np.ndarray]:
        """Returns the graph's inputs by signature name, in its layout."""
        ...

    def locate(self, graph: Graph, inputs: Mapping[str, np.ndarray], place: Workplace) -> Located:
        """Finds the blocks' outputs in the graph."""
        ...

    def move_to(self, place: Workplace) -> None:
        """Goes on in another run, which has a runner and a folder of its own; `locate` was called in the first."""
        ...

    def force(self, values: Mapping[str, np.ndarray], look: OnTensor | None = None) -> Forward:
        """Returns what the reference computes with these values put in place of the blocks' outputs, by tap key; with
        `look`, shows it that at each tap and keeps it nowhere."""
        ...

    def classes(self) -> Mapping[str, str]:
        """Returns class names by module path, of all modules."""
        ...

    def sources(self, graph: Graph, values: Mapping[int, np.ndarray]) -> OpSources:
        """Returns what tells an op's module and line."""
        ...

    def keep_twin(self, folder: Path, culprit: Culprit, tapped: Tapping, blocks: Sequence[str]) -> None:
        """Writes a culprit in PyTorch's terms, or why there is nothing to write.

        Args:
            folder: The reproduction's own.
            culprit: What to write.
            tapped: The graph that its op is in.
            blocks: The selected blocks' calls.
        """
        ...
