"""One subject for several runs: what does not depend on the GPU is done in the first and handed to the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.pieces import OnTensor
from bisect_litert.measuring.readings import Forward
from bisect_litert.record import Culprit, InputInfo
from bisect_litert.search.sources import OpSources
from bisect_litert.subjects import Located, Stage, Subject, Workplace
from bisect_litert.subjects.whole_run import Stretched
from bisect_litert.taps.tapping import Tapping


class SharedSubject:
    """A subject that is checked, converted and tapped once, however many runs ask.

    Args:
        subject: What is shared.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.path = subject.path
        self.label, self.reference, self.judges_conversion = subject.label, subject.reference, subject.judges_conversion
        self._checked: tuple[Forward | None] | None = None
        self._graph: Graph | None = None
        self._located: Located | None = None
        self._sources: OpSources | None = None

    @property
    def ready(self) -> bool:
        """Whether a run came as far as to the GPU, so that what fails now is the GPU's side."""
        return self._located is not None

    @property
    def notes(self) -> Sequence[str]:
        """What was changed about it before it was tested."""
        return self._subject.notes

    def describe_inputs(self) -> list[InputInfo]:
        """Returns name, shape and range of every input tensor."""
        return self._subject.describe_inputs()

    def check(self, stage: Stage) -> Forward | None:
        """Checks the subject, once."""
        if self._checked is None:
            self._checked = (self._subject.check(stage),)
        return self._checked[0]

    def graph(self, place: Workplace) -> Graph:
        """Returns the graph that ships, made once."""
        if self._graph is None:
            self._graph = self._subject.graph(place)
        return self._graph

    def feed(self, graph: Graph) -> dict[str, np.ndarray]:
        """Returns the graph's inputs by signature name."""
        return self._subject.feed(graph)

    def locate(self, graph: Graph, inputs: Mapping[str, np.ndarray], place: Workplace) -> Located:
        """Returns where the blocks' outputs are, found once."""
        if self._located is None:
            self._located = self._subject.locate(graph, inputs, place)
        else:
            self._subject.move_to(place)
            for tapping in (self._located.tapping, self._located.tapping.shipped):
                if tapping is not None and isinstance(tapping.values, Stretched):
                    tapping.values.move_to(place.runner, place.folder)
        return self._located

    def move_to(self, place: Workplace) -> None:
        """Goes on in another run."""
        self._subject.move_to(place)

    def force(self, values: Mapping[str, np.ndarray], look: OnTensor | None = None) -> Forward:
        """Returns what the reference computes with these values in place of the blocks' outputs."""
        return self._subject.force(values, look)

    def classes(self) -> Mapping[str, str]:
        """Returns class names by module path."""
        return self._subject.classes()

    def sources(self, graph: Graph, values: Mapping[int, np.ndarray]) -> OpSources:
        """Returns what tells an op's module and line; the graph is the same in every run, and so is this."""
        if self._sources is None:
            self._sources = self._subject.sources(graph, values)
        return self._sources

    def keep_twin(self, folder: Path, culprit: Culprit, tapped: Tapping, blocks: Sequence[str]) -> None:
        """Writes a culprit in PyTorch's terms, or why there is nothing to write."""
        self._subject.keep_twin(folder, culprit, tapped, blocks)
