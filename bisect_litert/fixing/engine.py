"""From diagnosis to a proven cure: rewrites are tried on a copy of the model until the GPU's result is right.

Culprits are taken in the order of the data flow, on top of what was fixed before. A replacement counts only when
torch computes the same with it, in fp32 and in fp64, and a bisection of the changed model no longer finds the block.
What that run uncovers is gone on to, up to `MAX_ROUNDS`.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bisect_litert.errors import BisectError
from bisect_litert.fixing import trial
from bisect_litert.fixing.agreement import Truth, agreement, truth_of
from bisect_litert.fixing.faults import (
    another,
    block_errors,
    faults_of,
    key_of,
    output_error,
    place_of,
    region_paths,
    right_in,
    within,
)
from bisect_litert.fixing.parts import Case, Part, Tried
from bisect_litert.models.preparation import LoadedModel
from bisect_litert.record import Cause, Culprit, RunRecord
from bisect_litert.records.fix_record import Attempt, ChangeRecord, CulpritFix, FixRecord, Outcome, Reached
from bisect_litert.reports.outcome import anything_tested
from bisect_litert.request import BisectRequest, OnProgress, Progress

if TYPE_CHECKING:
    from bisect_litert.rewrites.region import Region

MAX_ROUNDS = 8
"""Culprits gone into, those uncovered on the way included."""
MAX_TRIALS = 10
"""Bisections spent on one culprit."""


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
        self.model, self.last = loaded, found
        self.steps: list[trial.Step] = []
        self.cases: dict[tuple[str, ...], Case] = {}
        self.before: dict[str, tuple[LoadedModel, RunRecord, int]] = {}
        """Model, its bisection and the number of steps before the first step made for a block."""
        self.trials = 0
        self.notes: list[str] = []

    def run(self) -> Fixed:
        started = time.monotonic()
        self.truth = truth_of(self.original)
        for _ in range(MAX_ROUNDS):
            culprit = next((c for c in faults_of(self.last) if key_of(c) not in self.cases), None)
            if culprit is None:
                break
            case = self._open(culprit)
            self._work_on(case)
            if not case.fixed:
                self._give_up(culprit.block)
        torch = agreement(self.model, self.truth)
        closed = [self._closed(case) for case in self.cases.values()]
        record = FixRecord(
            model=self.first.model,
            target=self.first.target,
            # A refused op that no rewrite is for runs on the CPU: a note of the run, and nothing that was tried.
            culprits=tuple(c for c in closed if c.attempts or c.cause is not Cause.REJECTED or self.request.strict),
            diverged_before=self.first.verdict.diverged,
            diverged_after=self.last.verdict.diverged,
            output_before=output_error(self.first),
            output_after=output_error(self.last),
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
        return Fixed(record, self.model, tuple(self.steps), self.last, self.original, self.truth)

    def _open(self, culprit: Culprit) -> Case:
        uncovered = all(key_of(culprit) != key_of(c) for c in faults_of(self.first))
        return self.cases.setdefault(key_of(culprit), Case(culprit, uncovered, self.last))

    def _work_on(self, case: Case) -> None:
        stage = f"fix {case.culprit.block}"
        self.tell(Progress(stage, state="start", detail=case.culprit.cause))
        tried: set[tuple[str, str]] = set()
        for part in self._candidates(case):
            key = (part.region.path, part.replacement.source + repr(sorted(part.replacement.arguments.items())))
            if key in tried or len(tried) >= MAX_TRIALS:
                continue
            tried.add(key)
            peers = self._peers(part)
            where = part.attempt.region + (f" and {len(peers)} alike" if peers else "")
            self.tell(Progress(stage, detail=f"{part.attempt.title} in {where}"))
            # All that are alike at once, since each trial costs a conversion; one by one if that does not do.
            for group in ([part, *peers], [part]) if peers else ([part],):
                outcome = self._try(group)
                if outcome.proven or len(group) == 1:
                    break
            if self._kept(group, outcome):
                break
        self.tell(Progress(stage, state="done"))

    def _kept(self, group: Sequence[Part], outcome: Tried) -> bool:
        """Notes what a trial came to, and keeps its replacements if all of them are proven."""
        for part, attempt in zip(group, outcome.attempts, strict=True):
            part.case.attempts.append(attempt)
        if not outcome.proven or outcome.record is None:
            return False
        for part in group:
            case, changes = part.case, part.replacement.changes
            self.cases.setdefault(key_of(case.culprit), case)
            self.before.setdefault(case.culprit.block, (self.model, self.last, len(self.steps)))
            case.changes = tuple(ChangeRecord(c.operator, c.source, c.how, c.exponent) for c in changes)
            case.limits, case.fixed = part.rewrite.limits, True
        self.steps += [part.step for part in group]
        self.model, self.last = outcome.model, outcome.record
        self._close_what_is_right(group[0], outcome.attempts[0])
        return True

    def _close_what_is_right(self, part: Part, attempt: Attempt) -> None:
        """What was given up may come right with the cure of another: an output that is a block's is one tensor."""
        for case in self.cases.values():
            if case.fixed or not self._is_right(case):
                continue
            error, ratio = block_errors(self.last, case.culprit.block)
            case.attempts.append(replace(attempt, reached=Reached.PROVEN, block_error=error, block_ratio=ratio))
            case.changes, case.limits = part.case.changes, part.rewrite.limits
            case.fixed = True

    def _is_right(self, case: Case) -> bool:
        """Whether the last run no longer finds what was wrong."""
        culprit = case.culprit
        if culprit.cause is Cause.REJECTED:
            return all(key_of(c) != key_of(culprit) for c in faults_of(self.last))
        left = [c for c in self.last.culprits if c.block == culprit.block]
        return not left and right_in(self.last, culprit.block)

    def _give_up(self, block: str) -> None:
        """Takes back what was done for a block that does not come right: half a cure is none."""
        model, last, steps = self.before.get(block, (self.model, self.last, len(self.steps)))
        if all(within(step.path, block.split("@")[0]) for step in self.steps[steps:]):
            self.model, self.last = model, last
            del self.steps[steps:]

    def _candidates(self, case: Case) -> Iterator[Part]:
        from bisect_litert.rewrites.catalogue import fitting
        from bisect_litert.rewrites.contract import CannotRewrite

        paths = region_paths(self.model.module, case.culprit)
        regions = self._regions(case.culprit, paths)
        for path in paths:
            for rewrite in fitting(case.culprit.cause):
                try:
                    for replacement in rewrite.propose(regions[path]):
                        yield Part(case, regions[path], rewrite, replacement)
                except CannotRewrite as error:
                    attempt = Attempt(rewrite.name, rewrite.title, path or "(model)", Reached.NO_FIT, str(error))
                    case.attempts.append(attempt)

    def _regions(self, culprit: Culprit, paths: Sequence[str]) -> dict[str, Region]:
        from bisect_litert.rewrites.region import Region, capture

        calls = capture(self.model.module, self.model.args, self.model.kwargs, paths, self.request.seed)
        refused = (culprit.kind,) if culprit.cause is Cause.REJECTED else ()
        guilty = tuple(op.type for op in culprit.ops if op.index == culprit.op or op.index in culprit.region)
        return {
            path: Region(
                path=path,
                module=self.model.module.get_submodule(path),
                calls=calls[path],
                cause=culprit.cause,
                kind=culprit.kind,
                lines=(culprit.source,) if culprit.source else (),
                ops=guilty or refused,
            )
            for path in paths
        }

    def _peers(self, part: Part) -> list[Part]:
        """The same rewrite for the other culprits of the same cause whose module at that place is of the same class."""
        from bisect_litert.rewrites.contract import CannotRewrite

        culprit, path = part.case.culprit, part.region.path
        block = culprit.block.split("@")[0]
        if not within(path, block):
            return []
        modules = dict(self.model.module.named_modules())
        found: list[Part] = []
        for other in faults_of(self.last):
            place = other.block.split("@")[0] + path[len(block) :]
            alike = (other.cause, other.kind) == (culprit.cause, culprit.kind) and key_of(other) not in self.cases
            if not alike or type(modules.get(place)) is not type(part.region.module):
                continue
            if place == path or any(p.region.path == place for p in found):
                continue
            try:
                proposals = part.rewrite.propose(self._regions(other, [place])[place])
                wanted = next((r for r in proposals if r.title == part.replacement.title), None)
            except CannotRewrite:
                continue
            if wanted is not None:
                case = Case(other, all(key_of(other) != key_of(c) for c in faults_of(self.first)), self.last)
                found.append(Part(case, self._regions(other, [place])[place], part.rewrite, wanted))
        return found

    def _try(self, group: Sequence[Part]) -> Tried:
        attempts = tuple(part.attempt for part in group)
        model = self.model

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
            record, note = trial.bisected(model, request, self.last)
        except BisectError as error:
            return ended(Reached.CONVERSION, error.message)
        self.notes += [f"With {attempts[0].title}, in {attempts[0].region}: {note}"] if note else []
        judged = tuple(self._judged(part, a, record) for part, a in zip(group, attempts, strict=True))
        return Tried(judged, model, record)

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
            new = [c for c in record.culprits if key_of(c) not in {key_of(k) for k in self.last.culprits}]
            if new:
                return wrong(f"{new[0].block} goes wrong with it: {new[0].cause}")
            refused = [c for c in faults_of(record) if key_of(c) == key_of(culprit)]
            return wrong(refused[0].evidence[0]) if refused else replace(attempt, reached=Reached.PROVEN)
        # Another fault of the block that shows only now is one fault less all the same.
        here = [c for c in record.culprits if c.block == culprit.block]
        same = [c for c in here if key_of(c) in self.cases or not another(culprit, part.case.before, c, record)]
        if same or (record.verdict.diverged and not record.culprits):
            return wrong(same[0].evidence[0] if same and same[0].evidence else record.verdict.summary)
        if here:
            return replace(attempt, reached=Reached.FURTHER, detail=f"then {place_of(here[0])}: {here[0].cause}")
        if not right_in(record, culprit.block):
            return wrong(f"{culprit.block} is no block any more, and the model still diverges")
        return replace(attempt, reached=Reached.PROVEN)

    def _closed(self, case: Case) -> CulpritFix:
        culprit = case.culprit
        error, ratio = block_errors(case.before, culprit.block)
        fixed = case.fixed and self._is_right(case)
        return CulpritFix(
            block=culprit.block,
            cause=culprit.cause,
            kind=culprit.kind,
            place=place_of(culprit),
            uncovered=case.uncovered,
            outcome=Outcome.FIXED if fixed else Outcome.UNFIXED,
            why_not="" if fixed else self._why_not(case),
            before_error=error,
            before_ratio=ratio,
            attempts=tuple(case.attempts),
            changes=case.changes,
            limits=case.limits if fixed else "",
        )

    def _why_not(self, case: Case) -> str:
        block = case.culprit.block
        behind = [c for key, c in self.cases.items() if key[0] == block and c.uncovered and not c.fixed]
        if case.fixed and behind:
            return f"behind it lies {behind[0].culprit.cause}, which is not fixed"
        tried = [a.detail for a in case.attempts if a.reached is not Reached.NO_FIT]
        why = tried[-1] if tried else "; ".join(dict.fromkeys(a.detail for a in case.attempts))
        return why or f"no rewrite is known for {case.culprit.cause} here"
