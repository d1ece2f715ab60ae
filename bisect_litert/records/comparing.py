"""Two runs, before and after: what a change in the model, the runtime or the device did, block by block. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf, isfinite, isnan

from bisect_litert.block_record import BlockResult, Comparison
from bisect_litert.record import Culprit, RunRecord, Settings
from bisect_litert.vocabulary import Cause, Word

SAME_WITHIN = 2.0
"""Two errors closer than this factor count as the same: fp16 rounding differs by as much between devices."""
NEGLIGIBLE = 2.0**-11
"""Errors below half an fp16 unit are not worth a word."""


class Change(Word):
    """What became of a block."""

    FIXED = "fixed"
    """A culprit before, and none now."""
    NEW = "new culprit"
    KEPT = "still a culprit"
    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    ONLY_BEFORE = "only before"
    ONLY_AFTER = "only after"
    UNKNOWN = "unknown"
    """Not measured in one of the two."""


@dataclass(frozen=True, slots=True)
class BlockChange:
    """One block in both runs; a side is None where it has no partner."""

    name: str
    before: BlockResult | None
    after: BlockResult | None
    cumulative: tuple[float, float]
    """Relative L2 error against torch before and after; nan where it is not known."""
    local: tuple[float, float]
    change: Change


@dataclass(frozen=True, slots=True)
class Fact:
    """Something other than an error that differs between the runs."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class RunDiff:
    """What became of a run."""

    before: RunRecord
    after: RunRecord
    blocks: tuple[BlockChange, ...]
    """In the order of the later run; blocks that only the earlier one has stand where they stood."""
    facts: tuple[Fact, ...]
    fixed: tuple[Culprit, ...]
    new: tuple[Culprit, ...]
    kept: tuple[tuple[Culprit, Culprit], ...]
    moved: tuple[tuple[Culprit, Culprit], ...]
    """Gone from one block, and there with the same cause at another; both runs have both blocks."""
    gone: tuple[Culprit, ...]
    """Of blocks that the later run does not have: nobody can say whether they are fixed."""

    @property
    def unmatched(self) -> tuple[BlockChange, ...]:
        """Blocks that only one of the runs has."""
        return tuple(b for b in self.blocks if b.change in (Change.ONLY_BEFORE, Change.ONLY_AFTER))

    @property
    def worse(self) -> bool:
        """Whether the later run has a culprit that the earlier one has not."""
        return bool(self.new or self.moved)


def compare_runs(*, before: RunRecord, after: RunRecord) -> RunDiff:
    """Compares two runs; blocks are matched by name."""
    old, new = {b.name: b for b in before.blocks}, {b.name: b for b in after.blocks}
    was, now = {c.block: c for c in before.culprits}, {c.block: c for c in after.culprits}
    rows = []
    for name in _merged(list(old), list(new)):
        a, b = old.get(name), new.get(name)
        cumulative = (_level(before, a, "cumulative"), _level(after, b, "cumulative"))
        local = (_level(before, a, "local"), _level(after, b, "local"))
        change = _change(a, b, name in was, name in now, cumulative)
        rows.append(BlockChange(name, a, b, cumulative, local, change))
    gone = [c for name, c in was.items() if name not in now]
    come = [c for name, c in now.items() if name not in was]
    both = old.keys() & new.keys()
    moved = _moves([c for c in gone if c.block in both], [c for c in come if c.block in both])
    from_, to = {a.block for a, _ in moved}, {b.block for _, b in moved}
    return RunDiff(
        before=before,
        after=after,
        blocks=tuple(rows),
        facts=tuple(_facts(before, after)),
        fixed=tuple(c for c in gone if c.block in new and c.block not in from_),
        new=tuple(c for c in come if c.block not in to),
        kept=tuple((was[name], now[name]) for name in was if name in now),
        moved=tuple(moved),
        gone=tuple(c for c in gone if c.block not in new),
    )


def headline(diff: RunDiff) -> str:
    """Returns what changed in one sentence."""
    parts = [_counted(len(group), word) for group, word in _groups(diff) if group]
    before, after = diff.before.verdict, diff.after.verdict
    if before.cause is not after.cause:
        said = f"The verdict went from {before.cause} to {after.cause}"
    else:
        said = f"The verdict is {after.cause} in both"
    return f"{said}: {', '.join(parts)}." if parts else f"{said}."


def _groups(diff: RunDiff) -> list[tuple[Sequence[object], str]]:
    return [
        (diff.fixed, "fixed"),
        (diff.new, "new"),
        (diff.moved, "moved"),
        (diff.kept, "still there"),
        (diff.gone, "gone with its block"),
    ]


def _counted(n: int, word: str) -> str:
    return f"{n} culprit{'s' if n > 1 else ''} {word}"


def _merged(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Returns all names in the new order, each old one that is gone behind what it followed."""
    names = list(new)
    known = set(new)
    at = {name: i for i, name in enumerate(names)}
    behind: dict[int, list[str]] = {}
    place = -1
    for name in old:
        if name in known:
            place = at[name]
        else:
            behind.setdefault(place, []).append(name)
    merged = list(behind.get(-1, ()))
    for index, name in enumerate(names):
        merged += [name, *behind.get(index, ())]
    return merged


def _change(
    a: BlockResult | None, b: BlockResult | None, was: bool, now: bool, cumulative: tuple[float, float]
) -> Change:
    if a is None or b is None:
        return Change.ONLY_AFTER if a is None else Change.ONLY_BEFORE
    if was or now:
        return Change.KEPT if was and now else (Change.FIXED if was else Change.NEW)
    before, after = cumulative
    if isnan(before) or isnan(after):
        return Change.UNKNOWN
    if max(before, after) <= NEGLIGIBLE or before == after:
        return Change.SAME
    factor = max(after, NEGLIGIBLE) / max(before, NEGLIGIBLE) if isfinite(before) else 0.0
    if factor > SAME_WITHIN:
        return Change.WORSE
    return Change.BETTER if factor < 1 / SAME_WITHIN else Change.SAME


def _level(record: RunRecord, block: BlockResult | None, kind: str) -> float:
    """Returns a block's error in the run under test: inf where something non-finite is new, nan where unknown."""
    errors = block.errors.get(record.judged) if block else None
    comparison: Comparison | None = getattr(errors, kind) if errors else None
    if comparison is None:
        return float("nan")
    return comparison.relative_l2 if comparison.finite_agreement else inf


def _moves(gone: Sequence[Culprit], come: Sequence[Culprit]) -> list[tuple[Culprit, Culprit]]:
    """Pairs culprits of one cause where that cause left as many blocks as it came to; else nobody can say which went
    where."""
    left, arrived = Counter(c.cause for c in gone), Counter(c.cause for c in come)
    moves: list[tuple[Culprit, Culprit]] = []
    for cause in dict.fromkeys(c.cause for c in gone):
        if left[cause] == arrived[cause]:
            pairs = zip([c for c in gone if c.cause is cause], [c for c in come if c.cause is cause], strict=True)
            moves += list(pairs)
    return moves


def _facts(before: RunRecord, after: RunRecord) -> list[Fact]:
    pairs: list[tuple[str, str, str]] = [
        ("model", before.model, after.model),
        ("target", before.target, after.target),
        ("adapter", before.placement.adapter or "none", after.placement.adapter or "none"),
        ("placement", before.placement.line, after.placement.line),
    ]
    pairs += _pairs(before.environment, after.environment)
    inputs = [{i.name: f"{list(i.shape)} {i.dtype}" for i in record.inputs} for record in (before, after)]
    pairs += [(f"input {name}", a, b) for name, a, b in _pairs(*inputs)]
    for field in fields(Settings):
        a, b = getattr(before.settings, field.name), getattr(after.settings, field.name)
        pairs.append((field.name.replace("_", " "), _written(a), _written(b)))
    return [Fact(name, a, b) for name, a, b in pairs if a != b]


def _pairs(before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[str, str, str]]:
    return [(name, before.get(name, "none"), after.get(name, "none")) for name in dict.fromkeys([*before, *after])]


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


__all__ = ["BlockChange", "Cause", "Change", "Fact", "RunDiff", "compare_runs", "headline"]
