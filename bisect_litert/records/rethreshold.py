"""Other tolerances for a run that is over: marks, culprits and verdict again, from the numbers that the record keeps.

Pure functions. What the kept numbers cannot decide stays as the run left it, and is said: a run heals its culprits and
looks again, and of that second look only the conclusions are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite, isnan
from typing import Any

from bisect_litert.block_record import BlockResult
from bisect_litert.errors import UsageError
from bisect_litert.measuring.limits import out_of_line
from bisect_litert.record import Culprit, RunRecord, Settings, Verdict
from bisect_litert.search.culprits import Reading, cause_of, faulty, limit, misconverted
from bisect_litert.vocabulary import Cause, Mark, RunName

TOLERANCES = {
    "ratio": "ratio_limit",
    "output": "output_limit",
    "jump": "jump_limit",
    "conversion": "conversion_limit",
}
"""Short names of what can be changed, with the fields of `Settings` that hold it."""

_FIXED = (
    Cause.CRASH,
    Cause.HANG,
    Cause.REFERENCE,
    Cause.CANNOT_TEST,
    Cause.CPU_FALLBACK,
    Cause.TAP_EFFECT,
)
"""Causes that rest on no tolerance."""


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A record judged with other tolerances."""

    record: RunRecord
    changes: tuple[str, ...]
    """What is different now, a sentence each; empty when nothing is."""
    undecided: tuple[str, ...]
    """What only another run can tell, a sentence each."""


def parse(words: Sequence[str], settings: Settings) -> Settings:
    """Returns `settings` with tolerances changed as in ("ratio=20", "output=0.05").

    Raises:
        UsageError: A name that is none of `TOLERANCES`, or a value that is no positive number.
    """
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in TOLERANCES:
            raise UsageError(
                f"{word!r} is no tolerance.", hint=f"Write NAME=NUMBER with one of {', '.join(TOLERANCES)}: ratio=20."
            )
        settings = changed(settings, name, number(text, name))
    return settings


def changed(settings: Settings, name: str, value: float) -> Settings:
    """Returns `settings` with the tolerance of that short name set."""
    field: Any = {TOLERANCES[name]: value}
    return replace(settings, **field)


def number(text: str, name: str) -> float:
    """Returns the value of the tolerance `name` that `text` spells.

    Raises:
        UsageError: It is no number, or none that makes sense.
    """
    least = 1.0 if name in ("ratio", "jump") else 0.0
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value) or value < least or value == 0:
        kind = "a number of at least 1" if least else "a number above 0"
        raise UsageError(f"{text!r} is no value for {name}.", hint=f"Give {kind}.")
    return value


def differences(settings: Settings, others: Settings) -> list[str]:
    """Returns what was changed, in words: "ratio 20 (the run used 10)"."""
    pairs = [(name, getattr(settings, field), getattr(others, field)) for name, field in TOLERANCES.items()]
    return [f"{name} {new:g} (the run used {old:g})" for name, old, new in pairs if old != new]


def allowed(block: BlockResult, settings: Settings) -> float:
    """Returns the local relative L2 error from which a block is out of line; nan where nothing was measured."""
    reading = _reading(block, next(iter(block.errors), RunName.GPU))  # the run under test stands first
    return limit(reading, settings) if reading.expected is not None else float("nan")


def recompute(record: RunRecord, settings: Settings) -> Recomputed:
    """Judges a record's numbers with other tolerances.

    Args:
        record: As a run left it, with the settings it used.
        settings: Those to judge by.
    """
    if settings == record.settings:
        return Recomputed(record, (), ())
    if record.verdict.cause in _FIXED:
        said = f"The verdict ({record.verdict.cause}) rests on no tolerance."
        return Recomputed(replace(record, settings=settings), (), (said,))
    return _Judge(record, settings).judge()


def with_notes(record: RunRecord, settings: Settings) -> RunRecord:
    """Returns the record judged with other tolerances, with what changed and what stays open among its notes."""
    judged = recompute(record, settings)
    said = differences(record.settings, settings)
    if not said:
        return record
    notes = (
        f"Judged again from the stored numbers, with {', '.join(said)}.",
        *(judged.changes or ("Nothing changes with these tolerances.",)),
        *judged.undecided,
    )
    verdict = judged.record.verdict
    return replace(judged.record, verdict=replace(verdict, notes=(*notes, *verdict.notes)))


class _Judge:
    """One recomputation; `undecided` collects what it has to leave open."""

    def __init__(self, record: RunRecord, settings: Settings) -> None:
        self.record, self.old, self.new = record, record.settings, settings
        self.undecided: list[str] = []
        control = {run.status for run in record.runs if run.name == RunName.GPU_FP32.value}
        alone = bool(control - {"ok", "not needed"})
        self.readings = {
            block.name: replace(_reading(block, record.judged), uncontrolled=alone) for block in record.blocks
        }
        self.blocks = {block.name: block for block in record.blocks}
        self.order = {block.name: block.order for block in record.blocks}
        self.stored = {culprit.block: culprit for culprit in record.culprits}
        self.off_before = self._off(self.old)
        self.off = self._off(self.new)

    def judge(self) -> Recomputed:
        sure, digits = self._faults()
        found = sorted([*sure, *(digits if self._suffers(sure) else ())], key=self._place)
        if not found and self.off:
            jump = self._jump()
            found = [jump] if jump else []
        record = replace(
            self.record,
            settings=self.new,
            culprits=tuple(found),
            verdict=self._verdict(found),
            blocks=tuple(self._marked(block, found, digits) for block in self.record.blocks),
        )
        return Recomputed(record, tuple(self._changes(record)), tuple(dict.fromkeys(self.undecided)))

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _faults(self) -> tuple[list[Culprit], list[Culprit]]:
        """Returns faults that count by themselves, and those that count only where an output suffers."""
        sure: list[Culprit] = []
        digits: list[Culprit] = []
        for block in self.record.blocks:
            culprit = self._judged(block, bool(sure))
            if culprit is not None:
                (digits if _counts_with_output(culprit, self.readings[block.name]) else sure).append(culprit)
        # A culprit that names no block of the table has no numbers to judge it by.
        sure += [culprit for name, culprit in self.stored.items() if name not in self.blocks]
        return sure, digits

    def _judged(self, block: BlockResult, behind: bool) -> Culprit | None:
        reading, stored = self.readings[block.name], self.stored.get(block.name)
        before, now = _wrong(reading, self.old), _wrong(reading, self.new)
        if stored is not None and (stored.hidden or not before):
            if not stored.hidden and stored.cause is Cause.PRECISION_LOSS:
                return None  # a jump: looked for once the outputs are known
            self.undecided.append(
                f"{block.name} was found at healed inputs, whose numbers are not kept; it stays a culprit."
            )
            return stored
        if stored is not None:
            return stored if now else None
        if not now:
            return None
        if before:
            # The control runs cleared it, or no output suffered.
            noted = block.mark is Mark.NOTE and block.cause is not Cause.NONE
            return self._made(block, block.cause) if noted else None
        if behind or any(self.order[name] < block.order for name in self.stored if name in self.order):
            self.undecided.append(
                f"{block.name} is out of line now, but stands behind a culprit: only a run can tell whether it is "
                "wrong once that one is healed."
            )
            return None
        cause = cause_of(reading, self.new)
        return self._made(block, cause) if cause else None

    def _made(self, block: BlockResult, cause: Cause) -> Culprit:
        reading = self.readings[block.name]
        local = reading.cpu if cause is Cause.CONVERSION else reading.local
        level = f"{local.relative_l2:.3g}" if local else "unknown"
        most = self.new.conversion_limit if cause is Cause.CONVERSION else limit(reading, self.new)
        where = "On the CPU it" if cause is Cause.CONVERSION else "At its own inputs it"
        said = f"{where} is off by {level} (relative L2); with these tolerances the limit here is {most:.3g}."
        return Culprit(block.name, cause, "", (said,), "Run again with these tolerances for evidence and advice.")

    # -- outputs -------------------------------------------------------------------------------------------------------

    def _off(self, settings: Settings) -> bool:
        known = [output.comparison for output in self.record.outputs]
        return any(out_of_line(comparison, settings.output_limit) for comparison in known)

    def _suffers(self, sure: Sequence[Culprit]) -> bool:
        """Whether lost digits count: an output is out of line for which no other fault answers."""
        if not sure:
            return self.off
        lossy = [c for c in self.stored.values() if _counts_with_output(c, self.readings.get(c.block))]
        if self.off != self.off_before or self.off:
            self.undecided.append("What the outputs are off by once the other culprits are healed is not kept.")
        return bool(lossy) and self.off

    def _jump(self) -> Culprit | None:
        for block in self.record.blocks:
            total = self.readings[block.name].cumulative
            if total is None or isnan(block.amplification) or isnan(total.relative_l2):
                continue
            if block.amplification >= self.new.jump_limit and total.relative_l2 > self.new.output_limit:
                stored = self.stored.get(block.name)
                said = f"The error grows {block.amplification:.3g} times in this block, to {total.relative_l2:.3g}."
                advice = "Run again with these tolerances for evidence and advice."
                return stored or Culprit(block.name, Cause.PRECISION_LOSS, "", (said,), advice)
        return None

    # -- verdict -------------------------------------------------------------------------------------------------------

    def _verdict(self, found: Sequence[Culprit]) -> Verdict:
        stored = self.record.verdict
        cause = found[0].cause if found else self._without_culprit()
        same = [(c.block, c.cause) for c in found] == [(c.block, c.cause) for c in self.record.culprits]
        if same and cause is stored.cause:
            return stored
        if found:
            rest = f" So {'is' if len(found) == 2 else 'are'} {', '.join(c.block for c in found[1:])}." * (
                len(found) > 1
            )
            text = f"With these tolerances {found[0].block} is a culprit. {' '.join(found[0].evidence[:1])}{rest}"
            return Verdict(cause, True, text, found[0].advice, stored.notes)
        if cause is Cause.PRECISION_COMPOUNDING:
            text = "With these tolerances an output is out of line, and no block by itself is: the error compounds."
            return Verdict(cause, True, text, "Run again with these tolerances for advice.", stored.notes)
        if cause is Cause.REJECTED:
            return stored
        text = "With these tolerances every block and every output is in line."
        return Verdict(Cause.NONE, False, text, "Nothing to do.", stored.notes)

    def _without_culprit(self) -> Cause:
        if self.off:
            return Cause.PRECISION_COMPOUNDING
        return Cause.REJECTED if self.record.verdict.cause is Cause.REJECTED else Cause.NONE

    def _marked(self, block: BlockResult, found: Sequence[Culprit], digits: Sequence[Culprit]) -> BlockResult:
        causes = {c.block: c.cause for c in found}
        noted = {c.block: c.cause for c in digits}
        if block.name in causes:
            return replace(block, mark=Mark.CULPRIT, cause=causes[block.name])
        if block.name in noted:
            return replace(block, mark=Mark.NOTE, cause=noted[block.name])
        reading = self.readings[block.name]
        if reading.cumulative is None or reading.local is None:
            return block
        off = out_of_line(reading.cumulative, self.new.output_limit)
        mark = (Mark.AFTER if found else Mark.NOTE) if off else Mark.OK
        return replace(block, mark=mark, cause=Cause.NONE)

    def _changes(self, record: RunRecord) -> list[str]:
        was, now = self.record.verdict, record.verdict
        said = []
        if was.cause is not now.cause or was.diverged != now.diverged:
            said.append(f"The verdict is {now.cause} instead of {was.cause}.")
        names = [c.block for c in record.culprits]
        said += [f"{name} is no culprit any more." for name in self.stored if name not in names]
        said += [f"{name} is a culprit now." for name in names if name not in self.stored]
        return said

    def _place(self, culprit: Culprit) -> int:
        return self.order.get(culprit.block, len(self.order))


def _reading(block: BlockResult, run: RunName) -> Reading:
    """Returns a block's numbers as the search reads them; parents and sums inside are not kept."""
    errors = block.errors
    mine, half, cpu, fp32 = (errors.get(name) for name in (run, RunName.FP16, RunName.CPU, RunName.GPU_FP32))
    local = mine.local if mine else None
    shape = local or (mine.cumulative if mine else None)
    known = shape is not None and not isnan(block.expected)
    expected = replace(shape, relative_l2=block.expected, new_nonfinite=0, unwritten=0) if known and shape else None
    return Reading(
        tap=block.name,
        block=block.name,
        parents=(),
        cumulative=mine.cumulative if mine else None,
        local=local,
        expected=expected,
        half=half.local if half else None,
        allowance=block.allowance,
        cpu=cpu.local if cpu else None,
        fp32=fp32.local if fp32 else None,
        fp32_ran=fp32 is not None,
    )


def _wrong(reading: Reading, settings: Settings) -> bool:
    return faulty(reading, settings) or misconverted(reading, settings)


def _counts_with_output(culprit: Culprit, reading: Reading | None) -> bool:
    """Whether a fault is one of lost digits, or of small numbers that became zero."""
    if culprit.cause is Cause.PRECISION_LOSS:
        return True
    local = reading.local if reading else None
    return culprit.kind == "underflow" and local is not None and local.finite_agreement


assert set(TOLERANCES.values()) <= {field.name for field in fields(Settings)}
