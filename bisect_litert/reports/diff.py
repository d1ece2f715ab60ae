"""What a change did, as text and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf, isnan

from rich.console import Console
from rich.text import Text

from bisect_litert.records.comparing import Change, RunDiff, headline
from bisect_litert.reports import formats
from bisect_litert.reports.markdown_text import code, text
from bisect_litert.reports.markdown_text import row as table_row
from bisect_litert.reports.names import shorten_all

FOLD_ABOVE = 40
NAME_CELLS = 28

_STYLES = {
    Change.FIXED: "green",
    Change.BETTER: "green",
    Change.NEW: "bold red",
    Change.KEPT: "red",
    Change.WORSE: "yellow",
}


def render(diff: RunDiff, console: Console, *, verbose: bool = False) -> None:
    """Prints a comparison; blocks that are the same are counted when there are many, unless `verbose`."""
    ascii_only = console.options.ascii_only

    def line(text: Text | str) -> None:
        body = Text(text) if isinstance(text, str) else text
        if ascii_only:
            body = Text(formats.clean(body.plain, True))
        console.print(body, soft_wrap=True)

    line(Text(formats.clean(headline(diff)), "bold"))
    for sentence in sentences(diff):
        line(f"  {formats.clean(sentence)}")
    rows = [row for row in diff.blocks if verbose or len(diff.blocks) <= FOLD_ABOVE or row.change is not Change.SAME]
    names = shorten_all([formats.clean(row.name, ascii_only) for row in rows], NAME_CELLS)
    width = max([5, *map(len, names)])
    line("")
    line(Text(f"{'block':<{width}}  {'rel L2':>8}  {'after':>8}  {'local':>8}  {'after':>8}  change", "dim"))
    for name, row in zip(names, rows, strict=True):
        numbers = "  ".join(f"{_known(v):>8}" for v in (*row.cumulative, *row.local))
        line(Text.assemble(f"{name:<{width}}  {numbers}  ", (row.change.value, _STYLES.get(row.change, "dim"))))
    if len(rows) < len(diff.blocks):
        line(Text(f"… {len(diff.blocks) - len(rows)} blocks the same", "dim italic"))
    line("")
    line("What else differs:" if diff.facts else "Model, versions, device, inputs and tolerances are the same.")
    for fact in diff.facts:
        line(f"  {formats.clean(f'{fact.name}: {fact.before} -> {fact.after}')}")


def sentences(diff: RunDiff) -> Iterator[str]:
    """Yields what became of each culprit."""
    if diff.blocks and all(row.change in (Change.ONLY_BEFORE, Change.ONLY_AFTER) for row in diff.blocks):
        yield "the runs have no block in common, so nothing but their verdicts can be compared"
    yield from (f"fixed: {c.block} ({c.cause})" for c in diff.fixed)
    yield from (f"new: {c.block} ({c.cause})" for c in diff.new)
    yield from (f"moved: {a.block} -> {b.block} ({b.cause})" for a, b in diff.moved)
    for a, b in diff.kept:
        yield f"still there: {a.block} ({a.cause}{'' if a.cause is b.cause else f', now {b.cause}'})"
    yield from (f"gone with its block: {c.block} ({c.cause})" for c in diff.gone)
    for side, change in (("before", Change.ONLY_BEFORE), ("after", Change.ONLY_AFTER)):
        alone = [row.name for row in diff.blocks if row.change is change]
        if alone:
            more = f" and {len(alone) - 6} more" if len(alone) > 6 else ""
            yield f"only {side}, without a partner: {', '.join(alone[:6])}{more}"


def markdown(diff: RunDiff) -> str:
    """Returns a comparison as Markdown."""
    lines = [f"# {text(headline(diff))}", ""]
    lines += [f"- {text(sentence)}" for sentence in sentences(diff)]
    lines += ["", "| block | change | rel L2 before | after | local before | after |", "| --- | --- |" + " ---: |" * 4]
    for change in diff.blocks:
        numbers = [_known(v) for v in (*change.cumulative, *change.local)]
        lines.append(table_row([code(change.name), change.change.value, *numbers]))
    lines += ["", *(f"- {text(f.name)}: {text(f.before)} → {text(f.after)}" for f in diff.facts)]
    return "\n".join(lines).rstrip() + "\n"


def to_json(diff: RunDiff) -> str:
    """Returns a comparison as strictly valid JSON; numbers that JSON cannot hold are strings, as in run.json."""
    blocks = [
        {
            "name": row.name,
            "change": row.change.value,
            "cumulative": list(map(_number, row.cumulative)),
            "local": list(map(_number, row.local)),
        }
        for row in diff.blocks
    ]
    data = {
        "verdict": [diff.before.verdict.cause.value, diff.after.verdict.cause.value],
        "fixed": [c.block for c in diff.fixed],
        "new": [c.block for c in diff.new],
        "moved": [[a.block, b.block] for a, b in diff.moved],
        "kept": [a.block for a, _ in diff.kept],
        "gone": [c.block for c in diff.gone],
        "blocks": blocks,
        "facts": [{"name": f.name, "before": f.before, "after": f.after} for f in diff.facts],
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _known(value: float) -> str:
    return "-" if isnan(value) else formats.number(value)


def _number(value: float) -> float | str:
    if isnan(value):
        return "NaN"
    return value if abs(value) != inf else ("Infinity" if value > 0 else "-Infinity")
