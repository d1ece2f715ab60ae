"""From diagnosis to a proven cure: rewrites are tried on a copy of the model until the GPU's result is right.

Culprits are taken in the order of the data flow, on top of what was fixed before. A replacement counts only when
torch computes the same with it, in fp32 and in fp64, and a bisection of the changed model no longer finds the block.
What that run uncovers is gone on to, up to `MAX_ROUNDS`. What the rewrite of refused ops uncovers is to be cured with
it, or it is taken back.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bisect_litert.errors import BisectError
from bisect_litert.fixing import trial
from bisect_litert.fixing.agreement import Truth, agreement, truth_of
from bisect_litert.fixing.closing import closed, is_right
from bisect_litert.fixing.faults import (
    another,
    block_errors,
    faults_of,
    in_words,
    key_of,
    kind_of,
    lies_in,
    output_error,
    place_of,
    refused_in,
    right_in,
    same_fault,
    uncovered,
    uncovers,
    within,
)
from bisect_litert.fixing.parts import Case, Part, Tried
from bisect_litert.fixing.proposing import candidates, peers
from bisect_litert.fixing.state import State
from bisect_litert.models.preparation import LoadedModel
from bisect_litert.record import Culprit, RunRecord
from bisect_litert.records.fix_record import Attempt, ChangeRecord, FixRecord, Reached
from bisect_litert.reports.outcome import anything_tested
from bisect_litert.request import BisectRequest, OnProgress, Progress
from bisect_litert.vocabulary import Cause

MAX_ROUNDS = 8
"""Culprits gone into, those uncovered on the way included."""
MAX_TRIALS = 10
"""Bisections spent on one culprit."""
MAX_CHAIN = 6
"""Faults gone on to from one rewrite that uncovers them; those that are fixed alike in one trial count once."""


@dataclass(frozen=True)
class Fixed:
    """What a fix leaves in memory."""

    record: FixRecord
    model: LoadedModel
    """With every proven replacement in place."""
    steps: tuple[trial.Step, ...]
    """Proven replacements in the order they were made."""
    last: RunRecord
    """The bisection of that model; the first one when nothing was fixed."""
    original: LoadedModel
    truth: Truth


def fix(
    loaded: LoadedModel, found: RunRecord, request: BisectRequest, on_progress: OnProgress = lambda _: None
) -> Fixed:
    """Tries to fix every culprit of a run.

    Args:
        loaded: The model the run was made of.
        found: The run.
        request: How to bisect again; its `out` is not used.
        on_progress: Told of every attempt.

    Returns:
        What was tried, and the model with all that was proven.
    """
    work = Path(tempfile.mkdtemp(prefix="bisect-litert-fix-"))
    try:
        return _Fixing(loaded, found, request, on_progress, work).run()
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _Fixing:
    def __init__(
        self, loaded: LoadedModel, found: RunRecord, request: BisectRequest, on_progress: OnProgress, work: Path
    ) -> None:
        self.original, self.first, self.request, self.tell, self.work = loaded, found, request, on_progress, work
        self.now = State(loaded, found)
        self.hopeless: list[tuple[Culprit, str]] = []
        """Uncovered by rewrites, and not cured, with the reason."""
        self.trials = 0
        self.notes: list[str] = []

    def run(self) -> Fixed:
        started = time.monotonic()
        self.truth = truth_of(self.original)
        for _ in range(MAX_ROUNDS):
            culprit = next((c for c in faults_of(self.now.last) if key_of(c) not in self.now.cases), None)
            if culprit is None:
                break
            case = self._open(culprit)
            self._work_on(case)
            if not case.fixed:
                self._give_up(culprit.block)
        torch = agreement(self.now.model, self.truth)
        found = closed(tuple(self.now.cases.values()), self.first, self.now.last)
        record = FixRecord(
            model=self.first.model,
            target=self.first.target,
            # A refused op that no rewrite is for runs on the CPU: a note of the run, and nothing that was tried.
            culprits=tuple(c for c in found if c.attempts or c.cause is not Cause.REJECTED or self.request.strict),
            diverged_before=self.first.verdict.diverged,
            diverged_after=self.now.last.verdict.diverged,
            output_before=output_error(self.first),
            output_after=output_error(self.now.last),
            torch32=torch.torch32,
            torch64=torch.torch64,
            torch_own=torch.own,
            torch_off=torch.off,
            costs=None,
            checked="",
            seconds=time.monotonic() - started,
            environment=self.first.environment,
            notes=tuple(self.notes),
        )
        return Fixed(record, self.now.model, tuple(self.now.steps), self.now.last, self.original, self.truth)

    def _open(self, culprit: Culprit) -> Case:
        return self.now.cases.setdefault(key_of(culprit), Case(culprit, self._unlisted(culprit), self.now.last))

    def _unlisted(self, culprit: Culprit) -> bool:
        return all(key_of(culprit) != key_of(c) for c in faults_of(self.first))

    def _work_on(self, case: Case) -> None:
        stage = f"fix {case.culprit.block}"
        self.tell(Progress(stage, state="start", detail=case.culprit.cause))
        tried: set[tuple[str, str]] = set()
        for part in candidates(self.now.model, case, self.request.seed):
            key = (part.region.path, part.replacement.source + repr(sorted(part.replacement.arguments.items())))
            if key in tried or len(tried) >= MAX_TRIALS:
                continue
            tried.add(key)
            alike = peers(self.now.model, part, self.now.last, self.now.cases, self.request.seed)
            for other in alike:
                other.case.uncovered = self._unlisted(other.case.culprit)
            where = part.attempt.region + (f" and {len(alike)} alike" if alike else "")
            self.tell(Progress(stage, detail=f"{part.attempt.title} in {where}"))
            # All that are alike at once, since each trial costs a conversion; one by one if that does not do.
            for group in ([part, *alike], [part]) if alike else ([part],):
                outcome = self._gone_on(group, self._try(group))
                if outcome.proven:
                    break
            for tried_part, attempt in zip(group, outcome.attempts, strict=True):
                tried_part.case.attempts.append(attempt)
            if outcome.proven:
                self._close_what_is_right(group[0], outcome.attempts[0])
                break
        self.tell(Progress(stage, state="done"))

    def _gone_on(self, group: Sequence[Part], outcome: Tried) -> Tried:
        """Keeps what a trial proved. Where the rewrite of refused ops uncovers faults, these are to be cured with it:
        alone it would make right what is wrong."""
        if not outcome.proven or outcome.record is None:
            return outcome
        saved = self.now.saved()
        bare = uncovered(saved.last, outcome.record) if group[0].case.culprit.cause is Cause.REJECTED else ()
        self._keep(group, outcome)
        if not bare:
            return outcome
        worked: list[Culprit] = []
        while left := uncovered(saved.last, self.now.last):
            fault = next((c for c in left if key_of(c) not in self.now.cases), None)
            if fault is None or len(worked) >= MAX_CHAIN:
                why = f"more than {MAX_CHAIN} faults follow from one another" if fault else ""
                return self._taken_back(outcome, saved, bare[0], why)
            worked.append(fault)
            case = self._open(fault)
            self._work_on(case)
            if not case.fixed:
                why = next((a.detail for a in reversed(case.attempts) if a.detail), "no rewrite is known for it")
                self.hopeless.append((fault, why))
                return self._taken_back(outcome, saved, fault, why)
        cured = ", ".join(dict.fromkeys(in_words(c) for c in worked))
        attempts = []
        for part, attempt in zip(group, outcome.attempts, strict=True):
            error, ratio = block_errors(self.now.last, part.case.culprit.block)
            attempts.append(
                replace(
                    attempt,
                    reached=Reached.PROVEN,
                    detail=f"with the cure of what it uncovers: {cured}",
                    block_error=error,
                    block_ratio=ratio,
                    output_error=output_error(self.now.last),
                )
            )
        return replace(outcome, attempts=tuple(attempts))

    def _taken_back(self, outcome: Tried, saved: State, fault: Culprit, why: str) -> Tried:
        self.now.restore(saved)
        return outcome.failed(Reached.STILL_WRONG, uncovers(fault, why))

    def _keep(self, group: Sequence[Part], outcome: Tried) -> None:
        now, record = self.now, outcome.record
        assert record is not None, "asked only where it ran"
        for part in group:
            case, changes = part.case, part.replacement.changes
            block = case.culprit.block
            now.cases.setdefault(key_of(case.culprit), case)
            now.before.setdefault(block, (now.model, now.last, len(now.steps)))
            case.changes = tuple(ChangeRecord(c.operator, c.source, c.how, c.exponent) for c in changes)
            case.limits, case.fixed = part.rewrite.limits, True
            if case.culprit.cause is Cause.REJECTED:
                still = refused_in(record, block)
                case.refused = tuple(kind for kind in refused_in(now.last, block) if kind not in still)
        now.steps += [part.step for part in group]
        now.model, now.last = outcome.model, record

    def _close_what_is_right(self, part: Part, attempt: Attempt) -> None:
        """What was given up may come right with the cure of another: an output that is a block's is one tensor."""
        for case in self.now.cases.values():
            if case.fixed or not is_right(case, self.now.last):
                continue
            error, ratio = block_errors(self.now.last, case.culprit.block)
            case.attempts.append(replace(attempt, reached=Reached.PROVEN, block_error=error, block_ratio=ratio))
            case.changes, case.limits = part.case.changes, part.rewrite.limits
            case.fixed = True

    def _give_up(self, block: str) -> None:
        """Takes back what was done for a block that does not come right: half a cure is none."""
        now = self.now
        model, last, steps = now.before.get(block, (now.model, now.last, len(now.steps)))
        if all(within(step.path, block.split("@")[0]) for step in now.steps[steps:]):
            now.model, now.last = model, last
            del now.steps[steps:]

    def _try(self, group: Sequence[Part]) -> Tried:
        attempts = tuple(part.attempt for part in group)
        model = self.now.model

        def ended(reached: Reached, detail: str) -> Tried:
            return Tried(tuple(replace(a, reached=reached, detail=detail) for a in attempts), model)

        try:
            for part in group:
                model = trial.replaced(model, part.step)
            torch = agreement(model, self.truth)
        except Exception as error:
            detail = error.message if isinstance(error, BisectError) else f"{type(error).__name__}: {error}"
            return ended(Reached.TORCH, detail)
        attempts = tuple(replace(a, torch32=torch.torch32, torch64=torch.torch64) for a in attempts)
        if torch.complaint:
            return ended(Reached.TORCH, torch.complaint)
        self.trials += 1
        request = replace(self.request, out=self.work / f"trial-{self.trials}", force=True)
        try:
            record, note = trial.bisected(model, request, self.now.last)
        except BisectError as error:
            return ended(Reached.CONVERSION, error.message)
        self.notes += [f"With {attempts[0].title}, in {attempts[0].region}: {note}"] if note else []
        bad = self._own_fault(group, model, record)
        judged = tuple(self._judged(part, a, record) for part, a in zip(group, attempts, strict=True))
        tried = Tried(judged, model, record)
        if bad is None or not tried.proven:
            return tried
        said = f"{bad.block} goes wrong at the {kind_of(bad)} that it puts there: {bad.cause}"
        return tried.failed(Reached.STILL_WRONG, said)

    def _own_fault(self, group: Sequence[Part], model: LoadedModel, record: RunRecord) -> Culprit | None:
        """Returns an uncovered fault at an op that a rewrite of refused ops added, not one that it laid bare."""
        if group[0].case.culprit.cause is not Cause.REJECTED:
            return None
        paths = [part.region.path for part in group]
        inside = [c for c in uncovered(self.now.last, record) if kind_of(c) and lies_in(c, paths)]
        if not inside:
            return None
        before, after = (trial.op_types(m, self.request, self.work) for m in (self.now.model, model))
        return next((c for c in inside if after[kind_of(c)] > before[kind_of(c)]), None)

    def _judged(self, part: Part, attempt: Attempt, record: RunRecord) -> Attempt:
        culprit = part.case.culprit
        error, ratio = block_errors(record, culprit.block)
        attempt = replace(attempt, block_error=error, block_ratio=ratio, output_error=output_error(record))

        def wrong(detail: str) -> Attempt:
            return replace(attempt, reached=Reached.STILL_WRONG, detail=detail)

        if record.target != self.first.target:
            return wrong(f"it ran on {record.target}, where the fault was found on {self.first.target}")
        if not anything_tested(record):
            return wrong(f"nothing runs with it: {record.verdict.summary}")
        if culprit.cause is Cause.REJECTED:
            refused = [c for c in faults_of(record) if key_of(c) == key_of(culprit)]
            if refused:
                return wrong(refused[0].evidence[0])
            new = uncovered(self.now.last, record)
            hopeless = next(((c, why) for c, why in self.hopeless for n in new if same_fault(c, n)), None)
            if hopeless is not None:
                return wrong(uncovers(*hopeless))
            reached = Reached.FURTHER if new else Reached.PROVEN
            return replace(attempt, reached=reached, detail=f"then {place_of(new[0])}: {new[0].cause}" if new else "")
        # Another fault of the block that shows only now is one fault less all the same.
        here = [c for c in record.culprits if c.block == culprit.block]
        same = [c for c in here if key_of(c) in self.now.cases or not another(culprit, part.case.before, c, record)]
        if same or (record.verdict.diverged and not record.culprits):
            return wrong(same[0].evidence[0] if same and same[0].evidence else record.verdict.summary)
        if here:
            return replace(attempt, reached=Reached.FURTHER, detail=f"then {place_of(here[0])}: {here[0].cause}")
        if not right_in(record, culprit.block):
            return wrong(f"{culprit.block} is no block any more, and the model still diverges")
        return replace(attempt, reached=Reached.PROVEN)
