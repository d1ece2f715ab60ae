"""What the rounds of healing have found, and where each block stands between two of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from bisect_litert.devices.jobs import JobResult
from bisect_litert.measuring.evaluation import TappedGraph
from bisect_litert.measuring.readings import Errors, Values
from bisect_litert.record import Culprit
from bisect_litert.search.culprits import Reading
from bisect_litert.vocabulary import RunName


@dataclass
class Found:
    """What came of healing."""

    readings: list[Reading] = field(default_factory=list)
    """Of the first round: what the shipped graph does."""
    errors: dict[RunName, Errors] = field(default_factory=dict)
    rounding: Errors | None = None
    values: dict[str, Values] = field(default_factory=dict)
    culprits: list[Culprit] = field(default_factory=list)
    scenes: dict[str, tuple[Reading, TappedGraph]] = field(default_factory=dict)
    """Each culprit's reading and the graph it was found in."""
    joined: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Blocks that read a culprit's inside past its end and cannot be told from it, by the culprit's block."""
    lost: list[Culprit] = field(default_factory=list)
    """Blocks that lose digits or flush small numbers while every model output stays in line: notes."""
    unsettled: frozenset[str] = frozenset()
    """Blocks that are wrong behind a culprit and could not be looked at with the culprit healed, or in a run that
    tells nothing of any block."""
    compounding: bool = False
    healed_right: bool = False
    """Whether every output is in line once the culprits are healed, or nothing lies behind them."""
    healed: str = ""
    """What the outputs did once the culprits were healed, in a sentence."""
    results: list[JobResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Standing:
    """Where each block stands between two rounds, by name."""

    confirmed: dict[str, Culprit] = field(default_factory=dict)
    suspects: dict[str, Reading] = field(default_factory=dict)
    """Seen behind another suspect; to be confirmed at healed inputs."""
    cleared: set[str] = field(default_factory=set)
    pending: dict[str, Culprit] = field(default_factory=dict)
    """Lost digits: culprits only if an output is out of line once everything else is healed."""
    answered: set[str] = field(default_factory=set)
    """In line, and looked at in fp32 all the same."""
    merged: set[str] = field(default_factory=set)
    """Healed with a culprit whose inner tensors they read, since the two cannot be told apart."""

    @property
    def guilty(self) -> set[str]:
        """All that is to be healed for certain."""
        return {*self.confirmed, *self.merged}
