"""The nouns of a survey: one model under several versions of the runtime, and since when it is right or wrong.

`RuntimeSurvey` is the root; `runtimes.json` is its JSON form. Each row's run folder holds all that was found there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from bisect_litert import json_form
from bisect_litert.vocabulary import Word

SURVEY_SCHEMA = 1


class Answer(Word):
    """What one version makes of the model."""

    RIGHT = "right"
    WRONG = "wrong"
    UNKNOWN = "unknown"
    """It could not be tested on a GPU there."""


@dataclass(frozen=True, slots=True)
class RuntimeRow:
    """One version."""

    version: str
    answer: Answer
    cause: str
    """The verdict's cause; empty when there is no verdict."""
    block: str
    """The first culprit's block; empty when none is to blame."""
    headline: str
    """The verdict in a few words: "overflow in enc.b3 and 2 more"."""
    summary: str
    """The verdict in sentences, or why there is none."""
    error: float
    """Largest relative L2 error of a model output as shipped; nan when one is not finite or none was seen."""
    lacks: tuple[str, ...]
    """What the version has no way to ask for: "gpu", "fp32" (on the GPU), "switches" (that keep ops off the GPU)."""
    adapter: str
    folder: str
    """Its run folder, relative to the survey's; empty when it has none."""
    seconds: float


@dataclass(frozen=True, slots=True)
class RuntimeSurvey:
    """A model under several versions, in the versions' order."""

    model: str
    rows: tuple[RuntimeRow, ...]
    interrupted: bool = False
    """Whether there were more to come."""

    @property
    def wrong(self) -> bool:
        """Whether it is wrong under any of them."""
        return any(row.answer is Answer.WRONG for row in self.rows)

    @property
    def tested(self) -> bool:
        """Whether any of them could be tested."""
        return any(row.answer is not Answer.UNKNOWN for row in self.rows)

    def sentence(self) -> str:
        """Returns since when it is right or wrong, among the versions that were tried."""
        return ". ".join(_capital(part) for part in (_since(self.rows), *_ways(self.rows), *_untested(self.rows))) + "."

    def to_json(self) -> str:
        """Returns the survey as strictly valid JSON; numbers that JSON cannot hold are words, as in run.json."""
        return json_form.text({"schema": SURVEY_SCHEMA, **json_form.plain(self), "sentence": self.sentence()})

    def save(self, path: Path) -> Path:
        """Writes it, so that the file is there whole or not at all, and returns its path."""
        return json_form.write(self.to_json(), path)


def _since(rows: Sequence[RuntimeRow]) -> str:
    """ "wrong up to 2.1.5, right since 2.1.6"."""
    known = [row for row in rows if row.answer is not Answer.UNKNOWN]
    runs = [(answer, [row.version for row in group]) for answer, group in groupby(known, key=lambda row: row.answer)]
    if not runs:
        return "no version could be tested"
    if len(runs) == 1:
        answer, versions = runs[0]
        every = "every version" if len(known) == len(rows) else "every version that could be tested"
        return f"{answer} in {versions[0] if len(known) == 1 else every}"
    if len(runs) == 2:
        (before, early), (after, late) = runs
        return f"{before} up to {early[-1]}, {after} since {late[0]}"
    return ", ".join(f"{answer} in {_range(versions)}" for answer, versions in runs)


def _ways(rows: Sequence[RuntimeRow]) -> list[str]:
    """What the versions that are wrong are wrong with, where that is not the same everywhere."""
    wrong = [row for row in rows if row.answer is Answer.WRONG]
    if len({(row.cause, row.block) for row in wrong}) < 2:
        return []
    groups = [(way, [row.version for row in group]) for way, group in groupby(wrong, key=lambda row: row.headline)]
    return ["not wrong in the same way: " + "; ".join(f"{way} ({_range(versions)})" for way, versions in groups)]


def _untested(rows: Sequence[RuntimeRow]) -> list[str]:
    unknown = [row for row in rows if row.answer is Answer.UNKNOWN]
    return [f"not tested: {_range([row.version for row in unknown])}"] if unknown and len(unknown) < len(rows) else []


def _range(versions: Sequence[str]) -> str:
    return versions[0] if len(versions) == 1 else f"{', '.join(versions[:-1])} and {versions[-1]}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
