"""A culprit being worked on, one replacement for it, and what a trial of some of them came to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bisect_litert.fixing import trial
from bisect_litert.models.preparation import LoadedModel
from bisect_litert.record import Culprit, RunRecord
from bisect_litert.records.fix_record import Attempt, ChangeRecord, Reached

if TYPE_CHECKING:
    from bisect_litert.rewrites.contract import Replacement, Rewrite
    from bisect_litert.rewrites.region import Region

GOOD = (Reached.PROVEN, Reached.FURTHER)
"""What is kept."""


@dataclass
class Case:
    """One culprit being worked on."""

    culprit: Culprit
    uncovered: bool
    before: RunRecord
    attempts: list[Attempt] = field(default_factory=list)
    changes: tuple[ChangeRecord, ...] = ()
    limits: str = ""
    fixed: bool = False
    refused: tuple[str, ...] = ()
    """Of a refusal: the types of the block's ops that its rewrite is for."""


@dataclass(frozen=True)
class Part:
    """One culprit's share of a trial."""

    case: Case
    region: Region
    rewrite: Rewrite
    replacement: Replacement

    @property
    def attempt(self) -> Attempt:
        """How the trial begins to be recorded."""
        title, where = self.replacement.title or self.rewrite.title, self.region.path or "(model)"
        return Attempt(self.rewrite.name, title, where, Reached.TORCH, "")

    @property
    def step(self) -> trial.Step:
        """The replacement at its place."""
        return trial.Step(self.region.path, self.replacement)


@dataclass(frozen=True)
class Tried:
    """What a trial came to: attempts in the order of its parts."""

    attempts: tuple[Attempt, ...]
    model: LoadedModel
    record: RunRecord | None = None

    @property
    def proven(self) -> bool:
        """Whether every part is, or got on to another fault."""
        return self.record is not None and all(a.reached in GOOD for a in self.attempts)

    def failed(self, reached: Reached, detail: str) -> Tried:
        """Returns it as one that came to nothing after all."""
        return replace(self, attempts=tuple(replace(a, reached=reached, detail=detail) for a in self.attempts))
