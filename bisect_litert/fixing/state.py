"""How far a fix has got, so that what is tried on the way can be taken back as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bisect_litert.fixing import trial
from bisect_litert.fixing.parts import Case
from bisect_litert.models.preparation import LoadedModel
from bisect_litert.record import RunRecord


@dataclass
class State:
    """The model with what was proven so far, and what is known of its culprits."""

    model: LoadedModel
    last: RunRecord
    """The bisection of that model."""
    steps: list[trial.Step] = field(default_factory=list)
    cases: dict[tuple[str, ...], Case] = field(default_factory=dict)
    before: dict[str, tuple[LoadedModel, RunRecord, int]] = field(default_factory=dict)
    """Model, its bisection and the number of steps before the first step made for a block."""

    def saved(self) -> State:
        """Returns a copy that does not follow what is done from here on."""
        cases = {key: replace(case, attempts=list(case.attempts)) for key, case in self.cases.items()}
        return State(self.model, self.last, list(self.steps), cases, dict(self.before))

    def restore(self, saved: State) -> None:
        """Goes back to a copy; the cases of that time stay the objects that they are."""
        self.model, self.last, self.steps, self.before = saved.model, saved.last, saved.steps, saved.before
        for key, old in saved.cases.items():
            case = self.cases[key]
            case.attempts[:] = old.attempts
            case.changes, case.limits, case.fixed, case.refused = old.changes, old.limits, old.fixed, old.refused
        self.cases = {key: self.cases[key] for key in saved.cases}
