"""What became of each culprit, once no more is tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bisect_litert.fixing.faults import block_errors, faults_of, key_of, place_of, right_in, same_fault
from bisect_litert.fixing.parts import Case
from bisect_litert.record import RunRecord
from bisect_litert.records.fix_record import Attempt, CulpritFix, Outcome, Reached
from bisect_litert.vocabulary import Cause


def closed(cases: Sequence[Case], first: RunRecord, last: RunRecord) -> tuple[CulpritFix, ...]:
    """Returns what became of the culprits; refusals of a block that were tried as one are one.

    Args:
        cases: In the order they were gone into.
        first: The run that was fixed.
        last: The bisection of the model with all that was proven.
    """
    found: list[CulpritFix] = []
    for one in (_closed(case, cases, first, last) for case in cases):
        like = next((i for i, other in enumerate(found) if _one_refusal(one, other)), None)
        if like is None:
            found.append(one)
            continue
        kinds = ", ".join(dict.fromkeys(f"{found[like].kind}, {one.kind}".split(", ")))
        found[like] = replace(found[like], kind=kinds, place=f"{kinds} in {one.block}")
    return tuple(found)


def is_right(case: Case, last: RunRecord) -> bool:
    """Whether a run no longer finds what was wrong."""
    culprit = case.culprit
    if culprit.cause is Cause.REJECTED:
        return all(key_of(c) != key_of(culprit) for c in faults_of(last))
    left = [c for c in last.culprits if c.block == culprit.block]
    return not left and right_in(last, culprit.block)


def _closed(case: Case, cases: Sequence[Case], first: RunRecord, last: RunRecord) -> CulpritFix:
    culprit = case.culprit
    opened = {key_of(other.culprit) for other in cases if other is not case}
    listed = next((c for c in faults_of(first) if same_fault(c, culprit) and key_of(c) not in opened), None)
    # Where the ones before it hide a fault, its block's row of that run says nothing of it.
    hidden = culprit.hidden or (listed is not None and listed.hidden)
    error, ratio = (culprit.local, culprit.ratio) if culprit.hidden else block_errors(case.before, culprit.block)
    fixed = case.fixed and is_right(case, last)
    kind = ", ".join(case.refused) or culprit.kind
    return CulpritFix(
        block=culprit.block,
        cause=culprit.cause,
        kind=kind,
        place=place_of(replace(culprit, kind=kind)),
        uncovered=listed is None,
        outcome=Outcome.FIXED if fixed else Outcome.UNFIXED,
        why_not="" if fixed else _why_not(case, cases),
        before_error=error,
        before_ratio=ratio,
        attempts=tuple(case.attempts),
        changes=case.changes,
        limits=case.limits if fixed else "",
        hidden=hidden,
    )


def _why_not(case: Case, cases: Sequence[Case]) -> str:
    block = case.culprit.block
    behind = [c for c in cases if c.culprit.block == block and c.uncovered and not c.fixed]
    if case.fixed and behind:
        return f"behind it lies {behind[0].culprit.cause}, which is not fixed"
    tried = [a.detail for a in case.attempts if a.reached is not Reached.NO_FIT]
    why = tried[-1] if tried else "; ".join(dict.fromkeys(a.detail for a in case.attempts))
    return why or f"no rewrite is known for {case.culprit.cause} here"


def _one_refusal(one: CulpritFix, other: CulpritFix) -> bool:
    """Whether two entries tell of the same ops of a block, refused together and rewritten together."""
    refusals = one.cause is other.cause is Cause.REJECTED and one.block == other.block
    return refusals and one.outcome is other.outcome and _tried(one) == _tried(other)


def _tried(fix: CulpritFix) -> list[tuple[str, str]] | tuple[str, str]:
    def place(attempt: Attempt) -> tuple[str, str]:
        return attempt.title, attempt.region

    done = fix.fix if fix.outcome is Outcome.FIXED else None
    return place(done) if done else [place(a) for a in fix.attempts]
