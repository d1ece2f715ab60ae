"""What `--predict` found, on a terminal: one line a block with its room in fp16's range, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from rich.console import Console
from rich.text import Text

from bisect_litert.block_record import BlockResult, RangeInfo
from bisect_litert.record import RunRecord
from bisect_litert.reports import formats
from bisect_litert.reports.block_table import fold
from bisect_litert.reports.names import cut_line, shorten_all
from bisect_litert.reports.outcome import headline
from bisect_litert.vocabulary import Mark

_HEADS = ("peak", "headroom", "sum", "squares")
_MARKS = {Mark.CULPRIT: ("leaves the range", "bold red"), Mark.AFTER: ("after a culprit", "dim")}
_NAME = 32
"""Cells that a name has at the least."""
_CELL = 8


def render(record: RunRecord, console: Console, *, verbose: bool = False) -> None:
    """Prints a predicted record.

    Args:
        record: Made by `--predict`.
        console: Where to.
        verbose: One line for every block.
    """
    _line(console, Text.assemble(("bisect-litert", "bold"), f"  {record.model}  ", (f"({record.target})", "yellow")))
    console.print()
    for text in _table(record, verbose, console.width):
        _line(console, text)
    console.print()
    style = "bold red" if record.verdict.diverged else "bold green"
    _line(console, Text.assemble(("Predicted: ", "dim"), (_headline(record), style)))
    _paragraph(console, record.verdict.summary)
    for culprit in record.culprits:
        console.print()
        where = ", ".join(part for part in (culprit.operator, culprit.module and f"in {culprit.module}") if part)
        _line(console, Text.assemble((culprit.block, "bold"), f"  {where}  {culprit.source}"))
        for row in culprit.code.splitlines():
            _line(console, Text(f"  {row}", "" if row.startswith(">") else "dim"))
        for sentence in culprit.evidence:
            if sentence not in record.verdict.summary:
                _paragraph(console, sentence)
        if culprit.advice:
            _paragraph(console, f"Try: {culprit.advice}")
    for note in record.verdict.notes:
        console.print()
        _paragraph(console, f"Note: {note}")
    if not record.verdict.diverged:
        console.print()
        _paragraph(console, record.verdict.next_step)


def markdown(record: RunRecord) -> str:
    """Returns the same as Markdown, every block listed."""
    lines = [f"# {record.model}: {_headline(record)} ({record.target})", "", record.verdict.summary, ""]
    for culprit in record.culprits:
        places = (culprit.operator, culprit.module, culprit.source)
        lines += [f"## {culprit.block}", "", ", ".join(f"`{part}`" for part in places if part), ""]
        if culprit.code:
            lines += ["```python", culprit.code, "```", ""]
        lines += [f"- {sentence}" for sentence in (*culprit.evidence, culprit.advice) if sentence]
        lines.append("")
    lines += [f"- {note}" for note in record.verdict.notes]
    lines += ["", f"| block | {' | '.join(_HEADS)} | mark |", "| --- | ---: | ---: | ---: | ---: | --- |"]
    lines += [f"| `{b.name}` | {' | '.join(_cells(b.ranges))} | {_mark(b)[0]} |" for b in record.blocks]
    return "\n".join(lines) + "\n"


def _headline(record: RunRecord) -> str:
    return headline(record) if record.culprits else "no overflow"


def _table(record: RunRecord, verbose: bool, room: int) -> Iterator[Text]:
    taken = len(_HEADS) * (_CELL + 2) + 2 + max((len(_mark(block)[0]) for block in record.blocks), default=0)
    names = shorten_all([block.name for block in record.blocks], max(_NAME, room - taken))
    short = dict(zip((block.order for block in record.blocks), names, strict=True))
    width = max([len("block"), *map(len, names)])
    yield Text("  ".join([f"{'block':<{width}}", *(f"{head:>{_CELL}}" for head in _HEADS), "mark"]), "dim")
    for stretch in fold(record.blocks, verbose=verbose):
        if len(stretch) > 1:
            least = min((b.ranges.headroom for b in stretch if b.ranges), default=0.0)
            yield Text(f"… {len(stretch)} blocks, headroom {formats.number(least)} or more", "dim italic")
            continue
        (block,) = stretch
        mark, style = _mark(block)
        cells = [f"{cell:>{_CELL}}" for cell in _cells(block.ranges)]
        yield Text("  ".join([f"{short[block.order]:<{width}}", *cells, mark]), style)


def _cells(ranges: RangeInfo | None) -> tuple[str, ...]:
    if ranges is None or not ranges.peak:
        return ("-",) * len(_HEADS)
    sums = (ranges.largest_sum, ranges.largest_squares)
    return (
        formats.number(ranges.peak),
        formats.number(ranges.headroom),
        *(formats.number(value) if value else "-" for value in sums),
    )


def _mark(block: BlockResult) -> tuple[str, str]:
    if block.mark in _MARKS:
        return _MARKS[block.mark]
    ranges = block.ranges
    if ranges is None:
        return "", ""
    if ranges.headroom < 1:
        return "passes 65504, output in line", "yellow"
    if not isnan(ranges.smallest) and ranges.half > 10 * ranges.significand:
        return "small values lost", "yellow"
    return "ok", ""


def _line(console: Console, text: Text) -> None:
    ascii_only = console.options.ascii_only
    text.plain = formats.clean(text.plain, ascii_only)
    console.print(cut_line(text, console.width, ascii_only), soft_wrap=True)


def _paragraph(console: Console, text: str) -> None:
    for line in Text(formats.clean(text, console.options.ascii_only)).wrap(console, max(20, console.width - 2)):
        line.rstrip()
        console.print(Text.assemble("  ", line), soft_wrap=True)
