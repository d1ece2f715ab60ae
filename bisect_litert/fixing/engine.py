"""From diagnosis to a proven cure: rewrites are tried on a copy of the model until the GPU's result is right.

Culprits are taken in the order of the data flow, on top of what was fixed before. A replacement counts only when
torch computes the same with it, in fp32 and in fp64, and a bisection of the changed model no longer finds the block.
What that run uncovers is gone on to, up to `MAX_ROUNDS`.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bisect_litert.bisection import bisect_loaded
from bisect_litert.errors import BisectError
from bisect_litert.fix_record import Attempt, ChangeRecord, CulpritFix, FixRecord, Outcome, Reached
from bisect_litert.fixing import trial
from bisect_litert.preparation import LoadedModel
from bisect_litert.record import Culprit, Mark, RunName, RunRecord
from bisect_litert.request import BisectRequest, OnProgress, Progress

if TYPE_CHECKING:
    from bisect_litert.rewrites.contract import Replacement, Rewrite
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
    truth: trial.Truth


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


@dataclass
class _Case:
    """One culprit being worked on."""

    culprit: Culprit
    uncovered: bool
    before: RunRecord
    attempts: list[Attempt] = field(default_factory=list)
    changes: tuple[ChangeRecord, ...] = ()
    limits: str = ""
    fixed: bool = False


class _Fixing:
    def __init__(
        self, loaded: LoadedModel, found: RunRecord, request: BisectRequest, on_progress: OnProgress, work: Path
    ) -> None:
        self.original, self.first, self.request, self.tell, self.work = loaded, found, request, on_progress, work
        self.model, self.last = loaded, found
        self.steps: list[trial.Step] = []
        self.cases: dict[tuple[str, ...], _Case] = {}
        self.before: dict[str, tuple[LoadedModel, RunRecord, int]] = {}
        """Model, its bisection and the number of steps before the first step made for a block."""
        self.trials = 0

    def run(self) -> Fixed:
        started = time.monotonic()
        self.truth = trial.truth_of(self.original)
        while len(self.cases) < MAX_ROUNDS:
            culprit = next((c for c in self.last.culprits if _key(c) not in self.cases), None)
            if culprit is None:
                break
            uncovered = all(_key(culprit) != _key(c) for c in self.first.culprits)
            case = self.cases[_key(culprit)] = _Case(culprit, uncovered, self.last)
            self._work_on(case)
            if not case.fixed:
                self._give_up(culprit.block)
        torch32, torch64 = trial.differences(self.model, self.truth)
        record = FixRecord(
            model=self.first.model,
            target=self.first.target,
            culprits=tuple(self._closed(case) for case in self.cases.values()),
            diverged_before=self.first.verdict.diverged,
            diverged_after=self.last.verdict.diverged,
            output_before=output_error(self.first),
            output_after=output_error(self.last),
            torch32=torch32,
            torch64=torch64,
            costs=None,
            checked="",
            seconds=time.monotonic() - started,
            environment=self.first.environment,
        )
        return Fixed(record, self.model, tuple(self.steps), self.last, self.original, self.truth)

    def _work_on(self, case: _Case) -> None:
        self.tell(Progress(f"fix {case.culprit.block}", state="start", detail=case.culprit.cause))
        tried: set[tuple[str, str]] = set()
        trials = 0
        for region, rewrite, replacement in self._candidates(case):
            key = (region.path, replacement.source + repr(sorted(replacement.arguments.items())))
            if key in tried:
                continue
            tried.add(key)
            trials += 1
            if trials > MAX_TRIALS:
                break
            title = replacement.title or rewrite.title
            self.tell(Progress(f"fix {case.culprit.block}", detail=f"{title} in {region.path or 'the model'}"))
            attempt, step, model, record = self._try(case, region, rewrite, replacement)
            case.attempts.append(attempt)
            if attempt.reached is Reached.PROVEN and record is not None:
                self.before.setdefault(case.culprit.block, (self.model, self.last, len(self.steps)))
                self.steps.append(step)
                self.model, self.last = model, record
                case.changes = tuple(ChangeRecord(c.operator, c.source, c.how, c.exponent) for c in replacement.changes)
                case.limits, case.fixed = rewrite.limits, True
                break
        self.tell(Progress(f"fix {case.culprit.block}", state="done"))

    def _give_up(self, block: str) -> None:
        """Takes back what was done for a block that does not come right: half a cure is none."""
        model, last, steps = self.before.get(block, (self.model, self.last, len(self.steps)))
        if all(_within(step.path, block.split("@")[0]) for step in self.steps[steps:]):
            self.model, self.last = model, last
            del self.steps[steps:]

    def _candidates(self, case: _Case) -> Iterator[tuple[Region, Rewrite, Replacement]]:
        from bisect_litert.rewrites.catalogue import fitting
        from bisect_litert.rewrites.contract import CannotRewrite
        from bisect_litert.rewrites.region import Region, capture

        culprit = case.culprit
        paths = region_paths(self.model.module, culprit)
        calls = capture(self.model.module, self.model.args, self.model.kwargs, paths, self.request.seed)
        for path in paths:
            region = Region(
                path=path,
                module=self.model.module.get_submodule(path),
                calls=calls[path],
                cause=culprit.cause,
                kind=culprit.kind,
                lines=(culprit.source,) if culprit.source else (),
                ops=tuple(op.type for op in culprit.ops if op.index == culprit.op or op.index in culprit.region),
            )
            for rewrite in fitting(culprit.cause):
                try:
                    for replacement in rewrite.propose(region):
                        yield region, rewrite, replacement
                except CannotRewrite as error:
                    case.attempts.append(
                        Attempt(rewrite.name, rewrite.title, path or "(model)", Reached.NO_FIT, str(error))
                    )

    def _try(
        self, case: _Case, region: Region, rewrite: Rewrite, replacement: Replacement
    ) -> tuple[Attempt, trial.Step, LoadedModel, RunRecord | None]:
        step = trial.Step(region.path, replacement)
        attempt = Attempt(rewrite.name, replacement.title or rewrite.title, region.path or "(model)", Reached.TORCH, "")
        model = self.model
        try:
            model = trial.replaced(self.model, step)
            torch32, torch64 = trial.differences(model, self.truth)
        except Exception as error:
            detail = error.message if isinstance(error, BisectError) else f"{type(error).__name__}: {error}"
            return replace(attempt, detail=detail), step, model, None
        attempt = replace(attempt, torch32=torch32, torch64=torch64)
        said = self.truth.complaint(torch32, torch64)
        if said:
            return replace(attempt, detail=said), step, model, None
        self.trials += 1
        try:
            again = replace(self.request, out=self.work / f"trial-{self.trials}", force=True)
            record = bisect_loaded(model, again)
        except BisectError as error:
            return replace(attempt, reached=Reached.CONVERSION, detail=error.message), step, model, None
        return self._judged(case, attempt, record), step, model, record

    def _judged(self, case: _Case, attempt: Attempt, record: RunRecord) -> Attempt:
        error, ratio = block_errors(record, case.culprit.block)
        attempt = replace(attempt, block_error=error, block_ratio=ratio, output_error=output_error(record))
        if record.target != self.first.target:
            said = f"it ran on {record.target}, where the fault was found on {self.first.target}"
            return replace(attempt, reached=Reached.STILL_WRONG, detail=said)
        # Another fault of the block that shows only now is one fault less all the same.
        same = [c for c in record.culprits if c.block == case.culprit.block and _key(c) in self.cases]
        if same or (record.verdict.diverged and not record.culprits):
            said = same[0].evidence[0] if same and same[0].evidence else record.verdict.summary
            return replace(attempt, reached=Reached.STILL_WRONG, detail=said)
        return replace(attempt, reached=Reached.PROVEN)

    def _closed(self, case: _Case) -> CulpritFix:
        culprit = case.culprit
        error, ratio = block_errors(case.before, culprit.block)
        left = [c for c in self.last.culprits if c.block == culprit.block]
        fixed = case.fixed and not left and right_in(self.last, culprit.block)
        tried = [a for a in case.attempts if a.reached is not Reached.NO_FIT]
        why = ""
        if not fixed:
            after = [c for key, c in self.cases.items() if key[0] == culprit.block and c.uncovered and not c.fixed]
            why = f"behind it lies {after[0].culprit.cause}, which is not fixed" if case.fixed and after else ""
            why = why or tried[-1].detail if tried else "; ".join(dict.fromkeys(a.detail for a in case.attempts))
            why = why or f"no rewrite is known for {culprit.cause} here"
        return CulpritFix(
            block=culprit.block,
            cause=culprit.cause,
            kind=culprit.kind,
            place=place_of(culprit),
            uncovered=case.uncovered,
            outcome=Outcome.FIXED if fixed else Outcome.UNFIXED,
            why_not=why,
            before_error=error,
            before_ratio=ratio,
            attempts=tuple(case.attempts),
            changes=case.changes,
            limits=case.limits if fixed else "",
        )


def _key(culprit: Culprit) -> tuple[str, ...]:
    """What tells one fault from another: op indices do not, since a rewrite moves them."""
    kinds = [op.type for op in culprit.ops if op.index == culprit.op]
    return (culprit.block, culprit.cause, culprit.kind, culprit.module, culprit.source, *kinds)


def region_paths(model: object, culprit: Culprit) -> tuple[str, ...]:
    """Returns the modules a culprit may be rewritten in: the one that owns its op, those around it up to the block, and
    the one around the block, where what leaves the block is used."""
    names = dict(model.named_modules())  # type: ignore[attr-defined]
    block = culprit.block.split("@")[0]
    if block not in names:
        return ("",)
    start = culprit.module if culprit.module in names and _within(culprit.module, block) else block
    found = [start]
    while found[-1] != block:
        found.append(found[-1].rpartition(".")[0])
    above = block
    while above:
        above = above.rpartition(".")[0]
        if _has_forward(names[above]):
            found.append(above)
            break
    return tuple(path for path in found if _has_forward(names[path]))


def _within(path: str, block: str) -> bool:
    return path == block or path.startswith(block + ".")


def _has_forward(module: object) -> bool:
    return getattr(type(module).forward, "__name__", "") != "_forward_unimplemented"  # type: ignore[attr-defined]


def place_of(culprit: Culprit) -> str:
    """Returns where a culprit's op comes from, in a few words."""
    kinds = [op.type for op in culprit.ops if op.index == culprit.op]
    where = ", ".join(part for part in (culprit.module or culprit.block, culprit.source) if part)
    return f"{kinds[0]} in {where}" if kinds else where


def block_errors(record: RunRecord, block: str) -> tuple[float, float]:
    """Returns a block's local relative L2 error on the target, and its ratio; nan where it was not measured."""
    row = next((b for b in record.blocks if b.name == block), None)
    if row is None:
        return nan, nan
    run = RunName.GPU if RunName.GPU in row.errors else RunName.FP16
    local = row.errors[run].local if run in row.errors else None
    if local is None or not local.finite_agreement:
        return nan, row.ratio
    return local.relative_l2, row.ratio


def right_in(record: RunRecord, block: str) -> bool:
    """Whether a block was measured and is no culprit; where it is gone, whether the model as a whole is right."""
    row = next((b for b in record.blocks if b.name == block), None)
    if row is None or row.mark is Mark.UNKNOWN:
        return not record.verdict.diverged
    return row.mark is not Mark.CULPRIT


def output_error(record: RunRecord) -> float:
    """Returns the largest relative L2 error of a model output; nan when one is not finite or none was measured."""
    errors = []
    for output in record.outputs:
        comparison = output.untapped or output.comparison
        if comparison is None:
            continue
        errors.append(comparison.relative_l2 if comparison.finite_agreement else nan)
    return float(np.max(errors)) if errors else nan
