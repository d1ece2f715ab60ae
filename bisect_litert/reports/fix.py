"""What a fix came to: for a terminal, and as Markdown."""

from __future__ import annotations

from math import isfinite, isinf, isnan
from pathlib import Path

from bisect_litert.records.fix_record import Attempt, Costs, CulpritFix, FixRecord, Outcome, Reached
from bisect_litert.reports import formats

REWRITES, PATCH = "rewrites.py", "fix.patch"
"""Files of a cure, as `FixRecord.files` calls them."""


def text(record: FixRecord, folder: Path | None = None, run: Path | None = None) -> str:
    """The answer on stdout.

    Args:
        record: What was tried.
        folder: Where the cure lies, to name it and what to do with it.
        run: The run folder that was fixed.
    """
    lines = [headline(record), ""]
    for culprit in record.culprits:
        lines += [*_culprit(culprit), ""]
    lines += _whole(record)
    if folder is not None:
        lines.append(f"{'files':10} {folder}/")
    lines += [
        f"{'' if i or folder else 'files':10} {name}: {what}" for i, (name, what) in enumerate(record.files.items())
    ]
    if folder is not None:
        lines += [f"{'' if i else 'next':10} {line}" for i, line in enumerate(_next(record, folder, run))]
    return "\n".join(lines).rstrip() + "\n"


def _next(record: FixRecord, folder: Path, run: Path | None) -> list[str]:
    """What to do with what was left behind."""
    lines = []
    if PATCH in record.files:
        lines.append(f"patch -p1 < {formats.quote(str((folder / PATCH).resolve()))}, in the model's folder; or")
    if REWRITES in record.files:
        lines.append(f"copy {folder / REWRITES} beside your code; with the weights loaded, before you convert:")
        lines.append("  from rewrites import apply; model = apply(model)")
    if run is not None and record.diverged_after:
        lines.append(f"bisect-litert bundle {formats.quote(str(run))}, to report what is left")
    return lines


def headline(record: FixRecord) -> str:
    """One line: how many of the culprits are fixed, and whether the outputs are right."""
    fixed = sum(c.outcome is Outcome.FIXED for c in record.culprits)
    if not record.culprits:
        return "Nothing to fix: the run found no culprit."
    right = "no divergence is left" if not record.diverged_after else "the model still diverges"
    return f"{fixed} of {len(record.culprits)} culprit{_s(record.culprits)} fixed; {right}."


def markdown(record: FixRecord) -> str:
    """The same as fix.md, with a before/after table and every attempt."""
    lines = [f"# Fix of {record.model}", "", headline(record), ""]
    lines += ["| block | cause | outcome | rewrite | local error | ratio |", "| --- | --- | --- | --- | --- | --- |"]
    for c in record.culprits:
        done = c.fix if c.outcome is Outcome.FIXED else None
        error = f"{_error(c.before_error)} → {_error(done.block_error)}" if done else _error(c.before_error)
        ratio = f"{_ratio(c.before_ratio)} → {_ratio(done.block_ratio)}" if done else _ratio(c.before_ratio)
        cause = f"{c.cause} ({c.kind})" if c.kind else str(c.cause)
        name = f"{done.title} in {done.region}" if done else ""
        lines.append(f"| {c.block} | {cause} | {c.outcome} | {name} | {error} | {ratio} |")
    lines.append("")
    for c in record.culprits:
        lines += [f"## {c.block}", "", f"{c.cause}: {c.place}.", ""]
        if c.hidden:
            lines += ["It shows only once the ones before it are fixed; its error before is the one it has then.", ""]
        if c.why_not:
            lines += [f"Not fixed: {_sentence(c.why_not)}", ""]
        if c.outcome is Outcome.FIXED and c.changes:
            lines += [f"- {change.source + ': ' if change.source else ''}{change.how}" for change in c.changes]
            lines += ["", f"Limits: {_sentence(c.limits)}", ""]
        if c.kept_off is not None:
            lines += [_kept_off(c), ""]
        lines += ["Tried:", "", *(f"- {_attempt(a)}" for a in c.attempts), ""] if c.attempts else []
    files = [f"{name}: {what}" for name, what in record.files.items()]
    lines += ["## Before and after", "", *[f"- {line}" for line in (*_whole(record), *files)], ""]
    return "\n".join(lines)


def _culprit(c: CulpritFix) -> list[str]:
    cause = f"{c.cause} ({c.kind})" if c.kind else str(c.cause)
    late = ", shown only after another fix" if c.uncovered else ""
    lines = [f"{c.block}  {cause}: {c.outcome}{late}", f"  {c.place}"]
    done = c.fix
    if c.outcome is Outcome.FIXED and done is not None:
        also = f", {done.detail}" if done.reached is Reached.PROVEN and done.detail else ""
        lines.append(f"  rewrite    {done.title}, in {done.region}{also}")
        ratios = f" (ratio {_ratio(c.before_ratio)} and {_ratio(done.block_ratio)})"
        known = not isnan(c.before_ratio) and not isnan(done.block_ratio)
        lines.append(
            f"  block      {_before_after(c.before_error, done.block_error, late=c.hidden)}{ratios if known else ''}"
        )
        lines += [f"  {'changed' if i == 0 else '':10} {_change(x)}" for i, x in enumerate(c.changes[:6])]
        if len(c.changes) > 6:
            lines.append(f"  {'':10} and {len(c.changes) - 6} more, in fix.md")
        lines.append(f"  limits     {c.limits}")
    else:
        lines.append(f"  reason     {_sentence(c.why_not)}")
    failed = [
        a for a in c.attempts if a.reached is not Reached.PROVEN and not (c.outcome is Outcome.FIXED and a is done)
    ]
    lines += [f"  {'tried' if i == 0 else '':10} {_attempt(a)}" for i, a in enumerate(failed)]
    if c.kept_off is not None:
        lines.append(f"  instead    {_kept_off(c)}")
    return lines


def _change(change: object) -> str:
    source, how = getattr(change, "source", ""), getattr(change, "how", "")
    return f"{source}: {how}" if source else str(how)


def _attempt(a: Attempt) -> str:
    said = f"{a.title}, in {a.region}: {a.reached}"
    if a.reached is Reached.PROVEN:
        also = f", {a.detail}" if a.detail else ""
        return f"{said} (block {_error(a.block_error)}, outputs {_error(a.output_error)}){also}"
    return f"{said}: {_sentence(a.detail)}" if a.detail else f"{said}."


def _kept_off(c: CulpritFix) -> str:
    kept = c.kept_off
    assert kept is not None, "asked only where there is one"
    cost = f", at {kept.gpu_time:.1f} times the time" if not isnan(kept.gpu_time) else ""
    if kept.right:
        return (
            f"{kept.how}, and every output is right ({_error(kept.output_error)}){cost}. For a product, split the"
            f" model at {c.block}'s border and run that part on the CPU."
        )
    # Nothing says here which of the two it was.
    still = "not finite, or none came" if isnan(kept.output_error) else f"off by {_error(kept.output_error)}"
    return f"{kept.how}, and an output is still {still}."


def _whole(record: FixRecord) -> list[str]:
    lines = [f"outputs    {_before_after(record.output_before, record.output_after)}"]
    if any(c.outcome is Outcome.FIXED for c in record.culprits):
        lines.append(f"torch      {_torch(record)}")
    if record.costs is not None:
        lines.append(f"costs      {_costs(record.costs)}")
    if record.device:
        lines.append(f"device     {record.device}")
    if record.checked:
        lines.append(f"checked    {record.checked}")
    return lines + [f"{'' if i else 'notes':10} {note}" for i, note in enumerate(record.notes)]


def _torch(record: FixRecord) -> str:
    double = f"{_error(record.torch64)} in fp64" if not isnan(record.torch64) else "it does not run in fp64"
    both = f"{_error(record.torch32)} in fp32, {double}"
    if isnan(record.torch_own):
        return f"computes the same: largest relative difference {both}"
    return (
        f"computes the same where fp64 decides: torch's own fp32 result is off by {_error(record.torch_own)} from fp64;"
        f" the fix is off by {_error(record.torch_off)} (largest relative difference to the original {both})"
    )


def _costs(costs: Costs) -> str:
    parts = [f"{costs.ops[0]} → {costs.ops[1]} ops", f"file {_times(costs.bytes)}"]
    for name, pair in (("CPU", costs.cpu_seconds), ("GPU", costs.gpu_seconds)):
        if not isnan(pair[0]) and not isnan(pair[1]):
            parts.append(f"{name} time {_times(pair)}")
    return ", ".join(parts)


def _times(pair: tuple[float, float]) -> str:
    return f"x{pair[1] / pair[0]:.2f}" if pair[0] else "unknown"


def _error(value: float) -> str:
    if isnan(value):
        return "not measured"
    return "not finite" if isinf(value) else formats.number(value)


def _ratio(value: float) -> str:
    return "" if isnan(value) else formats.number(value)


def _before_after(before: float, after: float, *, late: bool = False) -> str:
    """Returns "off by 0.20 before, 3.9e-4 after", "not finite before, off by 3.9e-4 after".

    Args:
        before: Relative L2 error.
        after: The same after the fix.
        late: Whether `before` is what shows only once the culprits before it are fixed.
    """
    when = "before, once the ones before it are fixed;" if late else "before,"
    if isfinite(before):
        return f"off by {_error(before)} {when} {_error(after)} after"
    return f"{_error(before)} {when} {'off by ' if isfinite(after) else ''}{_error(after)} after"


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _s(things: tuple[object, ...]) -> str:
    return "" if len(things) == 1 else "s"
