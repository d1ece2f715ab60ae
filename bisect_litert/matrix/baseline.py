"""What changed against an earlier matrix: new faults, fixed ones, worse by a factor, refused now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isnan

from bisect_litert.matrix.table import FAILED, JUDGED, Cell, Change, ChangeKind, Code, Matrix
from bisect_litert.reports.formats import number

FACTOR = 2.0
"""Two errors closer than this factor count as the same: devices round differently by as much."""
NEGLIGIBLE = 2.0**-11
"""Errors below half an fp16 unit are not worth a word."""
_ACCEPTABLE = (Code.OK, Code.PARTIAL)


@dataclass(frozen=True, slots=True)
class Baseline:
    """An earlier matrix to hold the new one against."""

    matrix: Matrix
    factor: float = FACTOR

    def changes(self, now: Matrix) -> tuple[Change, ...]:
        """Returns what changed, cell by cell, in the order of the new matrix; cells not run yet are left out."""
        found: list[Change] = []
        for cell in now.cells:
            if not cell.finished:
                continue
            before = self.matrix.at(*cell.key)
            if before is None or not before.finished:
                found.append(Change(*cell.key, ChangeKind.ADDED, "not in the baseline"))
            else:
                found += self._changes(before, cell)
        gone = [c for c in self.matrix.cells if c.finished and now.at(*c.key) is None]
        return (*found, *(Change(*c.key, ChangeKind.GONE, f"was {c.code}") for c in gone))

    def _changes(self, before: Cell, now: Cell) -> Iterator[Change]:
        """Yields one change per cell, the gravest, and none where all is as it was."""
        key = now.key
        if now.code in (Code.SKIP, Code.T_SKIP):
            if before.code not in (Code.SKIP, Code.T_SKIP):
                yield Change(*key, ChangeKind.NOT_TESTED, f"{now.code}, was {before.code}")
        elif now.code in FAILED:
            if before.code not in FAILED:
                yield Change(*key, ChangeKind.FAILS, f"{now.code}, was {before.code}")
        elif now.code is Code.REJECT:
            if before.code is not Code.REJECT:
                yield Change(*key, ChangeKind.REFUSED, f"the GPU refuses it, was {before.code}")
        elif now.code is Code.DIFF:
            yield from self._other_fault(before, now)
        elif before.code is Code.DIFF:
            yield Change(*key, ChangeKind.FIXED, f"was DIFF {before.cause} in {before.block or 'the model'}")
        elif before.code not in _ACCEPTABLE:
            yield Change(*key, ChangeKind.FIXED, f"was {before.code}")
        elif (refused := _refused(before, now)) is not None:
            yield refused
        elif (worse := self._level(before, now)) is not None:
            yield worse

    def _other_fault(self, before: Cell, now: Cell) -> Iterator[Change]:
        what = f"{now.cause} in {now.block or 'the model'}"
        if before.code is not Code.DIFF:
            yield Change(*now.key, ChangeKind.NEW, f"{what}, was {before.code}")
        elif (before.cause, before.block) != (now.cause, now.block) or now.more > before.more:
            was = f"{before.cause} in {before.block or 'the model'}" + (
                f" and {before.more} more" if before.more else ""
            )
            yield Change(
                *now.key, ChangeKind.OTHER, what + (f" and {now.more} more" if now.more else "") + f", was {was}"
            )
        elif (worse := self._level(before, now)) is not None:
            yield worse

    def _level(self, before: Cell, now: Cell) -> Change | None:
        """Whether the error has grown or shrunk by more than the factor."""
        if before.code not in JUDGED:
            return None
        a, b = _error(before), _error(now)
        if isnan(a) or isnan(b):
            return None
        if b == inf or a == inf:
            factor = 1.0 if a == b else (inf if b == inf else 0.0)
        else:
            factor = max(b, NEGLIGIBLE) / max(a, NEGLIGIBLE)
        said = f"{number(b)}, was {number(a)}"
        if factor > self.factor:
            return Change(*now.key, ChangeKind.WORSE, said)
        return Change(*now.key, ChangeKind.BETTER, said) if factor < 1 / self.factor else None


def _refused(before: Cell, now: Cell) -> Change | None:
    """Whether fewer of the ops run on the GPU than did."""
    if not before.ops or not now.ops or now.gpu_ops == now.ops:
        return None
    if now.gpu_ops / now.ops < before.gpu_ops / before.ops:
        said = f"{now.gpu_ops} of {now.ops} ops on the GPU, were {before.gpu_ops} of {before.ops}"
        return Change(*now.key, ChangeKind.REFUSED, said)
    return None


def _error(cell: Cell) -> float:
    return inf if cell.nonfinite else cell.relative_l2
