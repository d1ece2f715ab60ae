"""The nouns of `bisect-litert doctor`: what was checked, how it stands, and what puts it right."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from bisect_litert.vocabulary import Word

CHECKUP_SCHEMA = 1


class State(Word):
    """How one thing stands."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    said: str
    """One line: what was found."""
    fix: str = ""
    """What to do about it; empty where nothing has to be done."""
    facts: dict[str, str] = field(default_factory=dict)
    """What was found, for programs."""


@dataclass(frozen=True, slots=True)
class Checkup:
    """Everything that was looked at, in order."""

    checks: tuple[Check, ...]

    @property
    def fine(self) -> bool:
        """Whether nothing is wrong."""
        return all(check.state is not State.BAD for check in self.checks)

    def to_json(self) -> str:
        """Returns it as JSON."""
        checks = [{**asdict(check), "state": check.state.value} for check in self.checks]
        return json.dumps({"schema": CHECKUP_SCHEMA, "fine": self.fine, "checks": checks}, indent=1) + "\n"
